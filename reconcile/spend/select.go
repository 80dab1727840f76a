package spend

import (
	"container/heap"
	"math"
	"slices"
)

// Select decides one component: first the history, over its frontiers in the contexts in force at them, which says who was
// eligible when and which version replaced which; then today, in the order that the history gave, under the view in force.
func Select(c *Component) Selection {
	s := prepare(c)
	s.contradict()
	if slices.Contains(s.broken, true) {
		return s.waits(Contradiction, TxID{})
	}
	if i := s.barrier(); i >= 0 {
		return s.waits(BarrierOpen, s.tx(i).ID)
	}
	s.replay()
	return s.rebuild()
}

// phase is where a member stands within one pass.
type phase uint8

const (
	waiting phase = iota
	chosen
	conflicted // lost a reservation: for good within the pass
	replaced   // displaced by another version: for good
)

// selector is one run of Select. Members are numbered 0 to m-1 in the caller's order, border transactions from m on.
type selector struct {
	c *Component
	m int32

	// Built by prepare.
	index    map[TxID]int32
	byRank   []int32   // members in total order
	rank     []int32   // of each member
	parents  [][]int32 // of each member, distinct, in input order, without trusted ones
	unknown  []int32   // of each member: the first input whose creator is not known, or -1
	children [][]int32 // of each member, members only
	inputs   [][]int32 // of everyone, as distinct outpoint numbers
	spenders [][]int32 // of each outpoint number, ascending
	least    [][]int32 // of each outpoint number: see rivals
	broken   []bool    // of the border: see contradict

	// The history.
	final     []bool // in the view at hand
	arrived   []bool
	state     []phase
	holder    []int32 // of each outpoint number, or -1
	eligible  []bool
	at        []uint64 // meaningful when eligible
	old       []int32  // whom a member replaced, or -1
	next      []int32  // who replaced it, or -1
	links     []Replacement
	replacers []int32 // of each link, the new version
	queue     ranked
}

func (s *selector) tx(i int32) *Tx {
	if i < s.m {
		return &s.c.Members[i]
	}
	return &s.c.Border[i-s.m]
}

func prepare(c *Component) *selector {
	m, all := len(c.Members), len(c.Members)+len(c.Border)
	s := &selector{
		c: c, m: int32(m),
		index:    make(map[TxID]int32, all),
		byRank:   make([]int32, m),
		rank:     make([]int32, m),
		parents:  make([][]int32, m),
		unknown:  make([]int32, m),
		children: make([][]int32, m),
		inputs:   make([][]int32, all),
	}
	for i := range int32(all) {
		s.index[s.tx(i).ID] = i
	}
	for i := range s.byRank {
		s.byRank[i] = int32(i)
	}
	slices.SortFunc(s.byRank, func(a, b int32) int { return Before(&c.Members[a], &c.Members[b]) })
	for r, i := range s.byRank {
		s.rank[i] = int32(r)
	}
	outpoints := make(map[Outpoint]int32, all)
	for i := range int32(all) {
		t := s.tx(i)
		s.inputs[i] = make([]int32, 0, len(t.Inputs))
		for _, in := range t.Inputs {
			n, ok := outpoints[in.Outpoint]
			if !ok {
				n = int32(len(s.spenders))
				outpoints[in.Outpoint] = n
				s.spenders = append(s.spenders, nil)
			}
			// Whoever spends an outpoint last is the only one who can be listed twice.
			if list := s.spenders[n]; len(list) == 0 || list[len(list)-1] != i {
				s.spenders[n] = append(list, i)
				s.inputs[i] = append(s.inputs[i], n)
			}
		}
		if i < s.m {
			s.link(i, t)
		}
	}
	return s
}

// link notes the parents of a member. Many inputs may come from one parent.
func (s *selector) link(i int32, t *Tx) {
	s.unknown[i] = -1
	for k, in := range t.Inputs {
		if k > 0 && in.TxID == t.Inputs[k-1].TxID || s.trusted(in.TxID) {
			continue
		}
		p, ok := s.index[in.TxID]
		switch {
		case !ok:
			if s.unknown[i] < 0 {
				s.unknown[i] = int32(k)
			}
		case p >= s.m:
			s.parents[i] = append(s.parents[i], p)
		default:
			if list := s.children[p]; len(list) == 0 || list[len(list)-1] != i {
				s.children[p] = append(list, i)
				s.parents[i] = append(s.parents[i], p)
			}
		}
	}
}

func (s *selector) trusted(id TxID) bool { return s.c.Trusted != nil && s.c.Trusted(id) }

// contradict finds who in the border cannot be in one chain with what else is forced.
func (s *selector) contradict() {
	s.broken = make([]bool, len(s.c.Border))
	for _, list := range s.spenders {
		if len(list) < 2 || list[len(list)-2] < s.m {
			continue
		}
		for _, i := range list {
			if i >= s.m {
				s.broken[i-s.m] = true
			}
		}
	}
	for i := range s.c.Border {
		t := &s.c.Border[i]
		s.broken[i] = s.broken[i] || t.Contradicted
		for _, in := range t.Inputs {
			if p, ok := s.index[in.TxID]; ok && s.tx(p).Result == Invalid {
				s.broken[i] = true
			}
		}
	}
}

// barrier returns the first member, in total order, that is ready, can be decided and is not, or -1.
func (s *selector) barrier() int32 {
	for _, i := range s.byRank {
		t := s.tx(i)
		if t.Ready && t.SupportedToday && !t.Usable && t.Result != Invalid && t.Result != Limited {
			return i
		}
	}
	return -1
}

// waits is the selection that publishes nothing new: what is included stays so, unless that is what the trouble is.
func (s *selector) waits(why Reason, other TxID) Selection {
	sel := Selection{Barrier: why == BarrierOpen, Contradiction: why == Contradiction, Outcomes: make([]Outcome, len(s.inputs))}
	for i := range int32(len(s.inputs)) {
		if i >= s.m && !s.broken[i-s.m] {
			sel.Outcomes[i] = s.included(i)
			continue
		}
		sel.Outcomes[i] = Outcome{ID: s.tx(i).ID, Status: Pending, Reason: why, Other: other}
	}
	return sel
}

func (s *selector) included(i int32) Outcome {
	return Outcome{ID: s.tx(i).ID, Status: Included, ConflictsWith: s.conflicts(i)}
}

// reserve gives the border its inputs and takes everything else back.
func (s *selector) reserve() {
	s.state = make([]phase, s.m)
	s.holder = make([]int32, len(s.spenders))
	for n := range s.holder {
		s.holder[n] = -1
	}
	for i := s.m; i < int32(len(s.inputs)); i++ {
		for _, n := range s.inputs[i] {
			s.holder[n] = i
		}
	}
}

// usable reports whether parent p can be built on in the view at hand.
func (s *selector) usable(p int32) bool { return p >= s.m || s.state[p] == chosen && s.final[p] }

func (s *selector) take(i int32) {
	s.state[i] = chosen
	for _, n := range s.inputs[i] {
		s.holder[n] = i
	}
}

// replay is the first pass.
func (s *selector) replay() {
	s.reserve()
	s.final = make([]bool, s.m)
	s.arrived = make([]bool, s.m)
	s.eligible = make([]bool, s.m)
	s.at = make([]uint64, s.m)
	s.old = make([]int32, s.m)
	s.next = make([]int32, s.m)
	for i := range s.m {
		s.old[i], s.next[i] = -1, -1
	}
	s.queue.key = s.rank

	views := slices.Clone(s.c.Views)
	if n := len(views); n == 0 || views[n-1].At <= s.c.Now.At {
		views = append(views, s.c.Now)
	}
	locks := s.locks(views[0])
	coming := s.byRank
	for i, r := range coming {
		if !s.tx(r).Ready {
			coming = coming[:i]
			break
		}
	}
	for v := 1; len(coming) > 0 || v < len(views); {
		f := uint64(math.MaxUint64)
		if len(coming) > 0 {
			f = s.tx(coming[0]).ReadyAt
		}
		if v < len(views) {
			f = min(f, views[v].At)
		}
		for ; v < len(views) && views[v].At <= f; v++ {
			locks.move(views[v], s.flip)
		}
		for ; len(coming) > 0 && s.tx(coming[0]).ReadyAt <= f; coming = coming[1:] {
			s.arrived[coming[0]] = true
			s.push(coming[0])
		}
		for s.queue.Len() > 0 {
			s.consider(heap.Pop(&s.queue).(int32), f)
		}
	}
}

// push queues a member that the frontier at hand may admit.
func (s *selector) push(i int32) {
	if s.arrived[i] && s.state[i] == waiting && s.unknown[i] < 0 && s.tx(i).Usable {
		heap.Push(&s.queue, i)
	}
}

// flip notes a changed finality. Only those who gain by it are considered again: what was selected stays so.
func (s *selector) flip(i int32, final bool) {
	s.final[i] = final
	if final {
		s.push(i)
		s.release(i)
	}
}

// release queues those that a usable parent may have been missing to.
func (s *selector) release(i int32) {
	if !s.usable(i) {
		return
	}
	for _, child := range s.children[i] {
		s.push(child)
	}
}

// consider tries one candidate at frontier f.
func (s *selector) consider(i int32, f uint64) {
	if s.state[i] != waiting || !s.c.NonFinal && !s.final[i] {
		return
	}
	for _, p := range s.parents[i] {
		if !s.usable(p) {
			return
		}
	}
	if !s.eligible[i] {
		s.eligible[i], s.at[i] = true, f
	}
	free, h := true, int32(-1) // h: the one holder, -1 when there are several
	for _, n := range s.inputs[i] {
		switch held := s.holder[n]; {
		case held < 0 || held == h:
		case free:
			free, h = false, held
		default:
			h = -1
		}
		if !free && h < 0 {
			break
		}
	}
	switch {
	case free:
	case h >= 0 && h < s.m && !s.final[h] && Increases(s.tx(h), s.tx(i)):
		s.state[h] = replaced
		for _, n := range s.inputs[h] {
			s.holder[n] = -1
		}
		s.old[i], s.next[h] = h, i
		s.replacers = append(s.replacers, i)
		s.links = append(s.links, Replacement{Previous: s.tx(h).ID, Next: s.tx(i).ID, At: f})
	default:
		s.state[i] = conflicted
		return
	}
	s.take(i)
	s.release(i)
}

// ranked is a heap of members by a key.
type ranked struct {
	key  []int32
	list []int32
}

func (q *ranked) Len() int           { return len(q.list) }
func (q *ranked) Less(i, j int) bool { return q.key[q.list[i]] < q.key[q.list[j]] }
func (q *ranked) Swap(i, j int)      { q.list[i], q.list[j] = q.list[j], q.list[i] }
func (q *ranked) Push(x any)         { q.list = append(q.list, x.(int32)) }
func (q *ranked) Pop() any {
	n := len(q.list) - 1
	x := q.list[n]
	q.list = q.list[:n]
	return x
}

// locks are the members whose finality depends on the view, by lock time.
type locks struct {
	c               *Component
	heights, times  []int32
	height, seconds uint64 // the limits at hand
}

func (s *selector) locks(v View) *locks {
	l := &locks{c: s.c, height: v.NextHeight, seconds: v.MTP}
	for i := range s.m {
		t := s.tx(i)
		s.final[i] = Final(t, v.NextHeight, v.MTP)
		switch {
		case !Locked(t.Inputs, t.LockTime):
		case t.LockTime < LockTimeThreshold:
			l.heights = append(l.heights, i)
		default:
			l.times = append(l.times, i)
		}
	}
	byTime := func(a, b int32) int { return int(int64(s.tx(a).LockTime) - int64(s.tx(b).LockTime)) }
	slices.SortStableFunc(l.heights, byTime)
	slices.SortStableFunc(l.times, byTime)
	return l
}

// move changes to another view and tells whose finality changed.
func (l *locks) move(v View, flip func(i int32, final bool)) {
	l.between(l.heights, l.height, v.NextHeight, flip)
	l.between(l.times, l.seconds, v.MTP, flip)
	l.height, l.seconds = v.NextHeight, v.MTP
}

// between tells of those whose lock time is passed when the limit goes from one value to another, either way.
func (l *locks) between(list []int32, from, to uint64, flip func(i int32, final bool)) {
	at := func(limit uint64) int {
		k, _ := slices.BinarySearchFunc(list, limit, func(i int32, limit uint64) int {
			if uint64(l.c.Members[i].LockTime) < limit {
				return -1
			}
			return 1
		})
		return k
	}
	for _, i := range list[at(min(from, to)):at(max(from, to))] {
		flip(i, to > from)
	}
}
