package reconcile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// engine is the one Store.
type engine struct {
	b       Backend
	budget  Budget
	log     *slog.Logger
	only    bool // reading
	changed chan struct{}

	mu       sync.Mutex
	closed   bool
	news     chan struct{} // closed and made anew with each commit, for those who watch
	contexts []spend.View  // committed ones that were read so far
}

// Open makes the engine over a backend, which it owns from then on. It creates
// what a new store needs; an existing one must be of the same partition and
// chain, and of the same NonFinal.
func Open(ctx context.Context, b Backend, o Options) (Store, error) {
	e := &engine{
		b: b, budget: o.Budget.Defaults(), log: o.Log, only: o.ReadOnly, changed: make(chan struct{}, 1), news: make(chan struct{}),
	}
	if e.log == nil {
		e.log = slog.Default()
	}
	for _, part := range []string{o.Partition.Application, o.Partition.Account, o.Partition.Access} {
		if (part == "" && !o.ReadOnly) || len(part) > 256 {
			return nil, errors.New("each part of a partition has 1 to 256 bytes")
		}
	}
	if len(o.PolicyDigest) > 256 || len(o.Context.ID) > 256 {
		return nil, errors.New("a policy digest and the id of a context have at most 256 bytes")
	}
	var fresh bool
	err := e.view(ctx, func(t *txn) error {
		fresh = t.meta.Journal == ""
		if !fresh {
			return sameStore(t.meta, o)
		}
		if o.ReadOnly {
			return errors.New("there is no knowledge to look at")
		}
		return nil
	})
	if err != nil || o.ReadOnly {
		return e, err
	}
	err = e.update(ctx, func(t *txn) error {
		if t.meta.Journal != "" { // another process was first
			if t.meta.Chain == (Chain{}) {
				t.meta.Chain = o.Chain
			}
			t.meta.Policy = o.PolicyDigest
			return sameStore(t.meta, o)
		}
		return t.create(o)
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

func sameStore(m *metaRow, o Options) error {
	switch {
	case o.ReadOnly && o.Partition == (Partition{}):
	case m.Partition != o.Partition:
		return fmt.Errorf("%w: it holds %q of %q", ErrPartition, m.Partition.Account, m.Partition.Application)
	}
	switch {
	case o.Chain != (Chain{}) && m.Chain != (Chain{}) && o.Chain != m.Chain:
		return fmt.Errorf("%w: it is about %s", ErrPartition, m.Chain.Network)
	case !o.ReadOnly && o.NonFinal != m.NonFinal:
		return fmt.Errorf("%w: non-final selection was %t when it was created", ErrPartition, m.NonFinal)
	}
	return nil
}

// create writes what a new store holds: its options, the context in force at
// position 0, and the trusted roots.
func (t *txn) create(o Options) error {
	var journal [8]byte
	if _, err := rand.Read(journal[:]); err != nil {
		return err
	}
	*t.meta = metaRow{
		Partition: o.Partition, Chain: o.Chain, NonFinal: o.NonFinal, Policy: o.PolicyDigest, Journal: hex.EncodeToString(journal[:]),
		Earliest: 1,
	}
	if o.Context.ID == "" {
		o.Context.ID = "genesis"
	}
	t.put(key(spaceContext, uint64(0)), encode(&o.Context))
	for _, root := range o.Roots {
		id := TxIDOf(root.Raw)
		if t.tx(id) != nil {
			continue
		}
		if err := t.learn(id, root.Raw, spend.Position{}); err != nil {
			return fmt.Errorf("a trusted root: %w", err)
		}
		row := t.tx(id)
		row.Trusted = true
		t.saveTx(id, row)
		t.meta.Transactions--
	}
	return t.err
}

// view looks at the store.
func (e *engine) view(ctx context.Context, f func(*txn) error) error {
	return e.b.View(ctx, func(r Reader) error {
		t, err := e.begin(ctx, r)
		if err != nil {
			return err
		}
		return errors.Join(f(t), t.err)
	})
}

// update commits what f changes, or nothing.
func (e *engine) update(ctx context.Context, f func(*txn) error) error {
	if e.only {
		return ErrReadOnly
	}
	wrote := false
	err := e.b.Update(ctx, func(r Reader) (Writes, error) {
		t, err := e.begin(ctx, r)
		if err != nil {
			return Writes{}, err
		}
		if err := errors.Join(f(t), t.err); err != nil {
			return Writes{}, err
		}
		w := t.writes()
		wrote = len(w.Put)+len(w.Delete) > 0
		return w, t.err
	})
	if wrote && (err == nil || errors.Is(err, ErrUnknown)) {
		e.tell()
	}
	return err
}

func (e *engine) begin(ctx context.Context, r Reader) (*txn, error) {
	t, err := newTxn(ctx, r)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	t.budget, t.contexts = e.budget, e.contexts
	e.mu.Unlock()
	if t.meta.Journal == "" {
		return t, nil
	}
	views := t.views()
	e.mu.Lock()
	if len(views) > len(e.contexts) && t.err == nil {
		e.contexts = views
	}
	e.mu.Unlock()
	return t, t.err
}

// tell wakes who waits for something new.
func (e *engine) tell() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
	e.mu.Lock()
	close(e.news)
	e.news = make(chan struct{})
	e.mu.Unlock()
}

func (e *engine) Durability() Durability { return e.b.Durability() }

func (e *engine) Changed() <-chan struct{} { return e.changed }

func (e *engine) Close() error {
	e.mu.Lock()
	done := e.closed
	e.closed = true
	e.mu.Unlock()
	if done {
		return nil
	}
	return e.b.Close()
}

func (e *engine) Revision(ctx context.Context) (rev Revision, err error) {
	err = e.view(ctx, func(t *txn) error {
		rev = t.meta.Revision
		return nil
	})
	return rev, err
}

func (e *engine) Mutation(ctx context.Context, k Key) (c Committed, found bool, err error) {
	err = e.view(ctx, func(t *txn) error {
		c, found = t.replay(k)
		return nil
	})
	return c, found, err
}

// replay answers with what a key was committed as.
func (t *txn) replay(k Key) (Committed, bool) {
	row, ok := plain[mutationRow](t, t.get(key(spaceMutation, k[:])))
	if !ok {
		return Committed{}, false
	}
	return Committed{Status: StatusReplayed, Revision: row.Revision, Swapped: row.Swapped}, true
}

func (e *engine) Commit(ctx context.Context, expected uint64, m Mutation) (Committed, error) {
	list, err := e.CommitAll(ctx, expected, []Mutation{m})
	if err != nil {
		return Committed{}, err
	}
	return list[0], nil
}

func (e *engine) CommitAll(ctx context.Context, expected uint64, ms []Mutation) ([]Committed, error) {
	keys := make([]Key, len(ms))
	for i, m := range ms {
		keys[i] = m.Key()
	}
	var list []Committed
	err := e.update(ctx, func(t *txn) error {
		list = nil
		want := expected
		t.aheadOf(ms, keys)
		for i, m := range ms {
			c, err := t.commit(want, keys[i], m)
			if err != nil {
				return err
			}
			list = append(list, c)
			if !c.Took() {
				break
			}
			if c.Status == StatusCommitted {
				want++
			}
		}
		switch k := kindsOf(ms, list); {
		case k.received:
			failpoint.Hit(failpoint.ReceiveSending)
		case k.swapped:
			failpoint.Hit(failpoint.SwapSending)
		case k.accepted:
			failpoint.Hit(failpoint.AcceptSending)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	switch k := kindsOf(ms, list); {
	case k.captured:
		failpoint.Hit(failpoint.CaptureCommitted)
	case k.received:
		failpoint.Hit(failpoint.ReceiveCommitted)
	case k.swapped:
		failpoint.Hit(failpoint.SwapCommitted)
	case k.accepted:
		failpoint.Hit(failpoint.AcceptCommitted)
	}
	return list, nil
}

// commit applies one mutation in a commit under way.
func (t *txn) commit(expected uint64, k Key, m Mutation) (Committed, error) {
	if c, found := t.replay(k); found {
		return c, t.err
	}
	at := t.meta.Revision
	refused := func(no *refusal) (Committed, error) {
		return Committed{Status: no.status, Revision: at, Reason: no.reason, Waiting: no.waiting}, t.err
	}
	if at.Received != expected {
		return refused(refuse(StatusConflict, "the store is at another revision"))
	}
	if at.Received == math.MaxUint64 || at.Accepted == math.MaxUint64 || t.meta.Position == math.MaxUint64 {
		return refused(refuse(StatusLimited, "the revisions of this store are used up"))
	}
	var no *refusal
	var err error
	row := mutationRow{Kind: m.kind()}
	p := newPublication(row.Kind)
	switch m := m.(type) {
	case Receive:
		no, err = t.receive(m)
		p = nil
	case Accept:
		row.Swapped, no, err = t.accept(m, p)
	case ContextChange:
		no, err = t.changeContext(m, p)
	case Reconcile:
		no, err = t.reconcile(m, p)
	case Invalidate:
		no, err = t.invalidate(m)
	default:
		err = errors.New("there is no such mutation")
	}
	if err = errors.Join(err, t.err); err != nil {
		return Committed{}, err
	}
	if no != nil {
		return refused(no)
	}
	t.sweep()
	t.meta.Revision.Received++
	if p != nil {
		t.finish(p)
		t.meta.Revision.Accepted++
		t.log(p)
	}
	row.Revision = t.meta.Revision
	t.put(key(spaceMutation, k[:]), encode(&row))
	return Committed{Status: StatusCommitted, Revision: row.Revision, Swapped: row.Swapped}, t.err
}

// kinds says what a commit holds, for the failpoints.
type kinds struct{ received, captured, accepted, swapped bool }

func kindsOf(ms []Mutation, list []Committed) (k kinds) {
	for i, c := range list {
		if c.Status != StatusCommitted {
			continue
		}
		switch m := ms[i].(type) {
		case Receive:
			k.received = true
			k.captured = k.captured || m.Batch.Complete && m.Batch.Phase == PhaseSnapshot
		case Accept:
			k.accepted = true
			k.swapped = k.swapped || c.Swapped
		}
	}
	return k
}

// maxChange is how much one change may take in the log. A larger one is not kept:
// who watches has to read a snapshot.
const maxChange = 8 << 20

// log keeps the change and forgets what is over the bound.
func (t *txn) log(p *publication) {
	c := &p.change
	c.Revision, c.Context = t.meta.Revision, t.context().ID
	slices.SortStableFunc(c.Memberships, func(a, b MembershipChange) int { return int(a.Source) - int(b.Source) })
	v := encode(c)
	if len(v) > maxChange {
		v = nil
		t.meta.Earliest = c.Revision.Accepted + 1
	}
	t.put(key(spaceChange, c.Revision.Accepted), v)
	if bound := uint64(t.budget.Changes); c.Revision.Accepted > bound {
		least := c.Revision.Accepted - bound
		t.meta.Earliest = max(t.meta.Earliest, least+1)
		for e := range t.scan(key(spaceChange, uint64(0)), key(spaceChange, least+1), 4) {
			t.del(e.Key)
		}
	}
}
