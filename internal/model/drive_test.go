package model_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"strings"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
	"github.com/overlayd/overlayd/lookup"
)

// Placeholders of what the model cannot know, as long as the real ones.
var (
	anySession = strings.Repeat("s", 53)
	anyCursor  = strings.Repeat("c", 44)
	anyID      = strings.Repeat("i", 25)
)

// drive is one case: the product and the model side by side.
type drive struct {
	*world
	ctx   context.Context
	r     *rig
	rng   *mathrand.Rand // of the operation at hand
	name  string
	nodes []*node

	digests map[string]string     // manifest digest by epoch
	epochs  map[string]string     // and back
	scopes  map[string]wire.Scope // by service, caller, query and epoch
	liveIDs map[string]string     // by what they stand for
	owners  map[string]string     // what each id stands for
	trace   []string
	steps   int
}

type rotation struct {
	key    string
	mode   livefeed.Mode
	answer livefeed.Rotation
}

// newDrive begins a case on a feed of its own.
func newDrive(r *rig, name string) (*drive, error) {
	d := &drive{
		world: &world{
			coins: mintAll(name+rand.Text(), 5), t: beginning, rows: map[int]*version{}, prohibited: map[int]bool{}, audience: map[int][]int{},
			keys: map[string]known{}, grants: map[int]int{},
		},
		ctx: context.WithoutCancel(r.t.Context()), r: r,
		digests: map[string]string{}, epochs: map[string]string{}, scopes: map[string]wire.Scope{}, liveIDs: map[string]string{}, owners: map[string]string{},
	}
	var err error
	if d.name, err = r.feedName(name); err != nil {
		return nil, err
	}
	for i := range r.stores {
		n, err := r.provide(i, d.name)
		if err != nil {
			return nil, err
		}
		d.nodes = append(d.nodes, n)
	}
	for i, p := range r.people { // grants are of a service, and cases share the database
		if _, err := d.nodes[0].provider.Revoke(d.ctx, "ls_members", p.identity); err != nil {
			return nil, err
		}
		if err := d.grant(i, d.nodes[0]); err != nil {
			return nil, err
		}
	}
	return d, d.learnEpoch(d.nodes[0])
}

// learnEpoch fetches the manifest in force.
func (d *drive) learnEpoch(n *node) error {
	m, err := n.manifest()
	if err != nil {
		return err
	}
	epochs, err := wire.Epochs(m)
	if err != nil {
		return err
	}
	epoch := epochs["ls_public"]
	if d.epoch != "" && epoch != d.epoch {
		return fmt.Errorf("the manifest names epoch %.8s, not %.8s", epoch, d.epoch)
	}
	d.epoch = epoch
	d.digests[epoch] = m.Digest()
	d.epochs[m.Digest()] = epoch
	return nil
}

// one of n, by the operation's own generator.
func (d *drive) n(n int) int { return d.rng.IntN(n) }

// chance is 1 in n.
func (d *drive) chance(n int) bool { return d.rng.IntN(n) == 0 }

func (d *drive) say(format string, args ...any) {
	d.trace = append(d.trace, fmt.Sprintf(format, args...))
}

func (d *drive) node() (*node, int) {
	i := d.n(len(d.nodes))
	return d.nodes[i], i
}

func (d *drive) person(who int) *person {
	if who < 0 {
		return nil
	}
	return d.r.people[who]
}

// learnScope takes what the model cannot compute of a scope from the first answer that has it.
func (d *drive) learnScope(s *session, key, name, epoch string, status int, body []byte) error {
	if scope, ok := d.scopes[key]; ok || status != 200 {
		s.scope = scope
		if !ok { // of a refusal only its length matters
			s.scope = d.guess(s, name, epoch)
		}
		return nil
	}
	b, err := wire.ParseBatch(body)
	if err != nil {
		return err
	}
	guess := d.guess(s, name, epoch)
	if s.who >= 0 {
		if len(b.Scope.Access) != len(guess.Access) || !strings.HasPrefix(b.Scope.Access, "p:") {
			return fmt.Errorf("access %q", b.Scope.Access)
		}
		for other, scope := range d.scopes {
			if same := strings.HasPrefix(other, fmt.Sprint(name, s.who)); (scope.Access == b.Scope.Access) != same {
				return fmt.Errorf("the partition of %s is %q, that of %s is %q", key, b.Scope.Access, other, scope.Access)
			}
		}
		guess.Access = b.Scope.Access
	}
	if b.Scope != guess {
		return fmt.Errorf("scope %+v, want %+v", b.Scope, guess)
	}
	d.scopes[key], s.scope = b.Scope, b.Scope
	return nil
}

func (d *drive) guess(s *session, name, epoch string) wire.Scope {
	c := chain()
	parsed := func(text string) canon.Value {
		v, err := canon.Parse([]byte(text), canon.Limits{})
		if err != nil {
			panic(err)
		}
		return v
	}
	scope := wire.Scope{
		Chain:    wire.Chain{Network: c.Network, GenesisHash: hex.EncodeToString(c.Genesis[:])},
		Provider: base, Service: name, Epoch: epoch, Access: "public",
		QueryDigest: wire.QueryDigest(name, parsed(s.query.text)),
		RulesDigest: wire.RulesDigest(lookup.AttributesRulesID, parsed(rulesParameter)),
	}
	if s.who >= 0 {
		scope.Provider, scope.Access = hex.EncodeToString(d.r.identity.PubKey().Compressed()), "p:"+strings.Repeat("0", 32)
	}
	return scope
}

// check compares an answer with what it must be, and keeps what it taught.
func (d *drive) check(s *session, want answer, status int, body []byte) error {
	if want.code != "" {
		e, err := wire.ParseError(body, status)
		if err != nil {
			return fmt.Errorf("%w in %d %s; want %s %s", err, status, body, want.code, want.kind)
		}
		if e.Code != want.code || want.kind != "" && (e.Limit == nil || e.Limit.Kind != want.kind) {
			return fmt.Errorf("answered %s; want %s %s", body, want.code, want.kind)
		}
		return nil
	}
	if want.drawn {
		if status != 200 || !bytes.Equal(body, s.first) {
			return fmt.Errorf("a repeated Open was answered %d %s; the first answer was %s", status, body, s.first)
		}
		return nil
	}
	got, err := wire.ParseBatch(body)
	if err != nil {
		return fmt.Errorf("%w in %d %s; want %s", err, status, body, want.batch.AppendCanonical(nil))
	}
	if s.id == "" {
		s.id = got.Session
		if err := d.own(s.id, fmt.Sprint("session ", s.number)); err != nil {
			return err
		}
	}
	if err := d.learn(s, want, got); err != nil {
		return fmt.Errorf("%w in %s", err, body)
	}
	if expected := want.batch.AppendCanonical(nil); !bytes.Equal(expected, body) {
		return fmt.Errorf("answered %s\nwant     %s", body, expected)
	}
	if len(body) > int(want.batch.Limits.MaxBytes) {
		return fmt.Errorf("%d bytes in %s", len(body), body)
	}
	return nil
}

// learn fills in session, cursor and ids of the expected batch: those it saw before, or those of the answer.
func (d *drive) learn(s *session, want answer, got *wire.Batch) error {
	b := want.batch
	b.Session = s.id
	if len(got.Groups) != len(b.Groups) {
		return fmt.Errorf("%d groups, want %d (through %d high %d, want %d %d)", len(got.Groups), len(b.Groups), got.Through, got.HighWater, b.Through, b.HighWater)
	}
	known := s.cursors[want.next]
	if known == "" {
		if err := d.own(got.Cursor, fmt.Sprint("cursor of session ", s.number, want.next)); err != nil {
			return err
		}
		known = got.Cursor
		s.cursors[want.next] = known
		s.marks = append(s.marks, &mark{s, want.next, known})
	}
	b.Cursor = known
	scope := string(s.scope.AppendCanonical(nil))
	id := func(what, saw string) (string, error) {
		ids := d.liveIDs
		if b.Phase == wire.PhaseSnapshot {
			ids = s.ids
			what = fmt.Sprint("session ", s.number, " ", what)
		} else {
			what = scope + what
		}
		if ids[what] == "" {
			ids[what] = saw
			return saw, d.own(saw, what)
		}
		return ids[what], nil
	}
	for i := range b.Groups {
		g, saw := &b.Groups[i], &got.Groups[i]
		what := fmt.Sprint("group ", g.Sequence)
		if b.Phase == wire.PhaseSnapshot {
			what = fmt.Sprint("row ", want.facts[i][0].point)
		}
		var err error
		if g.ID, err = id(what, saw.ID); err != nil {
			return err
		}
		for j := range min(len(g.Observations), len(saw.Observations)) {
			if g.Observations[j].ID, err = id(fmt.Sprint(what, " observation ", j), saw.Observations[j].ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// own takes note of what an id stands for: never for two things.
func (d *drive) own(id, what string) error {
	if other, taken := d.owners[id]; taken && other != what {
		return fmt.Errorf("%q stands for %s and for %s", id, other, what)
	}
	d.owners[id] = what
	return nil
}
