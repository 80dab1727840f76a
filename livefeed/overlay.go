package livefeed

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"slices"
	"time"
)

// row is one version of a row while a transaction is planned.
type row struct {
	outpoint  Outpoint
	state     *State
	orderKey  []byte
	selectors []Selector
	from      uint64 // valid_from
	to        uint64 // valid_to, live until something ends it
	ver       int64  // of its run; 0 = it begins one
	stored    bool   // it was not made by this plan

	// before is the version of its run that it follows; nil = it begins the run, or is stored.
	before    *row
	continued bool       // another one follows it
	posted    []*posting // those of its postings that this plan made; it begins a run: none, its postings are its own
}

// posting is a posting that the plan begins or ends.
type posting struct {
	selector Selector
	run      *row // a version of the run it leads to
	from, to uint64
}

// knownKey is a group key with the place it has.
type knownKey struct {
	body [16]byte
	seq  uint64
	here bool // given by this plan
}

// plan is one transaction in the making: what was read under the head lock, the groups it gives sequences to, and
// the rows as they are after them. Edits apply to the rows in memory one by one, so that an outpoint edited
// again in the same batch chains: the earlier version ends where the later begins.
type plan struct {
	began time.Time // by this process's clock, before anything was read

	// Read under the lock.
	head     uint64
	tag      [8]byte
	live     int64 // rows present
	versions int64 // row versions written so far
	now      uint64
	due      bool   // a timer is due at now
	clock    uint64 // what the clock row says
	era      uint64 // turn of the epoch's last break
	epoch    string
	limits   []AdmissionLimit
	keys     map[[16]byte]knownKey
	rows     map[Outpoint]*row // of every outpoint the batch names: the present version, or nil
	dueRows  []*row            // for a drain: rows due, in order
	// prohibited are those of the batch's outpoints whose rows may not be served.
	prohibited map[Outpoint]bool
	// audiences are what is on record of the readers of the batch's outpoints.
	audiences map[Outpoint]*audience

	// Made here.
	first    uint64 // head when the plan began
	firstTag [8]byte
	groups   []Group
	// records and selectors are what each group is stored as and posted under, once it is sent.
	records   [][]byte
	selectors [][]Selector
	ended     []*row     // stored versions that end
	made      []*row     // new versions; some may begin and end in one group, and are only in the log
	unposted  []posting  // stored postings that end, not followed by versions of the same selector
	posted    []*posting // new ones, but for those of versions that begin a run
	blobs     map[[32]byte][]byte
	newKeys   []newKey
	ruling    *ruling // what changes in the list of prohibitions, if anything does
	revision  uint64  // of that list, once the change is written
	expired   int     // how many of the groups are expiries
	// evaluated is what the clock row is to say: every timer up to it is in the log. 0 = leave it.
	evaluated uint64
}

type newKey struct {
	key, body [16]byte
	seq       uint64
}

// outcome is a pending proposal's answer if the plan commits.
type outcome struct {
	seq      uint64
	replayed bool
	err      error
}

// apply plans one proposal and returns its answer. A refused one changes nothing.
func (pl *plan) apply(n *Pending) outcome {
	if k, ok := pl.keys[n.key]; ok {
		if k.body != n.p.Digest {
			return outcome{err: fault(Conflict, "the key was used before for a group with another body: give this group a key of its own")}
		}
		// A commit whose answer was lost, found again: it was this very submission.
		return outcome{seq: k.seq, replayed: k.here || !slices.Contains(n.attempts, k.seq)}
	}
	if n.fault != nil {
		return outcome{err: n.fault}
	}
	if err := pl.check(n); err != nil {
		return outcome{err: err}
	}
	pl.expireTouched(n.p.Edits)

	seq := pl.head + 1
	changes := make([]Change, len(n.p.Edits))
	for i := range n.p.Edits {
		changes[i] = pl.edit(&n.p.Edits[i], n.puts[i], n.blobs[i], seq)
	}
	pl.append(changes)
	pl.keys[n.key] = knownKey{body: n.p.Digest, seq: seq, here: true}
	pl.newKeys = append(pl.newKeys, newKey{key: n.key, body: n.p.Digest, seq: seq})
	return outcome{seq: seq}
}

// check refuses a proposal for what can only be judged under the lock.
func (pl *plan) check(n *Pending) error {
	for i := range n.p.Edits {
		e := &n.p.Edits[i]
		if e.Op == Put && e.ExpiresAt != 0 && e.ExpiresAt <= pl.now {
			return editFault(i, "expiresAt %d is not after the feed's time, %d", e.ExpiresAt, pl.now)
		}
	}
	if err := n.need.admit(pl.limits, pl.now); err != nil {
		return err
	}
	return nil
}

func (pl *plan) edit(e *Edit, state *State, blob Evidence, seq uint64) Change {
	c := Change{Op: e.Op, Outpoint: e.Outpoint}
	switch e.Op {
	case Put:
		before := pl.rows[e.Outpoint]
		if before != nil {
			c.Before = before.state
		}
		if pl.prohibited[e.Outpoint] { // what is prohibited stays hidden, whatever is put in its place
			hidden := *state
			hidden.Hidden = true
			state = &hidden
		}
		c.After = state
		pl.admit(e.Outpoint, c.Before, state, seq)
		pl.blobs[blob.SHA256] = e.BEEF
		if before != nil && sameState(before.state, state) {
			c.After = c.Before // nothing changed: the version goes on
			break
		}
		pl.set(e.Outpoint, state, seq)
	case Spend:
		c.SpendingTxID, c.SpendEvidence = e.SpendingTxID, blob
		pl.blobs[blob.SHA256] = e.BEEF
		c.Before = pl.remove(e.Outpoint, seq)
	case Withdraw:
		c.Reason = e.Reason
		c.Before = pl.remove(e.Outpoint, seq)
	case Invalidate:
		c.Outpoint = Outpoint{}
		c.Reason, c.ContextID = e.Reason, e.ContextID
	}
	return c
}

func (pl *plan) remove(o Outpoint, seq uint64) *State {
	before := pl.rows[o]
	if before == nil {
		return nil
	}
	pl.end(before, seq)
	pl.rows[o] = nil
	pl.live--
	return before.state
}

func (pl *plan) set(o Outpoint, state *State, seq uint64) {
	before := pl.rows[o]
	if before != nil {
		pl.end(before, seq)
	} else {
		pl.live++
	}
	r := &row{outpoint: o, state: state, orderKey: orderKey(state.Order, o), selectors: state.Selectors(), from: seq, to: live}
	if before != nil && before.from == before.to { // only the log will know it
		before = before.before
	}
	if before != nil && before.ver != 0 && bytes.Equal(before.orderKey, r.orderKey) {
		r.before, r.ver = before, before.ver
	}
	pl.rows[o] = r
	pl.made = append(pl.made, r)
}

func (pl *plan) end(r *row, seq uint64) {
	r.to = seq
	if r.stored {
		pl.ended = append(pl.ended, r)
	}
}

// post plans what becomes of postings: one goes on while the versions of its run have its selector.
func (pl *plan) post() {
	unpost := func(r *row, s Selector, seq uint64) {
		for _, p := range r.posted {
			if p.selector == s {
				p.to = seq
				return
			}
		}
		pl.unposted = append(pl.unposted, posting{selector: s, run: r, to: seq})
	}
	for _, r := range pl.made {
		before := r.before
		if before == nil || r.from == r.to {
			continue
		}
		before.continued = true
		if slices.Equal(before.selectors, r.selectors) {
			r.posted = before.posted
			continue
		}
		for _, p := range before.posted {
			if slices.Contains(r.selectors, p.selector) {
				r.posted = append(r.posted, p)
			}
		}
		for _, s := range before.selectors {
			if !slices.Contains(r.selectors, s) {
				unpost(before, s, r.from)
			}
		}
		for _, s := range r.selectors {
			if !slices.Contains(before.selectors, s) {
				p := &posting{selector: s, run: r, from: r.from, to: live}
				r.posted, pl.posted = append(r.posted, p), append(pl.posted, p)
			}
		}
	}
	over := func(r *row) {
		if r.to != live && !r.continued {
			for _, s := range r.selectors {
				unpost(r, s, r.to)
			}
		}
	}
	for _, r := range pl.ended {
		over(r)
	}
	for _, r := range pl.made {
		if r.before != nil && r.from != r.to {
			over(r)
		}
	}
}

// expireTouched logs the expiry of due rows that edits are about to touch, so that the log never shows a row changed
// after its deadline.
func (pl *plan) expireTouched(edits []Edit) {
	var due []*row
	for i := range edits {
		if r := pl.rows[edits[i].Outpoint]; r != nil && r.state.ExpiresAt != 0 && r.state.ExpiresAt <= pl.now && edits[i].Op != Invalidate {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.state.ExpiresAt, b.state.ExpiresAt), bytes.Compare(a.orderKey, b.orderKey))
	})
	for _, r := range slices.Compact(due) {
		pl.expire(r.outpoint)
	}
}

// expire logs the end of a present row as a group of its own.
func (pl *plan) expire(o Outpoint) {
	pl.append([]Change{{Op: Expire, Outpoint: o, Before: pl.remove(o, pl.head+1)}})
	pl.expired++
}

// expireDue plans the expiry of the due rows that were read, which are one more than limit if there are so many.
func (pl *plan) expireDue(t uint64, limit int) (logged int, remaining bool) {
	for _, r := range pl.dueRows {
		if logged == limit {
			// Whatever was due before the deadline of this one is logged: T of an Open that will not wait is not older.
			if upTo := r.state.ExpiresAt - 1; upTo > pl.clock {
				pl.evaluated = upTo
			}
			return logged, true
		}
		pl.expire(r.outpoint)
		logged++
	}
	if upTo := min(t, pl.now); upTo > pl.clock {
		pl.evaluated = upTo
	}
	pl.due = pl.due && t < pl.now
	return logged, false
}

// append gives the next sequence to a group.
func (pl *plan) append(changes []Change) {
	pl.head++
	g := Group{Sequence: pl.head, CommittedAt: pl.now, Changes: changes}
	rand.Read(g.Tag[:])
	pl.tag = g.Tag
	pl.groups = append(pl.groups, g)
}
