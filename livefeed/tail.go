package livefeed

import (
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// The tail is the end of a feed's log as this process knows it: the last groups, and what one statement, or the transaction
// of a commit, said of the feed beside them. It is a cache of what the log holds and never a source: whatever does not fit it
// exactly (a gap, another tag, another era, a position before it) is dropped, or left to the log itself.
//
//	start      start+1 ... head
//	  |           groups          at: head, its tag, T, due, floor, epoch: all of one instant
//	  '- its tag is known too
//
// Groups come from the committer, after its commit returned, and from looks: a look is one statement that checks what the
// log's own read would check, and brings the groups that are not known yet. Looks are shared: everybody who asks while one is
// under way gets the next, which begins after they asked.

const (
	// tailWindow is how far before the head a position may be for a look to be shared; who is further behind reads alone.
	tailWindow = 256
	// lookPage bounds the groups that one statement of a look brings, and lookPages the statements of a look.
	lookPage  = 256
	lookPages = 16
	// tailFresh is how old what is known may be for a reader that was woken.
	tailFresh = time.Second
)

// instant is what was true of a feed at one moment.
type instant struct {
	life   uint64 // of the tail: positions of different lives do not go together
	head   uint64
	tag    [8]byte
	now    uint64 // T
	due    bool   // a timer with a deadline <= now may not be in the log
	floor  uint64 // at least
	epoch  string
	broken uint64
	at     time.Time // of this process, not after the moment
}

// recent is a group of the tail. Its changes are read from its record when somebody first wants them.
type recent struct {
	sequence, committedAt uint64
	tag                   [8]byte
	selectors             []Selector // sorted
	length                int        // of the record
	weight                int64      // bytes that it takes once it is read

	once    sync.Once
	record  []byte // nil once it is read
	changes []Change
	err     error
}

func (g *recent) read() ([]Change, error) {
	g.once.Do(func() {
		if g.record != nil {
			g.changes, g.err = decodeRecord(g.record)
			g.record = nil
		}
	})
	return g.changes, g.err
}

// tail has its bounds, and is off when one of them is not positive.
type tail struct {
	// Static.
	maxGroups int
	maxBytes  int64
	fresh     time.Duration
	gauges    [2]prometheus.Gauge

	// mu guards what follows. It is held for no I/O and before no other lock.
	mu       sync.RWMutex
	known    bool
	life     uint64 // counts beginnings and drops
	start    uint64
	startTag [8]byte
	groups   []*recent // start+1, start+2, ... at.head
	bytes    int64
	era      uint64  // the feed's last break that is known here
	told     uint64  // the latest T that anybody was told
	at       instant // without epoch: nothing is known but the position

	running, next *look
}

func (t *tail) init(groups int, bytes int64, gauges [2]prometheus.Gauge) {
	t.maxGroups, t.maxBytes, t.fresh, t.gauges = groups, bytes, tailFresh, gauges
}

func (t *tail) off() bool { return t.maxGroups <= 0 || t.maxBytes <= 0 || failpoint.MutantBigserial }

// begin makes a position all that is known. The caller holds mu.
func (t *tail) begin(era, head uint64, tag [8]byte) {
	t.forget()
	if era > t.era {
		t.told = 0 // history may have been rewritten, and T with it
	}
	t.era = era
	if t.off() || head > maxSequence {
		return
	}
	t.known, t.start, t.startTag = true, head, tag
	t.at = instant{life: t.life, head: head, tag: tag, broken: era}
}

// forget drops everything. The caller holds mu.
func (t *tail) forget() {
	t.known, t.groups, t.bytes, t.at = false, nil, 0, instant{}
	t.life++
	t.measure()
}

func (t *tail) measure() {
	t.gauges[0].Set(float64(len(t.groups)))
	t.gauges[1].Set(float64(t.bytes))
}

// drop forgets a life of the tail, if it still lasts.
func (t *tail) drop(life uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known && t.life == life {
		t.forget()
	}
}

// turn says that the feed is in an era: what is known of an earlier one is void, and so is what a commit still brings of it.
func (t *tail) turn(era uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if era > t.era {
		t.forget()
		t.era, t.told = era, 0
	}
}

// raise says that the floor is at least this.
func (t *tail) raise(floor uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.floor = max(t.at.floor, floor)
}

// add appends the next group and keeps the bounds. The caller holds mu.
func (t *tail) add(g *recent) {
	t.groups = append(t.groups, g)
	t.bytes += g.weight
	drop := 0
	for len(t.groups)-drop > t.maxGroups || t.bytes > t.maxBytes && drop < len(t.groups) {
		first := t.groups[drop]
		t.start, t.startTag = first.sequence, first.tag
		t.bytes -= first.weight
		t.groups[drop] = nil // the array outlives the slice
		drop++
	}
	t.groups = t.groups[drop:]
	t.at.head, t.at.tag = g.sequence, g.tag
}

// commit takes the groups of a plan that is committed. waiting: somebody waits for groups of this feed.
func (t *tail) commit(pl *plan, waiting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.off() || pl.era < t.era:
		return
	case t.known && pl.era == t.era && t.at.head >= pl.head:
		return // a look found them first
	case t.known && pl.era == t.era && t.at.head == pl.first && t.at.tag == pl.firstTag:
	case t.known && pl.era == t.era && t.at.head < pl.first && waiting:
		return // groups of others are in between: a look brings all of them
	default:
		t.begin(pl.era, pl.first, pl.firstTag)
	}
	for i := range pl.groups {
		g := &pl.groups[i]
		t.add(&recent{sequence: g.Sequence, committedAt: g.CommittedAt, tag: g.Tag, selectors: pl.selectors[i],
			length: len(pl.records[i]), weight: weigh(g.Changes), record: pl.records[i]})
	}
	// Under the head lock the statement that read the clock saw everything before the plan's groups; a put is never due at once.
	t.at.now, t.at.due, t.at.epoch, t.at.broken, t.at.at = pl.now, pl.due, pl.epoch, pl.era, pl.began
	if pl.now < t.told { // somebody looked meanwhile, and a second began: no answer goes back behind it
		t.at.epoch = ""
	}
	t.measure()
}

// tagAt returns the tag of a position that the tail holds. The caller holds mu.
func (t *tail) tagAt(sequence uint64) (tag [8]byte, ok bool) {
	switch {
	case !t.known || sequence < t.start || sequence > t.at.head:
		return tag, false
	case sequence == t.start:
		return t.startTag, true
	}
	return t.groups[sequence-t.start-1].tag, true
}

// tell says that somebody was told a T.
func (t *tail) tell(now uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = max(t.told, now)
}

// latest returns what is known best.
func (t *tail) latest() instant {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.at
}

// page answers as [Feed.Log] would have at an instant; ok is false when that is not certain.
func (t *tail) page(at instant, l LogQuery, budget int64) (page LogPage, ok bool) {
	list, full, ok := t.candidates(at, l, budget)
	if !ok {
		return LogPage{}, false
	}
	page = LogPage{Full: full, Examined: at.head, Head: at.head, HeadTag: at.tag, Now: at.now, Due: at.due, Epoch: at.epoch, Broken: at.broken}
	if len(list) > 0 {
		page.Groups = make([]Group, 0, len(list))
	}
	for _, g := range list {
		changes, err := g.read()
		if err != nil {
			return LogPage{}, false // the log says what is wrong with it
		}
		page.Groups = append(page.Groups, Group{Sequence: g.sequence, Tag: g.tag, CommittedAt: g.committedAt, Changes: changes})
	}
	if full {
		page.Examined = list[len(list)-1].sequence
	}
	return page, true
}

// candidates are what the statements of [Feed.Log] choose.
func (t *tail) candidates(at instant, l LogQuery, budget int64) (list []*recent, full, ok bool) {
	drive, _ := driver(l.Selectors)
	t.mu.RLock()
	defer t.mu.RUnlock()
	tag, held := t.tagAt(l.After)
	if !held || t.life != at.life || at.epoch == "" || at.head > t.at.head || l.After > at.head || l.After < max(at.floor, t.at.floor) || tag != l.AfterTag {
		return nil, false, false
	}
	var before int64
	for _, g := range t.groups[l.After-t.start : at.head-t.start] {
		if drive != nil && !g.posted(*drive) && !g.posted(All) {
			continue
		}
		if before >= budget {
			return list, true, true
		}
		list = append(list, g)
		if len(list) == l.Limit {
			return list, true, true
		}
		before += int64(g.length)
	}
	return list, false, true
}

func (g *recent) posted(s Selector) bool {
	_, found := slices.BinarySearchFunc(g.selectors, s, compareSelectors)
	return found
}

// news is what the groups after published mean to waiters, up to the head that is known; ok is false if the tail
// does not reach from there to target.
func (t *tail) news(r reach) (a announcement, last uint64, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.known || t.era != r.era || r.published < t.start || t.at.head < r.target {
		return announcement{}, 0, false
	}
	for _, g := range t.groups[r.published-t.start:] {
		a.add(g.selectors)
	}
	return a, t.at.head, true
}

// take puts what a look found into the tail. Meanwhile the committer may have put it there, and more.
func (t *tail) take(at *instant, fresh []*recent, full bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || t.life != at.life {
		return errNoTail
	}
	if at.broken != t.era {
		if at.broken > t.era {
			t.begin(at.broken, at.head, at.tag)
		}
		return errNoTail
	}
	for _, g := range fresh {
		if g.sequence > t.at.head {
			t.add(g)
			t.at.epoch = "" // until all of it is here
		} else if tag, held := t.tagAt(g.sequence); held && tag != g.tag {
			t.forget()
			return errNoTail
		}
	}
	t.measure()
	if tag, held := t.tagAt(at.head); !full && (!held || tag != at.tag) {
		t.forget()
		return errNoTail
	}
	t.told = max(t.told, at.now)
	floor := max(t.at.floor, at.floor)
	if !full && t.at.head == at.head {
		t.at = *at
	}
	t.at.floor = floor
	return nil
}

// reachable prepares the tail for a position and reports whether a look may serve it, when the feed's head is at least head. A tail
// that knows nothing, or has fallen far behind, begins at the position, and the look finds out whether that was right.
func (t *tail) reachable(l LogQuery, head uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.off() || head > l.After+tailWindow {
		return false
	}
	if !t.known || max(head, l.After) > t.at.head+lookPage {
		t.begin(t.era, l.After, l.AfterTag)
	}
	return l.After >= max(t.start, t.at.floor) && l.After+tailWindow >= t.at.head
}

// weigh returns about how many bytes the changes take in memory.
func weigh(changes []Change) int64 {
	const entry = int64(unsafe.Sizeof(recent{})) + 64 // and its selectors
	n := entry
	for i := range changes {
		c := &changes[i]
		n += int64(unsafe.Sizeof(*c)) + int64(len(c.Reason)+len(c.ContextID)) + c.Before.weigh()
		if c.After != c.Before {
			n += c.After.weigh()
		}
	}
	return n
}

func (s *State) weigh() int64 {
	const word, text = 16, 16 // the smallest allocation, and what a string takes besides its bytes
	if s == nil {
		return 0
	}
	n := int64(unsafe.Sizeof(*s)) + int64(len(s.Readers)*len([33]byte{})) + int64(len(s.Order))
	for _, a := range s.Attributes {
		n += int64(unsafe.Sizeof(a)) + int64(max(word, len(a.Name)))
		for _, v := range a.Values {
			n += text + int64(max(word, len(v))) + int64(len(Selector{}))
		}
	}
	if s.Context != nil {
		n += int64(unsafe.Sizeof(*s.Context)) + int64(len(s.Context.Schema)+len(s.Context.Bytes))
	}
	return n
}
