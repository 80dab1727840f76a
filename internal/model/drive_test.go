package model_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

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

	digests  map[string]string     // manifest digest by epoch
	epochs   map[string]string     // and back
	scopes   map[string]wire.Scope // by service, caller, query and epoch
	liveIDs  map[string]string     // by what they stand for
	owners   map[string]string     // what each id stands for
	trace    []string
	steps    int
	requests int
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
			coins: mintAll(name+rand.Text(), 5), t: beginning, rows: map[int]*version{}, prohibited: map[int]bool{},
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

func newKey() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) //nolint:errcheck // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// limits draws limits: wide, a few observations, or about so many bytes.
func (d *drive) limits() wire.Limits {
	l := wire.Limits{MaxBytes: maxBytes, MaxObservations: 1024}
	switch d.n(4) {
	case 0:
		l.MaxObservations = uint32(1 + d.n(6))
	case 1:
		l.MaxBytes = uint32(900 + d.n(4000))
	case 2:
		l.MaxBytes = uint32(900 + d.n(12000))
		l.MaxObservations = uint32(1 + d.n(10))
	}
	return l
}

func limitsJSON(l wire.Limits) []byte { return l.AppendCanonical(nil) }

// opening draws a new Open and sends it.
func (d *drive) opening() error {
	n, at := d.node()
	who := max(d.n(5)-3, -1) // -1 three times of five
	name, most := serviceOf(who)
	s := &session{
		number: len(d.sessions), requestID: newKey(), who: who, query: queries[d.n(len(queries))], most: most,
		cursors: map[spot]string{}, ids: map[string]string{},
	}
	s.capability = d.digests[d.epoch]
	if d.chance(12) { // an old manifest
		olds := make([]string, 0, len(d.digests))
		for _, old := range d.digests {
			olds = append(olds, old)
		}
		slices.Sort(olds)
		s.capability = olds[d.n(len(olds))]
	}
	epoch := d.epochs[s.capability]
	limits := d.limits()
	s.request = fmt.Appendf(nil, `{"version":1,"requestId":"%s","service":"%s","query":%s,"limits":%s}`, s.requestID, name, s.query.text, limitsJSON(limits))
	d.say("open #%d on node %d: who %d, query %s, limits %s", s.number, at, who, s.query.text, limitsJSON(limits))
	status, body, err := n.call(d.person(who), openPath, s.request, s.capability)
	if err != nil {
		return err
	}
	scopeKey := fmt.Sprint(name, who, s.query.text, epoch)
	if err := d.learnScope(s, scopeKey, name, epoch, status, body); err != nil {
		return err
	}
	want := d.world.open(s, epoch, limits.Min(most))
	if err := d.check(s, want, status, body); err != nil || want.code != "" {
		return err
	}
	s.first, s.discloses = body, discloses(want.facts)
	d.sessions = append(d.sessions, s)
	d.say("  -> W %d, %d of %d rows", s.w, len(want.facts), len(s.rows))
	return nil
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

// pick is a session, a recent one rather than an old one; nil if there is none.
func (d *drive) pick() *session {
	if len(d.sessions) == 0 {
		return nil
	}
	if d.chance(4) {
		return d.sessions[d.n(len(d.sessions))]
	}
	return d.sessions[len(d.sessions)-1-d.n(min(6, len(d.sessions)))]
}

// again repeats an Open, as it was or with something changed.
func (d *drive) again() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	request, capability := s.request, s.capability
	switch d.n(5) {
	case 0:
		request = bytes.Replace(request, []byte(`"waitMs":0`), []byte(`"waitMs":1`), 1)
	case 1:
		capability = strings.Repeat("ab", 32)
	}
	d.say("open #%d again on node %d, changed %v, other capability %v", s.number, at, !bytes.Equal(request, s.request), capability != s.capability)
	status, body, err := n.call(d.person(s.who), openPath, request, capability)
	if err != nil {
		return err
	}
	return d.check(s, d.repeat(s, request, capability), status, body)
}

// reading reads on from a cursor: mostly the last one, often an older one, sometimes one that is not the session's.
func (d *drive) reading() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	m := s.marks[len(s.marks)-1]
	if d.chance(3) {
		m = s.marks[d.n(len(s.marks))]
	}
	who, capability, strange := s.who, s.capability, ""
	if d.chance(10) {
		switch d.n(4) {
		case 0:
			other := d.sessions[d.n(len(d.sessions))]
			m, strange = other.marks[d.n(len(other.marks))], "a cursor of another"
		case 1:
			raw := []byte(m.cursor)
			i := d.n(len(raw))
			raw[i] = 'A' + (raw[i]+1)%26
			if string(raw) != m.cursor {
				m, strange = &mark{cursor: string(raw)}, "a forged cursor"
			}
		case 2:
			who, strange = d.n(3)-1, "another caller"
		default:
			capability, strange = strings.Repeat("cd", 32), "another capability"
		}
	}
	limits := d.limits()
	if d.chance(5) && m.s == s && !s.removed {
		limits = d.exact(s, m, limits)
	}
	return d.readAt(s, m, who, capability, strange, limits, true)
}

// exact narrows limits to the very bytes of what they would get, or to one less.
func (d *drive) exact(s *session, m *mark, limits wire.Limits) wire.Limits {
	a := d.peek(s, m, limits)
	if a.code != "" {
		return limits
	}
	for { // its own digits count
		a.batch.Limits = limits.Min(s.most)
		a.batch.HighWater = a.batch.Through
		bytes := uint32(len(a.batch.AppendCanonical(nil)))
		if bytes == limits.MaxBytes || digits(uint64(bytes)) > digits(uint64(limits.MaxBytes)) {
			break
		}
		limits.MaxBytes = bytes
	}
	limits.MaxBytes -= uint32(d.n(2))
	return limits
}

func (d *drive) readAt(s *session, m *mark, who int, capability, strange string, limits wire.Limits, follow bool) error {
	n, at := d.node()
	d.say("read #%d on node %d at %+v, limits %s %s", s.number, at, m.spot, limitsJSON(limits), strange)
	session, _ := json.Marshal(s.id)    //nolint:errcheck // strings marshal
	cursor, _ := json.Marshal(m.cursor) //nolint:errcheck // strings marshal
	request := fmt.Appendf(nil, `{"version":1,"session":%s,"cursor":%s,"limits":%s}`, session, cursor, limitsJSON(limits))
	status, body, err := n.call(d.person(who), readPath, request, capability)
	if err != nil {
		return err
	}
	want := d.read(s, who, capability, m, limits)
	if err := d.check(s, want, status, body); err != nil {
		return err
	}
	if want.code == "" {
		d.say("  -> %d groups, %s, complete %v, through %d, head %d", len(want.batch.Groups), want.batch.Phase, want.batch.SnapshotComplete, want.batch.Through, d.head())
		return nil
	}
	d.say("  -> %s %s", want.code, want.kind)
	if want.code != wire.Limited || !follow {
		return nil
	}
	// What is named as enough must be enough.
	e, err := wire.ParseError(body, status)
	if err != nil || e.Limit.MinimumBytes == nil {
		return fmt.Errorf("limited without a minimum: %s", body)
	}
	limits.MaxBytes = max(limits.MaxBytes, *e.Limit.MinimumBytes)
	if o := e.Limit.MinimumObservations; o != nil {
		limits.MaxObservations = max(limits.MaxObservations, *o)
	}
	d.steps++
	if next := d.peek(s, m, limits); next.code == wire.Limited && (want.kind != wire.LimitEnvelope || next.kind == wire.LimitEnvelope) {
		return fmt.Errorf("the minimum is not enough: %s", body)
	}
	return d.readAt(s, m, who, capability, "with what it asked for", limits, false)
}

// peek is what a read by the session's owner would be answered, leaving the model as it is.
func (d *drive) peek(s *session, m *mark, limits wire.Limits) answer {
	l := limits.Min(s.most)
	if m.spot.live {
		return d.tail(s, m.spot.at, l, func() {})
	}
	return d.page(s, int(m.spot.at), l)
}

// closing closes a session, as its owner or as somebody else.
func (d *drive) closing() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	who := s.who
	if d.chance(3) {
		who = d.n(3) - 1
	}
	d.say("close #%d on node %d by %d", s.number, at, who)
	status, body, err := n.call(d.person(who), closePath, fmt.Appendf(nil, `{"version":1,"session":"%s"}`, s.id), s.capability)
	if err != nil {
		return err
	}
	if status != 200 || string(body) != `{"closed":true,"version":1}` {
		return fmt.Errorf("close was answered %d %s", status, body)
	}
	if who == s.who && s.state == living && !s.removed {
		s.state = closed
	}
	return nil
}

// removing takes a session away as an operator would.
func (d *drive) removing() error {
	s := d.pick()
	if s == nil {
		return d.opening()
	}
	n, at := d.node()
	d.say("remove #%d on node %d", s.number, at)
	ref, found, err := d.ref(s)
	if err != nil {
		return err
	}
	if found == s.removed {
		return fmt.Errorf("session #%d is stored: %v, and should be: %v", s.number, found, !s.removed)
	}
	if !found {
		return nil
	}
	changed, err := n.provider.RemoveSession(d.ctx, ref)
	if err != nil {
		return err
	}
	if changed != (s.state == living) {
		return fmt.Errorf("removing session #%d, which is %s, changed something: %v", s.number, s.state, changed)
	}
	if changed {
		s.state = revoked
	}
	return nil
}

func (d *drive) ref(s *session) (ref uuid.UUID, found bool, err error) {
	digest := sha256.Sum256([]byte(s.id))
	rows, err := d.r.stores[0].pool.Query(d.ctx, `select ref from lookup_session where id = $1`, digest[:])
	if err != nil {
		return ref, false, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&ref); err != nil {
			return ref, false, err
		}
		found = true
	}
	return ref, found, rows.Err()
}

// appending commits a group, a known one again, or one that must be refused.
func (d *drive) appending() error {
	n, at := d.node()
	edits := d.edits()
	key := newKey()
	if len(d.keyList) > 0 && d.chance(15) {
		key = d.keyList[d.n(len(d.keyList))]
	}
	body := d.groupJSON(key, edits, d.r.people)
	if k, ok := d.keys[key]; ok && d.chance(2) {
		body = k.body
	}
	d.say("append on node %d: %s", at, tellEdits(edits))
	proposal, err := livefeed.DecodeGroup([]byte(body))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, 20*time.Second)
	defer cancel()
	receipt, err := n.feed.Append(ctx, proposal)
	v, seq := d.append(key, body, edits)
	got := map[livefeed.ErrorCode]verdict{livefeed.Conflict: conflicting, livefeed.Invalid: faulty, livefeed.Limited: oversized}[livefeed.CodeOf(err)]
	if receipt.Replayed {
		got = replayed
	}
	if err != nil && got == accepted || got != v || receipt.Sequence != seq || err == nil && receipt.HighWater != d.head() {
		return fmt.Errorf("append was answered %+v, %v; want %s as %d, head %d", receipt, err, v, seq, d.head())
	}
	d.say("  -> %s %d", v, seq)
	return nil
}

func tellEdits(edits []edit) string {
	var out []string
	for _, e := range edits {
		switch e.op {
		case put:
			out = append(out, fmt.Sprintf("put %d %s", e.point, e.state))
		case spend:
			out = append(out, fmt.Sprintf("spend %d by %d", e.point, e.by))
		case withdraw:
			out = append(out, fmt.Sprintf("withdraw %d %q", e.point, e.reason))
		default:
			out = append(out, "invalidate")
		}
	}
	return strings.Join(out, "; ")
}

// edits draws a group.
func (d *drive) edits() []edit {
	count := 1
	if d.chance(3) {
		count += d.n(4)
	}
	if d.chance(40) {
		count = 9
	}
	values := func(names ...string) (out []string) {
		for _, n := range names {
			if d.chance(2) {
				out = append(out, n)
			}
		}
		return out
	}
	var edits []edit
	for range count {
		e := edit{point: d.n(2 * len(d.coins)), reason: []string{"evicted", "a \u0000 reason", "\"quoted\""}[d.n(3)], by: d.n(2)}
		switch d.n(9) {
		case 0, 1:
			e.op = spend
		case 2:
			e.op = withdraw
		case 3:
			if d.chance(2) {
				e.op = invalidate
				e.point = 0
			}
		}
		if e.op == put {
			s := &state{evidence: d.n(4) / 3, artist: values("a", "b"), genre: values("x", "y"), order: []string{"", "", "1", "1\u0000", "2"}[d.n(5)], context: max(0, d.n(5)-2)}
			if before := d.now(e.point); before != nil && d.chance(3) { // change one thing of what is there, or nothing
				same := *before
				same.hidden = false
				switch d.n(4) {
				case 0:
					same.genre = s.genre
				case 1:
					same.order = s.order
				}
				s = &same
			} else {
				if d.chance(3) {
					s.expires = d.t + uint64(1+d.n(15))
				}
				switch d.n(6) {
				case 0:
					s.readers = []int{d.n(2)}
				case 1:
					s.readers = []int{0, 1}
				}
			}
			if d.chance(60) {
				s.expires = d.t
			}
			if d.chance(80) {
				s.readers = []int{}
			}
			e.state = s
		}
		edits = append(edits, e)
	}
	return edits
}

// ruling prohibits a row or allows it again.
func (d *drive) ruling() error {
	n, at := d.node()
	point := d.n(2 * len(d.coins))
	allow := d.chance(2)
	for p := range d.prohibited { // do not let everything be hidden for long
		if allow = allow || d.prohibited[p] && p == point; allow {
			break
		}
	}
	if allow {
		var list []int
		for p, yes := range d.prohibited {
			if yes {
				list = append(list, p)
			}
		}
		slices.Sort(list)
		if len(list) > 0 && !d.chance(5) {
			point = list[d.n(len(list))]
		}
	}
	d.say("prohibit %d on node %d, lift %v", point, at, allow)
	c := d.coins[point/2]
	o := livefeed.Outpoint{TxID: c.txid, Index: uint32(point % 2)}
	var changed bool
	var err error
	if allow {
		changed, err = n.feed.Allow(d.ctx, o)
	} else {
		changed, err = n.feed.Prohibit(d.ctx, o, "a court said so")
	}
	if err != nil {
		return err
	}
	if want := d.rule(point, allow); changed != want {
		return fmt.Errorf("it changed something: %v, want %v", changed, want)
	}
	return nil
}

// passing lets time pass: a little, or to a deadline, or to the second before it.
func (d *drive) passing() error {
	n, at := d.node()
	to := d.t + uint64(1+d.n(3))
	switch d.n(8) {
	case 0, 1:
		if s := d.pick(); s != nil {
			to = []uint64{s.expiresAt, s.expiresAt - 1, s.replayUntil, s.replayUntil - 1}[d.n(4)]
		}
	case 2, 3:
		for _, v := range d.versions {
			if v.state.expires > d.t && d.chance(3) {
				to = v.state.expires - uint64(d.n(2))
				break
			}
		}
	}
	to = max(min(to, d.t+60), d.t)
	d.say("time passes on node %d: %d -> %d", at, d.t, to)
	d.t = to
	return n.feed.Advance(d.ctx, n.running.pool, to)
}

// granting gives a grant or takes one away.
func (d *drive) granting() error {
	n, at := d.node()
	who := d.n(2)
	if d.grants[who] == 0 || d.chance(2) {
		d.say("grant %d on node %d", who, at)
		return d.grant(who, n)
	}
	d.say("revoke %d on node %d", who, at)
	changed, err := n.provider.Revoke(d.ctx, "ls_members", d.r.people[who].identity)
	if err != nil {
		return err
	}
	if !changed {
		return errors.New("there was nothing to revoke")
	}
	d.grants[who] = 0
	for _, s := range d.sessions {
		if s.who == who && s.state == living && !s.removed {
			s.state = revoked
		}
	}
	return nil
}

func (d *drive) grant(who int, n *node) error {
	changed, err := n.provider.Grant(d.ctx, "ls_members", d.r.people[who].identity)
	if err != nil {
		return err
	}
	if changed != (d.grants[who] == 0) {
		return fmt.Errorf("granting changed something: %v", changed)
	}
	if changed {
		d.granted++
		d.grants[who] = d.granted
	}
	return nil
}

// restarting ends a node's process and starts another on the same database.
func (d *drive) restarting() error {
	_, i := d.node()
	d.say("node %d starts anew", i)
	d.r.stores[i].stop()
	d.r.stores[i] = d.r.run()
	n, err := d.r.provide(i, d.name)
	if err != nil {
		return err
	}
	d.nodes[i] = n
	return nil
}

// auditing compares what operators are told.
func (d *drive) auditing() error {
	n, at := d.node()
	d.say("audit on node %d", at)
	stats, err := n.feed.Stats(d.ctx)
	if err != nil {
		return err
	}
	if stats.Head != d.head() || stats.Rows != int64(len(d.rows)) || stats.Epoch != d.epoch || stats.Floor != d.floor {
		return fmt.Errorf("%+v; want head %d, floor %d, %d rows, epoch %.8s", stats, d.head(), d.floor, len(d.rows), d.epoch)
	}
	list, err := n.provider.ListSessions(d.ctx, lookup.SessionFilter{})
	if err != nil {
		return err
	}
	got := map[uuid.UUID]string{}
	for _, s := range list {
		got[s.Ref] = s.State
	}
	for _, s := range d.sessions {
		ref, found, err := d.ref(s)
		if err != nil {
			return err
		}
		want := s.state.String()
		switch {
		case s.state != living:
		case s.turn < d.broken:
			want = "reset"
		case s.t < d.t && d.t >= s.expiresAt:
			want = "expired"
		}
		if found == s.removed || found && len(list) < 1000 && got[ref] != want {
			return fmt.Errorf("session #%d is stored %v as %q; want %q, removed %v", s.number, found, got[ref], want, s.removed)
		}
	}
	return nil
}
