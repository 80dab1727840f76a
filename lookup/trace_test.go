package lookup

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// The published session traces are not part of this repository. Give their folder by the variable to run them.
const packetVariable = "OVERLAYD_BRC_PACKET"

// traceState is the public state at the end of a published session trace. Integers are seconds after T of the first Open.
type traceState struct {
	State         string  `json:"state"`
	Snapshot      *string `json:"snapshot"`
	Expires       *uint64 `json:"expires"`
	ReplayUntil   *uint64 `json:"replayUntil"`
	Last          *string `json:"last"`
	Opens         int     `json:"opens"`
	WalletEffects int     `json:"walletEffects"`
}

// TestO1_PublishedSessionTraces plays the session cases of the packet against a provider: every command is a request, an order of the
// operator, or the passing of time, and what it was answered is the state. The service is one with access by list, so that access can be
// lost; its deadlines are those of the packet, and the head is at 10 when the session opens.
func TestO1_PublishedSessionTraces(t *testing.T) {
	t.Parallel()
	dir := os.Getenv(packetVariable)
	if dir == "" {
		t.Logf("the published BRC packet was left out: set %s to the absolute path of its folder to check trace-vectors.json", packetVariable)
		return
	}
	data, err := os.ReadFile(filepath.Join(dir, "trace-vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name     string
			Kind     string
			Commands [][]any
			Expected json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	played := 0
	for _, c := range file.Cases {
		if c.Kind != "session" {
			continue
		}
		if !strings.HasPrefix(c.Name, "193 ") {
			t.Fatalf("%q is a session of another document", c.Name)
		}
		played++
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var want traceState
			strict := json.NewDecoder(bytes.NewReader(c.Expected))
			strict.DisallowUnknownFields()
			if err := strict.Decode(&want); err != nil {
				t.Fatal(err)
			}
			tr := newTrace(t)
			for i, command := range c.Commands {
				if i > 0 {
					tr.restart() // every command is durable
				}
				tr.play(command)
			}
			got, _ := json.Marshal(tr.state()) //nolint:errcheck // it marshals
			if expected, _ := json.Marshal(want); !bytes.Equal(got, expected) {
				t.Fatalf("got %s, want %s", got, expected)
			}
		})
	}
	if played != 4 {
		t.Fatalf("%d session traces, not 4", played)
	}
}

// trace is a session of one person under test.
type trace struct {
	t      *testing.T
	n      *node
	person *person
	opened ask
	first  reply // the answer that the first Open got
	batch  *wire.Batch
	start  uint64 // T of the first Open
	last   string
	ended  string // closed or revoked, once it is
}

// traceHead is the watermark that the packet calls W10.
const traceHead = 10

func newTrace(t *testing.T) *trace {
	n := members(t, setup{})
	tr := &trace{t: t, n: n, opened: ask{id: newID(), limits: few(4)}}
	tr.restart()
	tr.person = tr.n.person(7)
	tr.n.grant(tr.person, membersService)
	tr.n.stock(traceHead)
	tr.start = tr.n.clockNow() + 1000 // time passes by the feed's clock alone: the real one stays behind
	tr.n.advance(tr.start)
	return tr
}

// restart goes on with another node on the same database, under the packet's deadlines: 300 s of session, and 600 s more of replay.
func (tr *trace) restart() {
	tr.t.Helper()
	tr.n.halt()
	s := setup{db: tr.n.db, identity: tr.n.provider.identity, base: tr.n.provider.baseURL}
	for _, name := range tr.n.provider.names {
		service := tr.n.provider.services[name].Service
		service.SessionSeconds, service.ReplaySeconds = 300, 600
		s.services = append(s.services, service)
	}
	tr.n = start(tr.t, s)
	if tr.person != nil {
		tr.person = tr.person.at(tr.n)
	}
}

// play does one command; what it was answered becomes the last word.
func (tr *trace) play(command []any) {
	tr.t.Helper()
	op := command[0].(string)
	if len(command) > 1 {
		tr.n.advance(tr.start + uint64(command[1].(float64)))
	}
	switch op {
	case "open":
		r := tr.person.ask(openPath, tr.opened.at(membersService))
		switch {
		case r.status != 200:
			tr.last = tr.told(r)
		case tr.batch == nil:
			tr.first, tr.batch, tr.last = r, r.batch(tr.t), "opened"
			// A lost reply: nothing that happens next may move what the session was promised.
			tr.n.append(mint("after "+tr.opened.id, 0).put(genre(0), ""))
		default:
			if !bytes.Equal(r.body, tr.first.body) {
				tr.t.Fatalf("a repeated Open was answered otherwise than the first:\n%s\n%s", tr.first.body, r.body)
			}
			tr.last = "replayed"
		}
	case "close":
		if r := tr.person.ask(closePath, closeBody(tr.batch.Session)); r.status != 200 || string(r.body) != string(closed) {
			tr.t.Fatalf("close: %d %s", r.status, r.body)
		}
		tr.last, tr.ended = "closed", "closed"
	case "revoke":
		if changed, err := tr.n.provider.Revoke(tr.t.Context(), membersService, tr.person.identity); err != nil || !changed {
			tr.t.Fatalf("revoke: %v, %v", changed, err)
		}
		tr.last, tr.ended = "unauthorized", "revoked"
	case "read", "serialize":
		if tr.last = tr.told(tr.person.ask(readPath, readBody(tr.batch.Session, tr.batch.Cursor, few(4)))); tr.last == "resume" {
			return
		}
		if op == "serialize" {
			tr.gated()
		}
	default:
		tr.t.Fatalf("no command %q is known", op)
	}
}

// gated shows the same of an answer that was built before: the row of the session is as before, the gate decides.
func (tr *trace) gated() {
	tr.t.Helper()
	digest, _ := tr.n.provider.sessionDigest(tr.batch.Session)
	s, err := tr.n.provider.main.load(tr.t.Context(), tr.batch.Session, digest)
	if err != nil {
		tr.t.Fatal(err)
	}
	out := answer{status: 200, built: built{body: tr.first.body}, session: s, refusal: gate.forRead}
	r, ok := tr.n.provider.pass(tr.t.Context(), &out).(*refusal)
	if !ok || string(r.public.Code) != tr.last {
		tr.t.Fatalf("the gate says %v of a body that was built before, a read %s", r, tr.last)
	}
}

// told is what a Read or a repeated Open was answered, in the packet's words.
func (tr *trace) told(r reply) string {
	tr.t.Helper()
	if r.status != 200 {
		e, err := wire.ParseError(r.body, r.status)
		if err != nil {
			tr.t.Fatalf("%v in %s", err, r.body)
		}
		return string(e.Code)
	}
	next := r.batch(tr.t)
	if next.Through != traceHead || next.ExpiresAt != tr.batch.ExpiresAt || next.ReplayUntil != tr.batch.ReplayUntil || len(next.Groups) == 0 {
		tr.t.Fatalf("the session goes on elsewhere: %s", r.body)
	}
	return "resume"
}

// state is what the outside can know of the session now.
func (tr *trace) state() traceState {
	s := traceState{State: "absent", Opens: tr.n.count("lookup_session")}
	if tr.batch == nil {
		return s
	}
	s.Snapshot, s.Last = new("W10"), &tr.last
	if tr.batch.Through != traceHead {
		tr.t.Fatalf("the snapshot is at %d", tr.batch.Through)
	}
	s.Expires, s.ReplayUntil = new(tr.batch.ExpiresAt-tr.start), new(tr.batch.ReplayUntil-tr.start)
	list, err := tr.n.provider.ListSessions(tr.t.Context(), SessionFilter{})
	if err != nil || len(list) != 1 {
		tr.t.Fatalf("%v, %v", list, err)
	}
	if s.State = list[0].State; tr.ended != "" && s.State != tr.ended {
		tr.t.Fatalf("the session is %s, and was %s", s.State, tr.ended)
	}
	return s
}
