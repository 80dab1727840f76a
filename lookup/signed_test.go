package lookup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

const membersService = "ls_members"

// members is a provider of one public, one listed, one open and one hidden service on one feed.
func members(t *testing.T, s setup) *node {
	t.Helper()
	service := func(name, authentication, access string, hidden bool) Service {
		return Service{
			Name: name, Feed: "catalogue", Authentication: authentication, Access: access, Hidden: hidden,
			RulesParameters: json.RawMessage(`{"attributes":["artist","genre"]}`), SessionSeconds: 3600, ReplaySeconds: 600,
			MaxRequestBytes: 1 << 20, MaxResponseBytes: 4 << 20, MaxObservations: 1024, MaxWaitMs: 25000,
		}
	}
	s.services = []Service{
		service(testService, "none", "", false), service(membersService, "brc103", AccessList, false),
		service("ls_anyone", "brc103", AccessOpen, false), service("ls_hidden", "brc103", AccessList, true),
	}
	return start(t, s)
}

// person is an identity with a session at a node: a signed client.
type person struct {
	n        *node
	identity [33]byte
	client   *brc104.Client
	session  *brc104.Session
	digest   string // capability digest to send
}

func (n *node) person(seed byte) *person {
	n.t.Helper()
	key := secp256k1.PrivKeyFromBytes(bytes.Repeat([]byte{seed}, 32))
	client, err := brc104.NewClient(key)
	if err != nil {
		n.t.Fatal(err)
	}
	p := &person{n: n, identity: [33]byte(key.PubKey().SerializeCompressed()), client: client}
	p.greet()
	return p
}

// at is the same identity at another node, in a session begun there.
func (p *person) at(n *node) *person {
	q := &person{n: n, identity: p.identity, client: p.client, digest: p.digest}
	q.greet()
	return q
}

func (p *person) greet() {
	p.n.t.Helper()
	hello := p.client.Hello()
	res, err := http.Post(p.n.base+brc104.HandshakePath, "application/json", bytes.NewReader(hello.Body))
	if err != nil {
		p.n.t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.n.t.Fatal(err)
	}
	if p.session, err = p.client.Begin(hello, body); err != nil {
		p.n.t.Fatalf("%v in %s", err, body)
	}
}

// ask sends a signed request and verifies the signature of whatever comes back.
func (p *person) ask(path string, body []byte, edit ...func(*http.Request)) reply {
	p.n.t.Helper()
	r, err := p.try(context.Background(), path, body, edit...)
	if err != nil {
		p.n.t.Fatal(err)
	}
	return r
}

func (p *person) try(ctx context.Context, path string, body []byte, edit ...func(*http.Request)) (reply, error) {
	verb := http.MethodPost
	if body == nil {
		verb = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, verb, p.n.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		if p.digest == "" {
			p.digest = p.n.capability()
		}
		req.Header.Set(wire.HeaderCapability, p.digest)
		req.Header.Set(wire.HeaderProfile, wire.Profile)
	}
	for _, e := range edit {
		e(req)
	}
	sent, err := p.session.Sign(req, body)
	if err != nil {
		return reply{}, err
	}
	r, err := send(req)
	if err != nil {
		return reply{}, err
	}
	if r.header.Get(brc104.HeaderSignature) == "" {
		return r, fmt.Errorf("an unsigned answer: %d %s", r.status, r.body)
	}
	return r, sent.Verify(r.status, r.header, r.body)
}

func (a ask) at(service string) []byte {
	return bytes.Replace(a.body(), []byte(`"`+testService+`"`), []byte(`"`+service+`"`), 1)
}

func (p *person) open(service string, a ask) *wire.Batch {
	p.n.t.Helper()
	return p.ask(openPath, a.at(service)).batch(p.n.t)
}

func (p *person) read(b *wire.Batch, l wire.Limits) *wire.Batch {
	p.n.t.Helper()
	return p.ask(readPath, readBody(b.Session, b.Cursor, l)).batch(p.n.t)
}

func (n *node) grant(p *person, service string) {
	n.t.Helper()
	if _, err := n.provider.Grant(n.t.Context(), service, p.identity); err != nil {
		n.t.Fatal(err)
	}
}

func TestA1_ModesDoNotMix(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	n.stock(2)
	member, stranger := n.person(1), n.person(2)
	n.grant(member, membersService)

	b := member.open(membersService, ask{})
	if b.Scope.Provider != n.manifest().Identity || !strings.HasPrefix(b.Scope.Access, "p:") || len(b.Scope.Access) != 34 {
		t.Fatalf("scope %+v", b.Scope)
	}
	anyone := stranger.open("ls_anyone", ask{})
	if anyone.Scope.Access == b.Scope.Access {
		t.Fatal("two principals share a partition")
	}
	public := n.open(ask{})
	// A brc103 service without a principal, or one it does not admit; a none service with one.
	n.request(openPath, ask{}.at(membersService)).refused(t, wire.Unauthorized)
	n.request(openPath, ask{}.at("ls_anyone")).refused(t, wire.Unauthorized)
	stranger.ask(openPath, ask{}.at(membersService)).refused(t, wire.Unauthorized)
	member.ask(openPath, ask{}.at(testService)).refused(t, wire.Unauthorized)
	// Hidden is not there, in the same words.
	gone := n.request(openPath, ask{}.at("ls_nothing"))
	for _, r := range []reply{n.request(openPath, ask{}.at("ls_hidden")), member.ask(openPath, ask{}.at("ls_hidden"))} {
		r.refused(t, wire.NotFound)
		if !bytes.Equal(r.body, gone.body) {
			t.Fatalf("%s\n%s", r.body, gone.body)
		}
	}
	// The id shows the mode; the wrong kind of caller is refused alike whether the session exists or not.
	real := n.request(readPath, readBody(b.Session, b.Cursor, wide))
	made := n.request(readPath, readBody(b.Session[:20]+strings.Repeat("A", len(b.Session)-20), b.Cursor, wide))
	real.refused(t, wire.Unauthorized)
	if !bytes.Equal(real.body, made.body) {
		t.Fatal("an anonymous caller can tell whether a signed session exists")
	}
	member.ask(readPath, readBody(public.Session, public.Cursor, wide)).refused(t, wire.Unauthorized)

	// Wrong authentication is 401 and never anonymous.
	for name, edit := range map[string]func(*http.Request){
		"another identity": header(brc104.HeaderIdentityKey, hexOf(stranger.identity[:])),
		"no signature":     header(brc104.HeaderSignature),
		"only a version":   func(r *http.Request) { r.Header.Set(brc104.HeaderVersion, "0.1") },
	} {
		req, err := http.NewRequest(http.MethodPost, n.base+openPath, bytes.NewReader(ask{}.at("ls_anyone")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(wire.HeaderCapability, n.capability())
		req.Header.Set(wire.HeaderProfile, wire.Profile)
		if name != "only a version" {
			if _, err := member.session.Sign(req, ask{}.at("ls_anyone")); err != nil {
				t.Fatal(err)
			}
		}
		edit(req)
		r, err := send(req)
		if err != nil {
			t.Fatal(err)
		}
		r.refused(t, wire.Unauthorized)
		if r.header.Get(brc104.HeaderSignature) != "" {
			t.Fatalf("%s: a signed answer to an unproven caller", name)
		}
	}
}

func TestA2_AnothersSessionIsNotThere(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	n.stock(3)
	mine, other := n.person(1), n.person(2)
	b := mine.open("ls_anyone", ask{limits: few(1)})
	r := other.ask(readPath, readBody(b.Session, b.Cursor, few(1)))
	unknown := other.ask(readPath, readBody(b.Session[:20]+strings.Repeat("A", len(b.Session)-20), b.Cursor, few(1)))
	r.refused(t, wire.ResetRequired)
	if !bytes.Equal(r.body, unknown.body) {
		t.Fatal("existence is revealed")
	}
	// Close has no effect and says the same.
	if r := other.ask(closePath, closeBody(b.Session)); string(r.body) != string(closed) {
		t.Fatalf("%s", r.body)
	}
	if r := n.request(closePath, closeBody(b.Session)); string(r.body) != string(closed) {
		t.Fatalf("%s", r.body)
	}
	mine.read(b, few(1))
	if r := mine.ask(closePath, closeBody(b.Session)); string(r.body) != string(closed) {
		t.Fatalf("%s", r.body)
	}
	mine.ask(readPath, readBody(b.Session, b.Cursor, few(1))).refused(t, wire.Expired)
	// The same requestId of two principals is two sessions.
	a := ask{id: newID()}
	if mine.open("ls_anyone", a).Session == other.open("ls_anyone", a).Session {
		t.Fatal("two principals share a session")
	}
}

// TestA3_ARevocationTouchesTheLedgerLast: while it waits for a session that another transaction holds, the ledger is free, so that
// whoever holds the session can end it.
func TestA3_ARevocationTouchesTheLedgerLast(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	p := n.person(1)
	n.grant(p, membersService)
	b := p.open(membersService, ask{})
	digest, _ := n.provider.sessionDigest(b.Session)
	tx, err := n.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // after a commit it does nothing
	if _, err := tx.Exec(t.Context(), `select from lookup_session where id = $1 for update`, digest[:]); err != nil {
		t.Fatal(err)
	}
	revoked := make(chan error, 1)
	go func() {
		_, err := n.provider.Revoke(context.Background(), membersService, p.identity)
		revoked <- err
	}()
	testkit.Eventually(t, "the revocation waits for the session", func() (waits bool) {
		if err := n.db.Pool.QueryRow(t.Context(), `select exists (select from pg_stat_activity where datname = current_database()
			and wait_event_type = 'Lock' and query like 'with ended as%')`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	if _, err := tx.Exec(t.Context(), `select from lookup_ledger for update nowait`); err != nil {
		t.Errorf("the ledger is locked before the session: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the revocation", revoked); err != nil {
		t.Fatal(err)
	}
	p.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Unauthorized)
}

func TestA3_RevocationEndsSessions(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	n.stock(3)
	p := n.person(1)
	n.grant(p, membersService)
	a := ask{id: newID()}
	first := p.ask(openPath, a.at(membersService))
	b := first.batch(t)
	if again := p.ask(openPath, a.at(membersService)); !bytes.Equal(again.body, first.body) {
		t.Fatal("the retry differs")
	}
	revoke := func(by *node) {
		if changed, err := by.provider.Revoke(context.Background(), membersService, p.identity); err != nil || !changed {
			t.Errorf("revoked %v, %v", changed, err)
		}
	}
	// While a poll sleeps, it is woken and ends unauthorized.
	var once sync.Once
	stop := n.during(beforeSleep, func() { once.Do(func() { revoke(n) }) })
	p.ask(readPath, readBody(b.Session, b.Cursor, wait(25000))).refused(t, wire.Unauthorized)
	stop()
	p.ask(openPath, a.at(membersService)).refused(t, wire.Unauthorized)
	p.ask(openPath, ask{}.at(membersService)).refused(t, wire.Unauthorized)
	// Granted again: new sessions, and the old one stays dead, its Open retry too.
	n.grant(p, membersService)
	p.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Unauthorized)
	p.ask(openPath, a.at(membersService)).refused(t, wire.Unauthorized)
	c := p.open(membersService, ask{})
	// Between build and gate, by another node: the body is thrown away.
	stop = n.during(beforeGate, func() { once = sync.Once{}; once.Do(func() {}); revokeOnce(t, m, p) })
	p.ask(readPath, readBody(c.Session, c.Cursor, wide)).refused(t, wire.Unauthorized)
	stop()
	// An Open that commits while its grant is taken away is not served either.
	n.grant(p, membersService)
	stop = n.during(afterCommit, func() { revokeOnce(t, m, p) })
	p.ask(openPath, ask{}.at(membersService)).refused(t, wire.Unauthorized)
	stop()
	// Removal by an operator is a revocation.
	n.grant(p, membersService)
	d := p.open(membersService, ask{})
	list, err := n.provider.ListSessions(t.Context(), SessionFilter{Service: membersService, Principal: &p.identity})
	if err != nil {
		t.Fatal(err)
	}
	open := slices.DeleteFunc(list, func(i SessionInfo) bool { return i.State != "open" })
	if len(open) != 1 || len(list) != 4 {
		t.Fatalf("%+v", list)
	}
	for _, want := range []bool{true, false} {
		if changed, err := m.provider.RemoveSession(t.Context(), open[0].Ref); err != nil || changed != want {
			t.Fatalf("%v, %v", changed, err)
		}
	}
	p.ask(readPath, readBody(d.Session, d.Cursor, wide)).refused(t, wire.Unauthorized)
}

func revokeOnce(t *testing.T, n *node, p *person) {
	if _, err := n.provider.Revoke(context.Background(), membersService, p.identity); err != nil {
		t.Error(err)
	}
}

func TestA4_ChangedAccess(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	n.stock(2)
	p := n.person(1)
	b := p.open("ls_anyone", ask{})
	anonymous := n.open(ask{})
	// Another session of the same identity goes on with the same lookup session: renewed credentials, identical access.
	p.greet()
	p.read(b, wide)

	// The service begins to need grants: whole access is lost. And the public one becomes authenticated: its sessions reset.
	n.halt()
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL, services: func() []Service {
		services := []Service{n.provider.services["ls_anyone"].Service, n.provider.services[testService].Service}
		services[0].Access = AccessList
		services[1].Authentication = "brc103"
		return services
	}()})
	q := p.at(m)
	q.digest = p.digest
	q.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.Unauthorized)
	m.request(readPath, readBody(anonymous.Session, anonymous.Cursor, wide), capabilityHeader(p.digest)).refused(t, wire.ResetRequired)
	m.halt()

	// Another identity of the provider: authenticated sessions are over, anonymous ones are not touched.
	other := members(t, setup{db: n.db, base: n.provider.baseURL})
	r := p.at(other)
	r.digest = p.digest
	r.ask(readPath, readBody(b.Session, b.Cursor, wide)).refused(t, wire.ResetRequired)
	other.request(readPath, readBody(anonymous.Session, anonymous.Cursor, wide), capabilityHeader(p.digest)).batch(t)
	if !strings.Contains(other.log.String(), "the identity is another one") {
		t.Fatal("nothing was said about the changed identity")
	}
}

func TestA7_ReadersSeeTheirRows(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	one, two := n.person(1), n.person(2)
	row := mint("row", 0)
	n.append(row.put(genre(0), readersOf(one)))
	b1, b2, anonymous := one.open("ls_anyone", ask{}), two.open("ls_anyone", ask{}), n.open(ask{})
	if len(b1.Groups) != 1 || len(b2.Groups) != 0 || len(anonymous.Groups) != 0 {
		t.Fatalf("%d, %d, %d rows", len(b1.Groups), len(b2.Groups), len(anonymous.Groups))
	}
	n.append(row.put(genre(0), readersOf(two)))
	b1, b2 = one.read(b1, wide), two.read(b2, wide)
	if got := tellAll(observations(b1)); !slices.Equal(got, []string{"withdraw " + row.short() + " audience"}) {
		t.Fatalf("%v", got)
	}
	if got := tellAll(observations(b2)); !slices.Equal(got, []string{"output " + row.short()}) {
		t.Fatalf("%v", got)
	}
	n.append(row.spent(mint("by", 0, row.point())))
	if got := tellAll(observations(two.read(b2, wide))); !slices.Equal(got, []string{"spend " + row.short(), "withdraw " + row.short() + " spent"}) {
		t.Fatalf("%v", got)
	}
	if got := observations(one.read(b1, wide)); len(got) != 0 {
		t.Fatalf("%v", tellAll(got))
	}
	if got := n.read(anonymous, wide); len(got.Groups) != 0 || got.Through != 3 {
		t.Fatalf("through %d with %d groups", got.Through, len(got.Groups))
	}
}

func TestH4_EveryAnswerToASignedRequestIsSigned(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	p := n.person(1)
	b := p.open("ls_anyone", ask{})
	p.ask("/overlay/v1/capabilities", nil)
	for code, r := range map[wire.Code]reply{ // ask has verified each signature
		wire.Invalid:        p.ask(openPath, []byte(`{}`)),
		wire.NotFound:       p.ask("/overlay/v1/nothing", ask{}.body()),
		wire.Unauthorized:   p.ask(openPath, ask{}.at(membersService)),
		wire.ResetRequired:  p.ask(readPath, readBody(b.Session, "x", wide)),
		wire.ContextChanged: p.ask(readPath, readBody(b.Session, b.Cursor, wide), capabilityHeader(strings.Repeat("ab", 32))),
		wire.Unsupported:    p.ask(openPath, ask{}.body(), header(wire.HeaderProfile, "urn:other:profile")),
		wire.Limited:        p.ask(openPath, ask{limits: wire.Limits{MaxBytes: 1, MaxObservations: 1}}.at("ls_anyone")),
	} {
		r.refused(t, code)
	}
	p.ask(openPath, ask{}.body(), header("X-Pad", strings.Repeat("p", 17000))).refused(t, wire.Limited)
	p.ask(openPath, ask{}.body(), method(http.MethodPut)).refused(t, wire.Invalid)
	p.digest = p.n.capability()
	n.pool.Close()
	p.ask(openPath, ask{}.at("ls_anyone")).refused(t, wire.Unavailable)
	for _, secret := range []string{b.Session, b.Cursor, hexOf(p.identity[:])} {
		if strings.Contains(n.log.String(), secret) {
			t.Fatal("a secret or an identity is in the log")
		}
	}
}

func TestH10_CallersSeeWhatAdmitsThem(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	p, stranger := n.person(1), n.person(2)
	n.grant(p, "ls_hidden")
	names := func(body []byte) []string {
		c, err := wire.VerifyCapabilities(body)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range c.Services {
			names = append(names, s.Name)
		}
		return names
	}
	all := []string{"ls_anyone", testService, "ls_hidden", membersService}
	mine := p.ask("/overlay/v1/capabilities", nil)
	if got := names(mine.body); !slices.Equal(got, all) {
		t.Fatalf("%v", got)
	}
	if there := p.at(m).ask("/overlay/v1/capabilities", nil); !bytes.Equal(there.body, mine.body) {
		t.Fatal("two nodes serve a caller different manifests")
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "ls_hidden" })
	if got := names(stranger.ask("/overlay/v1/capabilities", nil).body); !slices.Equal(got, shown) {
		t.Fatalf("%v", got)
	}
	var public []string
	for _, s := range n.manifest().Services {
		public = append(public, s.Name)
	}
	if !slices.Equal(public, shown) {
		t.Fatalf("%v", public)
	}
	// A service may be opened under any manifest that shows it; the hidden one under the caller's own.
	p.digest = n.capability()
	p.ask(openPath, ask{}.at("ls_hidden")).refused(t, wire.ContextChanged)
	c, err := wire.VerifyCapabilities(mine.body)
	if err != nil {
		t.Fatal(err)
	}
	p.digest = c.Digest()
	p.open("ls_hidden", ask{})
	p.open("ls_anyone", ask{})
}

func TestA8_NothingSecretIsTold(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	p := n.person(1)
	n.grant(p, membersService)
	label := "a-private-label"
	c := mint("private", 0)
	n.append(c.put(`{"artist":["`+label+`"]}`, `,"readers":["`+hexOf(p.identity[:])+`"]`))
	a := ask{id: newID(), query: `{"match":{"artist":"` + label + `"}}`}
	b := p.open(membersService, a)
	next := p.read(b, wide)
	var told []byte
	for _, r := range []reply{
		p.ask(openPath, ask{id: a.id}.at(membersService)),
		p.ask(readPath, readBody(b.Session, "x", wide)),
		p.ask(readPath, readBody(b.Session, b.Cursor, wire.Limits{MaxBytes: 1, MaxObservations: 1})),
		n.request(readPath, readBody(b.Session, b.Cursor, wide)),
		n.request(openPath, []byte(`{"version":1,"requestId":"`+a.id+`"}`)),
	} {
		told = append(told, r.body...)
	}
	revokeOnce(t, n, p)
	told = append(told, p.ask(readPath, readBody(next.Session, next.Cursor, wide)).body...)
	p.ask(closePath, closeBody(b.Session))
	families, err := n.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		told = append(told, f.String()...)
	}
	told = append(told, n.log.String()...)
	for name, secret := range map[string]string{
		"session": b.Session, "cursor": b.Cursor, "live cursor": next.Cursor, "requestId": a.id, "identity": hexOf(p.identity[:]),
		"query and row": label, "txid": c.hex(), "partition": b.Scope.Access,
	} {
		if bytes.Contains(told, []byte(secret)) {
			t.Errorf("%s is told in logs, metrics or errors", name)
		}
	}
	if !bytes.Contains(told, []byte("overlayd_lookup_refusals_total")) || !bytes.Contains(told, []byte("lookup request refused")) {
		t.Error("there was nothing to look at")
	}
}

func TestT4_ExpiryAtSerialisation(t *testing.T) {
	t.Parallel()
	n := members(t, setup{})
	n.stock(2)
	p := n.person(1)
	public, signed := n.open(ask{limits: few(1)}), p.open("ls_anyone", ask{limits: few(1)})
	live := n.live(`{}`)
	stop := n.during(beforeGate, func() { n.advance(public.ExpiresAt - 1) })
	n.read(public, few(1)) // a second before
	stop()
	stop = n.during(beforeLastGate, func() { n.advance(signed.ExpiresAt) })
	p.ask(readPath, readBody(signed.Session, signed.Cursor, few(1))).refused(t, wire.ResetRequired)
	stop()
	n.advance(max(public.ExpiresAt, live.ExpiresAt))
	for _, b := range []*wire.Batch{public, live} {
		n.request(readPath, readBody(b.Session, b.Cursor, few(1))).refused(t, wire.ResetRequired)
	}
	// An Open whose session expires before its first body is sent makes no promise either.
	stop = n.during(afterCommit, func() { n.advance(live.ExpiresAt * 2) })
	n.request(openPath, ask{}.body()).refused(t, wire.ResetRequired)
	stop()
}

// TestH8_APageReadsWhyItsSessionIsOver: an unsigned refusal of a signed request is readable from a configured origin, or no page
// could ever begin another session.
func TestH8_APageReadsWhyItsSessionIsOver(t *testing.T) {
	t.Parallel()
	const page = "https://app.example.org"
	n := members(t, setup{origins: []string{page}})
	p := n.person(1)
	if _, err := n.pool.Exec(t.Context(), `delete from session_secret`); err != nil {
		t.Fatal(err)
	}
	if err := n.provider.refreshRing(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := p.try(t.Context(), openPath, ask{}.at("ls_anyone"), header("Origin", page))
	if err == nil {
		t.Fatal("a session of secrets that are gone was answered with a signature")
	}
	r.refused(t, wire.Unauthorized)
	if r.header.Get("Access-Control-Allow-Origin") != page || r.header.Get(brc104.HeaderMessageType) == "" {
		t.Fatalf("%v", r.header)
	}
	p.greet()
	p.open("ls_anyone", ask{})
}
