package crash

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// Kind says what promise a finding is about.
type Kind string

// The kinds.
const (
	Lost     Kind = "lost"     // an acknowledged or relevant group that did not come, or not as it was
	Doubled  Kind = "doubled"  // one that came twice, or that nobody ordered
	Order    Kind = "order"    // out of order, out of range, or watermarks that fall
	Unstable Kind = "unstable" // read again it was something else
	Snapshot Kind = "snapshot" // not the model at W and T
	Reset    Kind = "reset"    // a session ended within its promise
	Late     Kind = "late"     // a wake-up was lost, or an answer took too long
	Leaked   Kind = "leaked"   // a prohibited row was served
	Refused  Kind = "refused"  // an answer that fits no situation the lab made
)

// LatestWake is how long a poll that is outstanding may stay unanswered once a group for it was acknowledged, with nothing broken.
const LatestWake = 5 * time.Second

// Finding is one broken promise.
type Finding struct {
	Kind Kind
	Text string
}

func (f Finding) String() string { return string(f.Kind) + ": " + f.Text }

// Ledger collects what was acknowledged and delivered. It is safe for concurrent use.
type Ledger struct {
	// Sparse says that sequences have gaps, as those of a mutant may: then nothing is said of sequences nobody told of.
	Sparse bool

	mu        sync.Mutex
	findings  []Finding
	groups    map[uint64]*acknowledged
	keys      map[string]uint64
	sessions  []*Session
	faults    []span
	broken    time.Time             // when something was broken that is not mended yet; zero: nothing is
	forbidden map[Outpoint][]ruling // rows that are ever prohibited are judged by X10 alone
	voids     []ruling              // breaks of the epoch
}

type acknowledged struct {
	key   string
	edits []Edit
	at    time.Time
}

type span struct{ from, to time.Time }

type ruling struct {
	lift        bool
	asked, done time.Time // done zero: not acknowledged yet
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{groups: map[uint64]*acknowledged{}, keys: map[string]uint64{}, forbidden: map[Outpoint][]ruling{}}
}

// Find adds a finding of the lab's own.
func (l *Ledger) Find(kind Kind, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.find(kind, format, args...)
}

func (l *Ledger) find(kind Kind, format string, args ...any) {
	l.findings = append(l.findings, Finding{kind, fmt.Sprintf(format, args...)})
}

// Acknowledge records that the group of a key was acknowledged at a sequence. Edits must not change any more.
func (l *Ledger) Acknowledge(key string, sequence uint64, edits []Edit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.keys[key]; ok {
		if was != sequence {
			l.find(Doubled, "the group %s was acknowledged at %d and at %d", key, was, sequence)
		}
		return
	}
	if other := l.groups[sequence]; other != nil {
		l.find(Lost, "the groups %s and %s were both acknowledged at %d", other.key, key, sequence)
		return
	}
	l.keys[key] = sequence
	l.groups[sequence] = &acknowledged{key: key, edits: edits, at: time.Now()}
}

// Keys returns every acknowledged key with its sequence.
func (l *Ledger) Keys() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}

// Break says that something is broken from now on: polls may be late until Mend and a little after.
func (l *Ledger) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken.IsZero() {
		l.broken = time.Now()
	}
}

// Mend ends what Break began.
func (l *Ledger) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken.IsZero() {
		l.faults = append(l.faults, span{l.broken, time.Now().Add(LatestWake)})
		l.broken = time.Time{}
	}
}

// Forbidden says that a row will be prohibited some time: what readers see of it is judged by X10 alone.
func (l *Ledger) Forbidden(o Outpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forbidden[o] = append(l.forbidden[o], ruling{lift: true})
}

// Forbid records that a prohibition of a row, or its end, is asked for; call the result when it is acknowledged. Rulings of one
// row follow one another.
func (l *Ledger) Forbid(o Outpoint, lift bool) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.forbidden[o])
	l.forbidden[o] = append(l.forbidden[o], ruling{lift: lift, asked: time.Now()})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forbidden[o][i].done = time.Now()
	}
}

// Void records that the epoch is about to be broken: sessions opened before may be reset. Call the result when it is
// acknowledged: from then on they must be.
func (l *Ledger) Void() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.voids)
	l.voids = append(l.voids, ruling{asked: time.Now()})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.voids[i].done = time.Now()
	}
}

// Session is one session of one reader. A reader uses it from one goroutine.
type Session struct {
	Name  string
	Query Query
	Life  uint64 // sessionSeconds of its service

	ledger   *Ledger
	began    time.Time // when its Open was first sent
	answered time.Time // when that had its answer
	opened   bool
	scope    wire.Scope
	w, t     uint64
	expires  uint64
	complete bool // the snapshot was read to its end
	through  uint64
	snapshot []wire.Group
	live     []wire.Group
	polls    []poll
	ended    bool // by the reader or an operator: it may be refused from now on
}

// poll is one answered read of the log.
type poll struct {
	asked, answered time.Time
	first           uint64 // sequence of its first group; 0: none
}

// Begin starts the record of a session whose Open is about to be sent.
func (l *Ledger) Begin(name string, query Query, life uint64) *Session {
	s := &Session{Name: name, Query: query, Life: life, ledger: l, began: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions = append(l.sessions, s)
	return s
}

// Opened records the first batch.
func (s *Session) Opened(b *wire.Batch) {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	s.answered = time.Now()
	s.opened, s.scope, s.w, s.through, s.expires = true, b.Scope, b.Through, b.Through, b.ExpiresAt
	s.t = b.ExpiresAt - s.Life
	if b.Phase != wire.PhaseSnapshot {
		s.ledger.find(Order, "%s: an Open was answered in the phase %s", s.Name, b.Phase)
	}
	s.snapshot = append(s.snapshot, b.Groups...)
	s.complete = b.SnapshotComplete
}

// Delivered records the answer to a read that was sent at a time: the next page, or what the log had.
func (s *Session) Delivered(b *wire.Batch, asked time.Time) {
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.voids {
		if v.asked.After(s.answered) && !v.done.IsZero() && v.done.Before(asked) {
			l.find(Leaked, "%s: a session was served behind a break of its epoch", s.Name)
		}
	}
	if b.Scope != s.scope || b.ExpiresAt != s.expires {
		l.find(Unstable, "%s: scope or deadline changed within a session", s.Name)
	}
	if !s.complete {
		if b.Phase != wire.PhaseSnapshot || b.Through != s.w {
			l.find(Order, "%s: a page of the snapshot at %d is %s at %d", s.Name, s.w, b.Phase, b.Through)
		}
		s.snapshot = append(s.snapshot, b.Groups...)
		s.complete = b.SnapshotComplete
		return
	}
	p := poll{asked: asked, answered: time.Now()}
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Sequence <= s.through {
			l.find(Order, "%s: group %d came after %d was read through", s.Name, g.Sequence, s.through)
		}
	}
	if b.Phase != wire.PhaseLive || b.Through < s.through {
		l.find(Order, "%s: behind %d came %s through %d", s.Name, s.through, b.Phase, b.Through)
	}
	if len(b.Groups) > 0 {
		p.first = b.Groups[0].Sequence
	}
	s.polls = append(s.polls, p)
	s.live = append(s.live, b.Groups...)
	s.through = max(s.through, b.Through)
}

// Through is how far the session was read.
func (s *Session) Through() uint64 { return s.through }

// Complete reports whether the snapshot was read to its end.
func (s *Session) Complete() bool { return s.complete }

// Expired reports whether the session's deadline has come.
func (s *Session) Expired() bool { return s.opened && uint64(time.Now().Unix()) >= s.expires }

// Again compares two answers to the same read: one must begin with the groups of the other.
func (s *Session) Again(first, again *wire.Batch) {
	n := min(len(first.Groups), len(again.Groups))
	same := first.Phase == again.Phase
	for i := range n {
		same = same && sameGroup(&first.Groups[i], &again.Groups[i])
	}
	if len(first.Groups) > len(again.Groups) && again.Limits.MaxObservations >= first.Limits.MaxObservations && again.Limits.MaxBytes >= first.Limits.MaxBytes {
		same = false
	}
	if !same {
		s.ledger.Find(Unstable, "%s: a read behind the same cursor gave %s, then %s", s.Name, sequences(first), sequences(again))
	}
}

func sequences(b *wire.Batch) string {
	var list []uint64
	for i := range b.Groups {
		list = append(list, b.Groups[i].Sequence)
	}
	return fmt.Sprintf("%s %v", b.Phase, list)
}

func sameGroup(a, b *wire.Group) bool {
	return a.ID == b.ID && a.Sequence == b.Sequence && slices.EqualFunc(a.Observations, b.Observations, func(x, y wire.Observation) bool {
		return bytes.Equal(x.Canonical, y.Canonical)
	})
}

// Reopened compares the bytes of a repeated Open with the first ones.
func (s *Session) Reopened(first, again []byte) {
	if !bytes.Equal(first, again) {
		s.ledger.Find(Unstable, "%s: a repeated Open was answered with %d other bytes than the %d of the first", s.Name, len(again), len(first))
	}
}

// End says that the session may be refused from now on: it is being closed or removed.
func (s *Session) End() {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	s.ended = true
}

// Refused judges that a session which was open is refused (X8).
func (s *Session) Refused(code wire.Code) {
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.ended, uint64(time.Now().Unix()) >= s.expires:
		return
	case code == wire.ResetRequired && (l.mayProhibit(s) || l.mayBreak(s)):
		return
	}
	l.find(Reset, "%s: %s at through %d (W %d), %d s before its deadline", s.Name, code, s.through, s.w, s.expires-uint64(time.Now().Unix()))
}

// mayProhibit reports whether the session could have had to serve a row that was prohibited during its life.
func (l *Ledger) mayProhibit(s *Session) bool {
	if len(s.Query) > 0 {
		return false // such rows match no query but the one for every row
	}
	for _, list := range l.forbidden {
		for _, r := range list {
			if !r.lift && (r.done.IsZero() || r.done.After(s.began)) {
				return true
			}
		}
	}
	return false
}

// mayBreak reports whether the epoch may have been broken since the session began.
func (l *Ledger) mayBreak(s *Session) bool {
	return slices.ContainsFunc(l.voids, func(v ruling) bool { return v.done.IsZero() || v.done.After(s.began) })
}

// Disclosed judges a batch that answered a request sent at a time (X10).
func (l *Ledger) Disclosed(b *wire.Batch, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range b.Groups {
		for j := range b.Groups[i].Observations {
			o := observedOf(&b.Groups[i].Observations[j])
			if o.kind != wire.KindOutput && o.kind != wire.KindSpend {
				continue
			}
			list := l.forbidden[o.outpoint]
			for k, r := range list {
				if r.lift || r.done.IsZero() || !r.done.Before(asked) {
					continue
				}
				if k+1 == len(list) || list[k+1].asked.After(time.Now()) {
					l.find(Leaked, "%s.%d was served although it was prohibited before the request", o.outpoint.TxID, o.outpoint.Index)
				}
			}
		}
	}
}
