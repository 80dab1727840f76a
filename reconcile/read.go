package reconcile

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// snapshot is a txn whose view is kept open by a goroutine until Close.
type snapshot struct {
	t    *txn
	mu   sync.Mutex
	once sync.Once
	free chan struct{}
	done chan error
}

// Read opens a snapshot; see Store.
func (e *engine) Read(ctx context.Context, accepted uint64) (Snapshot, error) {
	s := &snapshot{free: make(chan struct{}), done: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		err := e.view(ctx, func(t *txn) error {
			if accepted != 0 && accepted != t.meta.Revision.Accepted {
				return ErrRevision
			}
			s.t = t
			ready <- nil
			<-s.free
			return nil
		})
		select {
		case ready <- err:
		default:
		}
		s.done <- err
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

func (s *snapshot) Close() (err error) {
	s.once.Do(func() {
		close(s.free)
		err = <-s.done
	})
	return err
}

// look runs f alone: a snapshot may be used by several goroutines.
func (s *snapshot) look(f func(t *txn)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.free:
		return errors.New("the snapshot is closed")
	default:
	}
	if s.t.err == nil {
		f(s.t)
	}
	return s.t.err
}

func (s *snapshot) Revision() Revision { return s.t.meta.Revision }

func (s *snapshot) Context() (c Context) {
	_ = s.look(func(t *txn) { c = t.context() })
	return c
}

// rows gives what each makes of the rows of a range, page by page, so that the
// snapshot can be asked other things meanwhile.
func rows[T any](s *snapshot, prefix []byte, each func(*txn, Entry) (T, bool)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for from := prefix; ; {
			var list []T
			n := 0
			err := s.look(func(t *txn) {
				for e := range t.scan(from, after(prefix), page) {
					n++
					from = append(append([]byte{}, e.Key...), 0)
					if v, ok := each(t, e); ok {
						list = append(list, v)
					}
				}
				t.forget()
			})
			if err != nil {
				yield(none, err)
				return
			}
			for _, v := range list {
				if !yield(v, nil) {
					return
				}
			}
			if n < page {
				return
			}
		}
	}
}

// forget drops what a long reading gathered.
func (t *txn) forget() {
	if len(t.typed) > 8192 || len(t.read) > 8192 {
		clear(t.typed)
		clear(t.read)
	}
}

// Rows that are not there any more cannot be met in a coherent view; a reader that
// gives one has an error of its own.

func (s *snapshot) Transactions() iter.Seq2[Transaction, error] {
	return rows(s, []byte{spaceTx}, func(t *txn, e Entry) (Transaction, bool) {
		id := txidAt(e.Key, 1)
		row := t.tx(id)
		if row == nil || row.Trusted {
			return Transaction{}, false
		}
		return t.transaction(id, row), true
	})
}

func (s *snapshot) Transaction(id spend.TxID) (tx Transaction, ok bool, err error) {
	err = s.look(func(t *txn) {
		if row := t.tx(id); row != nil && !row.Trusted {
			tx, ok = t.transaction(id, row), true
		}
	})
	return tx, ok && err == nil, err
}

func (t *txn) transaction(id spend.TxID, row *txRow) Transaction {
	journal := func(p spend.Position) Ingress { return Ingress{t.meta.Journal, p.At, p.Index} }
	tx := Transaction{
		ID: id, Status: row.shown(), Pending: row.Pending, Reason: row.reason(), Other: row.Other, FirstRaw: journal(row.FirstRaw),
		Valid: row.Result == byte(spend.Valid) || row.anchored(), ConflictsWith: slices.Clone(row.Conflicts), Evidence: t.evidence(id),
	}
	for _, in := range row.Inputs {
		tx.Dependencies = append(tx.Dependencies, in.Outpoint)
	}
	if row.Ready {
		tx.Order = &Order{FirstRaw: tx.FirstRaw, ReadyAt: row.ReadyAt, Depth: row.Depth, ReadyContext: t.contextAt(row.ReadyView).ID}
	}
	if row.Eligible {
		tx.Eligible = &Eligible{At: row.EligibleAt, Context: t.contextAt(t.viewAt(row.EligibleAt).At).ID}
	}
	if row.Replaced {
		replaces := row.Replaces
		tx.Replaces = &replaces
	}
	return tx
}

// evidence lists the variants that carry a transaction, ascending.
func (t *txn) evidence(id spend.TxID) [][32]byte {
	const most = 64 // a popular ancestor is carried by everybody
	var list [][32]byte
	for e := range t.prefix(key(spaceCarrier, id), most) {
		x, ok := plain[carrierRow](t, e.Value)
		n := u64At(e.Key, 33)
		if group := t.group(n); !ok || group == nil || !group.supports() {
			continue
		}
		for _, index := range append([]uint32{x.Via}, x.Targets...) {
			if c := t.candidate(n, index); c != nil {
				list = append(list, c.Variant)
			}
		}
	}
	slices.SortFunc(list, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(list)
}

func (s *snapshot) Output(o spend.Outpoint) (out Output, err error) {
	err = s.look(func(t *txn) { out = t.outputOf(o, t.evaluate(o)) })
	return out, err
}

func (t *txn) outputOf(o spend.Outpoint, row outputRow) Output {
	return Output{
		Outpoint: o, State: outputStates[row.State], Stale: row.Stale, By: row.By, Reason: spend.Reason(row.Reason),
		Sources: t.listers(o), Evidence: t.evidence(o.TxID),
	}
}

func (s *snapshot) Outputs(state OutputState) iter.Seq2[Output, error] {
	if state == "" {
		return rows(s, []byte{spaceOutput}, func(t *txn, e Entry) (Output, bool) {
			row, ok := plain[outputRow](t, e.Value)
			return t.outputOf(outpointAt(e.Key, 1), row), ok
		})
	}
	n := byte(slices.Index(outputStates[:], state))
	return rows(s, key(spaceOutputState, n), func(t *txn, e Entry) (Output, bool) {
		o := outpointAt(e.Key, 2)
		row, ok := plain[outputRow](t, t.get(key(spaceOutput, o)))
		return t.outputOf(o, row), ok
	})
}

// sources lists what sources there are, by scope of their active generation.
func (t *txn) sourceRows() (ids []uint32) {
	for id := uint32(1); id <= t.meta.Sources; id++ {
		ids = append(ids, id)
	}
	scope := func(id uint32) []byte {
		if s := t.source(id); s != nil {
			if g := t.generation(id, s.Active); g != nil {
				return g.Scope
			}
		}
		return nil
	}
	slices.SortStableFunc(ids, func(a, b uint32) int { return slices.Compare(scope(a), scope(b)) })
	return ids
}

func (s *snapshot) Memberships() iter.Seq2[Membership, error] {
	return func(yield func(Membership, error) bool) {
		var ids []uint32
		if err := s.look(func(t *txn) { ids = t.sourceRows() }); err != nil {
			yield(Membership{}, err)
			return
		}
		for _, id := range ids {
			var source sourceRow
			var g generationRow
			err := s.look(func(t *txn) {
				if row := t.source(id); row != nil {
					source = *row
					if row := t.generation(id, source.Active); row != nil {
						g = *row
					}
				}
			})
			if err != nil {
				yield(Membership{}, err)
				return
			}
			if source.Active == 0 {
				continue
			}
			var waiting map[spend.Outpoint]bool
			if err := s.look(func(t *txn) { waiting = t.waiting(id, source.Active) }); err != nil {
				yield(Membership{}, err)
				return
			}
			for m, err := range rows(s, key(spaceMember, id, source.Active), func(t *txn, e Entry) (Membership, bool) {
				row, ok := plain[membershipRow](t, e.Value)
				o := outpointAt(e.Key, 13)
				return Membership{
					Source: SourceID(id), Scope: g.Scope, Generation: source.Active, Outpoint: o, Present: row.Present,
					Stale: g.Ending != nil || waiting[o], Partial: !g.Complete, Phase: phases[row.Phase], Sequence: row.Sequence, Observation: row.Observation,
				}, ok
			}) {
				if !yield(m, err) || err != nil {
					return
				}
			}
		}
	}
}

// waiting are the outpoints that groups which wait for their turn speak of.
func (t *txn) waiting(source uint32, generation uint64) map[spend.Outpoint]bool {
	var outpoints map[spend.Outpoint]bool
	for e := range t.prefix(key(spaceQueue, source, generation), 0) {
		if len(e.Value) != 8 {
			continue
		}
		for row := range t.prefix(key(spaceObservation, binary.BigEndian.Uint64(e.Value)), 0) {
			if o, ok := plain[observationRow](t, row.Value); ok {
				if outpoints == nil {
					outpoints = map[spend.Outpoint]bool{}
				}
				outpoints[o.Outpoint] = true
			}
		}
	}
	return outpoints
}

func (s *snapshot) Replacements() iter.Seq2[Replacement, error] {
	return rows(s, []byte{spaceReplacement}, func(t *txn, e Entry) (Replacement, bool) {
		at := u64At(e.Key, 1)
		return Replacement{
			Previous: txidAt(e.Value, 0), Next: txidAt(e.Key, 33), At: at, Context: t.contextAt(t.viewAt(at).At).ID,
		}, true
	})
}

func (s *snapshot) PendingGroups() iter.Seq2[PendingGroup, error] {
	return func(yield func(PendingGroup, error) bool) {
		var list []PendingGroup
		for g, err := range rows(s, []byte{spaceQueue}, func(t *txn, e Entry) (PendingGroup, bool) {
			if len(e.Value) != 8 {
				t.fail(ErrDamaged)
				return PendingGroup{}, false
			}
			return t.pendingGroup(binary.BigEndian.Uint64(e.Value))
		}) {
			if err != nil {
				yield(PendingGroup{}, err)
				return
			}
			list = append(list, g)
		}
		slices.SortStableFunc(list, func(a, b PendingGroup) int { return cmp.Compare(a.Position, b.Position) })
		for _, g := range list {
			if !yield(g, nil) {
				return
			}
		}
	}
}

func (t *txn) pendingGroup(n uint64) (PendingGroup, bool) {
	row := t.group(n)
	if row == nil {
		return PendingGroup{}, false
	}
	g := PendingGroup{
		Source: SourceID(row.Source), Generation: row.Generation, ID: row.ID, Sequence: row.Sequence, Position: row.Position,
		Since: row.Since, Settled: row.Status == groupSettled, Open: int(row.Open),
	}
	if row.Status == groupQuarantined {
		g.Reason = "quarantined"
	}
	for i := range row.Count {
		c := t.candidate(n, i)
		if row.Candidates == 0 {
			break
		}
		if c == nil || c.Status == resultVerified || row.Status == groupSettled {
			continue
		}
		if g.Reason == "" {
			g.Reason = c.Reason
		}
		if len(g.Waiting) == 0 {
			ev := Evidence{}
			if t.tx(c.Target) != nil {
				t.gather(&ev, []spend.TxID{c.Target})
			}
			g.Waiting = ev.Missing
		}
	}
	return g, true
}

func (s *snapshot) PendingComponents() iter.Seq2[PendingComponent, error] {
	return func(yield func(PendingComponent, error) bool) {
		var list []PendingComponent
		err := s.look(func(t *txn) {
			done := map[spend.TxID]bool{}
			for e := range t.prefix([]byte{spacePending}, 0) {
				id := txidAt(e.Key, 1)
				if done[id] {
					continue
				}
				c := PendingComponent{}
				for _, piece := range spend.Expand(graph{t}, []spend.TxID{id}, t.budget.Component) {
					for _, members := range [][]spend.Tx{piece.Members, piece.Border} {
						for i := range members {
							if row := t.tx(members[i].ID); row != nil && row.Pending && !done[members[i].ID] {
								done[members[i].ID] = true
								c.Members = append(c.Members, members[i].ID)
							}
						}
					}
				}
				if row := t.tx(id); row != nil {
					c.Reason = spend.Reason(row.Why)
				}
				slices.SortFunc(c.Members, spend.TxID.Compare)
				list = append(list, c)
			}
		})
		if err != nil {
			yield(PendingComponent{}, err)
			return
		}
		for _, c := range list {
			if !yield(c, nil) {
				return
			}
		}
	}
}

func (s *snapshot) Sources() (list []SourceStatus, err error) {
	err = s.look(func(t *txn) {
		for id := uint32(1); id <= t.meta.Sources; id++ {
			row := t.source(id)
			if row == nil {
				return
			}
			st := SourceStatus{
				ID: SourceID(id), Key: row.Key, Active: row.Active, Latest: t.generationOf(SourceID(id), row, row.Latest),
				Quarantined: int(row.Next - row.First),
			}
			st.Limited = row.Pending.Groups >= t.budget.PendingGroups || row.Pending.Bytes >= t.budget.PendingBytes
			if g := t.generation(id, row.Active); g != nil {
				st.Stale = g.Ending != nil
			}
			list = append(list, st)
		}
	})
	return list, err
}

func (s *snapshot) Counts() (c Counts, err error) {
	components := uint64(0)
	for _, err := range s.PendingComponents() {
		if err != nil {
			return Counts{}, err
		}
		components++
	}
	err = s.look(func(t *txn) {
		c = Counts{
			Transactions: t.meta.Transactions, Outputs: map[OutputState]uint64{}, Memberships: t.meta.Memberships,
			Pending: t.meta.Pending, Components: components,
		}
		for i, n := range t.meta.Outputs {
			c.Outputs[outputStates[i]] = n
		}
		for e := range t.prefix([]byte{spaceProjector}, 0) {
			row, _ := plain[projectorRow](t, e.Value)
			c.Projectors = append(c.Projectors, ProjectorStatus{
				Name: string(e.Key[1:]), Projected: row.At, Lag: t.meta.Revision.Accepted - row.At, Failure: row.Failure,
			})
		}
	})
	return c, err
}

// whole is the snapshot as one change: what a rebuilt projector begins with.
func (t *txn) whole() (Change, error) {
	c := Change{Revision: t.meta.Revision, Context: t.context().ID, Kind: "snapshot"}
	for e := range t.prefix([]byte{spaceTx}, 0) {
		if row := t.tx(txidAt(e.Key, 1)); row != nil && !row.Trusted {
			c.Transactions = append(c.Transactions, TxChange{
				ID: txidAt(e.Key, 1), Status: row.shown(), Was: spend.Pending, Pending: row.Pending, Reason: row.reason(), Other: row.Other,
			})
		}
		t.forget()
	}
	for e := range t.prefix([]byte{spaceOutput}, 0) {
		row, _ := plain[outputRow](t, e.Value)
		o := outpointAt(e.Key, 1)
		c.Outputs = append(c.Outputs, OutputChange{
			Outpoint: o, State: outputStates[row.State], Stale: row.Stale, By: row.By, Sources: t.listers(o),
		})
		t.forget()
	}
	for id := uint32(1); id <= t.meta.Sources; id++ {
		s := t.source(id)
		if s == nil || s.Active == 0 {
			continue
		}
		for e := range t.prefix(key(spaceMember, id, s.Active), 0) {
			row, _ := plain[membershipRow](t, e.Value)
			c.Memberships = append(c.Memberships, MembershipChange{
				Source: SourceID(id), Generation: s.Active, Outpoint: outpointAt(e.Key, 13), Present: row.Present, Sequence: row.Sequence,
				Observation: row.Observation,
			})
		}
	}
	return c, t.err
}
