package packet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// traceState is what a published trace of knowledge compares. Revisions count from the start of the trace.
type traceState struct {
	Received, Accepted, Projected uint64
	Members                       []string
	Pending, Stale, Reset         bool
	Context                       string
	WalletEffects                 int
}

// TestR1_R7_R8_R10_PublishedTraces plays the knowledge cases of the packet with the purchase of testvectors/reconcile; the
// packet's own wire bytes are not at hand.
func TestR1_R7_R8_R10_PublishedTraces(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, keep func(t *testing.T) keeper) {
		var file struct {
			Cases []struct {
				Name, Kind string
				Commands   [][]any // of an operation and its argument
				Expected   traceState
			}
		}
		if !published(t, "trace-vectors.json", &file) {
			return
		}
		played := 0
		for _, c := range file.Cases {
			if c.Kind != "knowledge" {
				continue
			}
			if !strings.HasPrefix(c.Name, "192 ") {
				t.Fatalf("%q is knowledge of another document", c.Name)
			}
			played++
			t.Run(c.Name, func(t *testing.T) {
				wrongIndex := slices.ContainsFunc(c.Commands, func(c []any) bool { return c[0] == "invalid-output-index" })
				tr := newTrace(t, keep(t), wrongIndex)
				for _, command := range c.Commands {
					crash := ""
					if len(command) > 1 {
						crash = command[1].(string) //nolint:forcetypeassert // what else it is fails the test
					}
					tr.run(command[0].(string), crash) //nolint:forcetypeassert // the same
				}
				tr.p.audit()
				if got := tr.state(); fmt.Sprint(got) != fmt.Sprint(c.Expected) {
					t.Errorf("\n got %+v\nwant %+v", got, c.Expected)
				}
				tr.p.close()
			})
		}
		if played != 8 {
			t.Errorf("%d traces, not 8", played)
		}
		t.Logf("published packet: %d traces", played)
	})
}

// crashing is a store that can lose its process around a commit, and keeps what was committed.
type crashing struct {
	keeper
	under reconcile.Backend // of a store in memory, which lives on
	next  atomic.Int32      // what the next commit comes to
}

const (
	commits       = iota
	crashesBefore // nothing is written
	crashesAfter  // everything is, and nobody hears of it
)

var errCrash = errors.New("the process ends here")

func (c *crashing) volatile() bool { return false }

func (c *crashing) open(ctx context.Context) (reconcile.Backend, error) {
	if c.under != nil {
		return &crashes{c.under, c}, nil
	}
	b, err := c.keeper.open(ctx)
	if err != nil {
		return nil, err
	}
	if c.keeper.volatile() {
		c.under = b
	}
	return &crashes{b, c}, nil
}

type crashes struct {
	reconcile.Backend
	c *crashing
}

func (b *crashes) Update(ctx context.Context, f func(reconcile.Reader) (reconcile.Writes, error)) error {
	switch b.c.next.Swap(commits) {
	case crashesBefore:
		err := b.Backend.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
			if _, err := f(r); err != nil {
				return reconcile.Writes{}, err
			}
			return reconcile.Writes{}, errCrash
		})
		return err
	case crashesAfter:
		if err := b.Backend.Update(ctx, f); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", errCrash, reconcile.ErrUnknown)
	default:
		return b.Backend.Update(ctx, f)
	}
}

func (b *crashes) Close() error {
	if b.c.under != nil {
		return nil
	}
	return b.Backend.Close()
}

// trace plays one case.
type trace struct {
	t       *testing.T
	p       *player
	store   *crashing
	source  *source
	base    reconcile.Revision
	batch   reconcile.Mutation
	group   string
	results map[string]reconcile.Result
	lost    reconcile.Mutation      // what was under way when the process ended
	kept    bool                    // it was committed
	rows    map[spend.Outpoint]bool // what the projector has made of the changes
}

const projector = "members"

func newTrace(t *testing.T, k keeper, wrongIndex bool) *trace {
	t.Helper()
	tr := &trace{t: t, store: &crashing{keeper: k}, group: "purchase", results: map[string]reconcile.Result{}, rows: map[spend.Outpoint]bool{}}
	for _, c := range ownCases(t) {
		if c.Name == "purchase" {
			w, _ := ownWorld(t, c)
			tr.p = newPlayer(t, w, tr.store, true)
		}
	}
	p := tr.p
	tr.source = p.source("s", false)
	seed := step{Op: "membership", Source: "s", Sequence: 5, ID: "page", Phase: "snapshot", Complete: true}
	seed.Changes = append(seed.Changes, change{Outpoint: "p:0", Present: true})
	if became := p.play([]step{seed}); became != "" {
		t.Fatalf("the seed is %s", became)
	}
	tr.project()
	var err error
	if tr.base, err = p.store.Revision(p.ctx); err != nil {
		t.Fatal(err)
	}

	old, bought := p.w.outpoint("p:0"), p.w.outpoint("bought:0")
	if wrongIndex {
		bought.Index = 7
	}
	evidence := p.w.evidence("bought")
	p.at = 2
	tr.batch = p.batch(tr.source, 1, reconcile.PhaseLive, false, reconcile.Group{ID: tr.group, Sequence: 6, Observations: []reconcile.Observation{
		p.observe("spend", "spend", old, reconcile.SpendOf, "bought", evidence),
		p.observe("withdraw", "withdraw", old, reconcile.Absent, "", nil),
		p.observe("output", "output", bought, reconcile.Present, "bought", evidence),
	}})
	return tr
}

// commit sends a mutation as a process does that may end at it.
func (tr *trace) commit(m reconcile.Mutation, crash string) {
	tr.t.Helper()
	switch crash {
	case "crash-before-commit":
		tr.store.next.Store(crashesBefore)
	case "crash-after-commit":
		tr.store.next.Store(crashesAfter)
	}
	at, err := tr.p.store.Revision(tr.p.ctx)
	if err != nil {
		tr.t.Fatal(err)
	}
	c, err := tr.p.store.Commit(tr.p.ctx, at.Received, m)
	if crash == "" {
		if err != nil || !c.Took() {
			tr.t.Fatalf("%+v, %v", c, err)
		}
		return
	}
	if !errors.Is(err, errCrash) || errors.Is(err, reconcile.ErrUnknown) != (crash == "crash-after-commit") {
		tr.t.Fatalf("%s: %+v, %v", crash, c, err)
	}
	tr.p.close()
	tr.p.store = nil
	tr.lost, tr.kept = m, crash == "crash-after-commit"
}

func (tr *trace) run(command, crash string) {
	tr.t.Helper()
	switch command {
	case "receive":
		tr.commit(tr.batch, crash)
	case "verify-spend", "verify-output", "invalid-output-index":
		tr.verify(command == "verify-spend", command == "invalid-output-index")
	case "context-change":
		tr.p.at++
		if refused := tr.p.turn("next"); refused != "" {
			tr.t.Fatalf("the context change is %s", refused)
		}
	case "accept":
		tr.accept(crash)
	case "project":
		tr.project()
	case "restart":
		if tr.p.store != nil {
			tr.p.restart()
			return
		}
		tr.p.open()
		if _, found, err := tr.p.store.Mutation(tr.p.ctx, tr.lost.Key()); err != nil || found != tr.kept {
			tr.t.Errorf("what was under way is found: %v, %v", found, err)
		}
	default:
		tr.t.Fatalf("no command %q", command)
	}
}

// verify runs the one candidate and records its result. Revisions do not move.
func (tr *trace) verify(spending, invalid bool) {
	tr.t.Helper()
	p := tr.p
	before, err := p.store.Revision(p.ctx)
	if err != nil {
		tr.t.Fatal(err)
	}
	ran := 0
	for _, j := range p.jobs() {
		e, err := p.store.Load(p.ctx, j)
		if err != nil {
			tr.t.Fatal(err)
		}
		if (e.Want.Previous != nil) != spending {
			continue
		}
		ran++
		r := p.check(j)
		if want := map[bool]reconcile.ResultStatus{false: reconcile.Verified, true: reconcile.Invalid}[invalid]; r.Status != want {
			tr.t.Errorf("%s: %s", r.Status, r.Reason)
		}
		if became := p.record(r); !became.Kept || became.Quarantined != invalid {
			tr.t.Errorf("%+v", became)
		}
	}
	if ran != 1 {
		tr.t.Errorf("%d candidates, not one", ran)
	}
	if after, err := p.store.Revision(p.ctx); err != nil || after != before {
		tr.t.Errorf("a result moved %+v to %+v: %v", before, after, err)
	}
}

// accept commits the group when the store says that it is ready.
func (tr *trace) accept(crash string) {
	tr.t.Helper()
	ms, err := tr.p.store.Settled(tr.p.ctx, 16)
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, m := range ms {
		if a, ok := m.(reconcile.Accept); ok && a.GroupID == tr.group {
			tr.commit(m, crash)
			if crash == "" {
				tr.commit(m, "") // the same again is a replay
			}
		}
	}
}

// project lets the projector catch up, and once more.
func (tr *trace) project() {
	tr.t.Helper()
	p := tr.p
	for {
		before, err := p.store.Projected(p.ctx, projector)
		if err != nil {
			tr.t.Fatal(err)
		}
		after, err := p.store.Project(p.ctx, projector, func(_ context.Context, c reconcile.Change, _ reconcile.ProjectTx) error {
			for _, m := range c.Memberships {
				if m.Source == tr.source.id {
					tr.rows[m.Outpoint] = m.Present && !m.Gone
				}
			}
			return nil
		})
		if err != nil {
			tr.t.Fatal(err)
		}
		if after == before {
			return
		}
	}
}

func (tr *trace) state() traceState {
	tr.t.Helper()
	p := tr.p
	at, err := p.store.Revision(p.ctx)
	if err != nil {
		tr.t.Fatal(err)
	}
	projected, err := p.store.Projected(p.ctx, projector)
	if err != nil {
		tr.t.Fatal(err)
	}
	gen, err := p.store.Generation(p.ctx, tr.source.id)
	if err != nil {
		tr.t.Fatal(err)
	}
	snapshot, err := p.store.Read(p.ctx, 0)
	if err != nil {
		tr.t.Fatal(err)
	}
	defer closeIt(tr.t, snapshot)
	s := traceState{
		Received: at.Received - tr.base.Received, Accepted: at.Accepted - tr.base.Accepted, Projected: projected - tr.base.Accepted,
		Members: []string{}, Reset: gen.Ending != nil && gen.Ending.Code == "invalid",
		Context: map[string]string{"base": "view-0", "next": "view-1"}[viewName(snapshot.Context().ID)],
	}
	for o, present := range tr.rows {
		if present {
			s.Members = append(s.Members, map[string]string{"p:0": "old", "bought:0": "new"}[p.w.show(o)])
		}
	}
	for g := range all(tr.t, snapshot.PendingGroups()) {
		s.Pending = s.Pending || g.ID == tr.group
	}
	// What is quarantined is not accepted, and never will be.
	s.Pending = s.Pending || s.Reset
	s.Stale = s.Pending || s.Reset || projected < at.Accepted
	return s
}
