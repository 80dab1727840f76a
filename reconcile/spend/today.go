package spend

import (
	"cmp"
	"container/heap"
	"slices"
)

// rebuild is the second pass.
func (s *selector) rebuild() Selection {
	for i := range s.m {
		s.final[i] = Final(s.tx(i), s.c.Now.NextHeight, s.c.Now.MTP)
	}
	s.reserve()
	sel := Selection{Outcomes: make([]Outcome, len(s.inputs)), Replacements: s.links}
	for _, i := range s.order() {
		o := &sel.Outcomes[i]
		o.ID = s.tx(i).ID
		o.Status, o.Reason, o.Other = s.decide(i)
		if s.eligible[i] {
			o.Eligible, o.EligibleAt = true, s.at[i]
		}
		if s.old[i] >= 0 {
			o.Replaced, o.Replaces = true, s.tx(s.old[i]).ID
		}
		o.ConflictsWith = s.conflicts(i)
	}
	for i := s.m; i < int32(len(s.inputs)); i++ {
		sel.Outcomes[i] = s.included(i)
	}
	return sel
}

// order lists the members as today's choice takes them: by when the first version of each was eligible, then by that
// version's place, then by its own; ancestors first.
func (s *selector) order() []int32 {
	base := make([]int32, s.m)
	for i := range base {
		base[i] = int32(i)
	}
	for _, next := range s.replacers { // in the order of the history: the base of the old one is known
		base[next] = base[s.old[next]]
	}
	sorted := slices.Clone(s.byRank)
	slices.SortStableFunc(sorted, func(a, b int32) int {
		x, y := base[a], base[b]
		if s.eligible[x] != s.eligible[y] {
			if s.eligible[x] {
				return -1
			}
			return 1
		}
		if s.eligible[x] {
			if c := cmp.Compare(s.at[x], s.at[y]); c != 0 {
				return c
			}
		}
		return cmp.Or(cmp.Compare(s.rank[x], s.rank[y]), cmp.Compare(s.rank[a], s.rank[b]))
	})

	place := make([]int32, s.m)
	open := make([]int32, s.m) // parents that have not been taken
	queue := ranked{key: place}
	for k, i := range sorted {
		place[i] = int32(k)
		for _, p := range s.parents[i] {
			if p < s.m {
				open[i]++
			}
		}
		if open[i] == 0 {
			queue.list = append(queue.list, i)
		}
	}
	heap.Init(&queue)
	list := make([]int32, 0, s.m)
	for queue.Len() > 0 {
		i := heap.Pop(&queue).(int32)
		list = append(list, i)
		for _, child := range s.children[i] {
			if open[child]--; open[child] == 0 {
				heap.Push(&queue, child)
			}
		}
	}
	if len(list) < len(sorted) {
		// Ids are hashes, so that nothing descends from itself; whoever says so has no place in any order.
		for _, i := range sorted {
			if open[i] > 0 {
				list = append(list, i)
			}
		}
	}
	return list
}

// decide gives the status of one member, all that come before it being decided.
func (s *selector) decide(i int32) (Status, Reason, TxID) {
	t := s.tx(i)
	switch {
	case !t.Ready && t.Why != NoReason:
		return Unresolved, t.Why, t.Missing
	case !t.Ready:
		return Unresolved, MissingDependency, s.missing(i)
	case t.Result == Invalid:
		return InvalidTx, ScriptInvalid, TxID{}
	case t.Result == Limited:
		return LimitedTx, OverBudget, TxID{}
	case !t.Usable && t.Why != NoReason:
		return Unresolved, t.Why, t.Missing
	case !t.Usable || s.unknown[i] >= 0:
		return Unresolved, AnchorLost, s.missing(i)
	case s.next[i] >= 0:
		return Conflicting, ReplacedBy, s.tx(s.next[i]).ID
	}
	for _, p := range s.parents[i] {
		switch {
		case s.usable(p):
		case s.state[p] == chosen:
			return DependentConflict, ParentNonFinal, s.tx(p).ID
		default:
			return DependentConflict, ParentLost, s.tx(p).ID
		}
	}
	if !s.c.NonFinal && !s.final[i] {
		return Unsupported, NonFinalDisabled, TxID{}
	}
	for _, n := range s.inputs[i] {
		switch h := s.holder[n]; {
		case h >= s.m:
			return Conflicting, IncludedElsewhere, s.tx(h).ID
		case h >= 0:
			return Conflicting, FirstSeen, s.tx(h).ID
		}
	}
	s.take(i)
	if s.final[i] {
		return SelectedFinal, NoReason, TxID{}
	}
	return SelectedNonFinal, NoReason, TxID{}
}

// missing is the first parent that is not known, or nothing.
func (s *selector) missing(i int32) TxID {
	if k := s.unknown[i]; k >= 0 {
		return s.tx(i).Inputs[k].TxID
	}
	return TxID{}
}

// alternative reports whether a transaction can be anybody's competitor.
func (s *selector) alternative(i int32) bool {
	t := s.tx(i)
	return i >= s.m || t.Ready && t.Usable && t.Result != Invalid && t.Result != Limited
}

// conflicts lists the usable transactions that share an input with i.
func (s *selector) conflicts(i int32) []TxID {
	if !s.alternative(i) {
		return nil
	}
	var list []TxID
	for _, n := range s.inputs[i] {
		if len(s.spenders[n]) == 1 {
			continue
		}
		rivals := s.rivals(n)
		list = slices.Grow(list, len(rivals))
		for _, j := range rivals {
			if j != i {
				list = append(list, s.tx(j).ID)
			}
		}
	}
	slices.SortFunc(list, TxID.Compare)
	list = slices.Compact(list)
	return slices.Clip(list[:min(len(list), MaxConflicts)])
}

// rivals returns enough of those that could spend an outpoint: the least ids, one more than the bound, in order.
func (s *selector) rivals(n int32) []int32 {
	if s.least == nil {
		s.least = make([][]int32, len(s.spenders))
	}
	if s.least[n] == nil {
		list := slices.DeleteFunc(slices.Clone(s.spenders[n]), func(i int32) bool { return !s.alternative(i) })
		slices.SortFunc(list, func(a, b int32) int { return s.tx(a).ID.Compare(s.tx(b).ID) })
		s.least[n] = slices.Clip(list[:min(len(list), MaxConflicts+1)])
	}
	return s.least[n]
}
