package reconcile

import "github.com/overlayd/overlayd/reconcile/spend"

// metaRow is the one row that every commit moves.
type metaRow struct {
	Partition Partition
	Chain     Chain
	NonFinal  bool
	Policy    string
	Journal   string
	Revision  Revision
	Position  uint64 // of the journal
	ContextAt uint64 // position of the context in force
	Group     uint64 // last number given to a group
	Sources   uint32 // last number given to a source
	Earliest  uint64 // least revision that Watch can go back to
	Pending   PendingCount
	Due       uint64 // transactions that wait for a Reconcile
	Sweeping  bool   // a retired generation has rows to remove
	Completed uint64 // of the mutant

	Transactions uint64
	Memberships  uint64
	Outputs      [5]uint64 // by outputStates
}

func (m *metaRow) code(c *coder) {
	c.str(&m.Partition.Application)
	c.str(&m.Partition.Account)
	c.str(&m.Partition.Access)
	c.str(&m.Chain.Network)
	c.str(&m.Chain.GenesisHash)
	c.bool(&m.NonFinal)
	c.str(&m.Policy)
	c.str(&m.Journal)
	c.u64(&m.Revision.Received)
	c.u64(&m.Revision.Accepted)
	c.u64(&m.Position)
	c.u64(&m.ContextAt)
	c.u64(&m.Group)
	c.u32(&m.Sources)
	c.u64(&m.Earliest)
	m.Pending.code(c)
	c.u64(&m.Due)
	c.bool(&m.Sweeping)
	c.u64(&m.Completed)
	c.u64(&m.Transactions)
	c.u64(&m.Memberships)
	for i := range m.Outputs {
		c.u64(&m.Outputs[i])
	}
}

func (p *PendingCount) code(c *coder) {
	n, b := uint64(p.Groups), uint64(p.Bytes)
	c.u64(&n)
	c.u64(&b)
	p.Groups, p.Bytes = int(n), int64(b)
}

// mutationRow is what a key answers with.
type mutationRow struct {
	Kind     string
	Revision Revision
	Swapped  bool
}

func (m *mutationRow) code(c *coder) {
	c.str(&m.Kind)
	c.u64(&m.Revision.Received)
	c.u64(&m.Revision.Accepted)
	c.bool(&m.Swapped)
}

func (x *Context) code(c *coder) {
	c.str(&x.ID)
	c.str(&x.View.TipHash)
	c.u64(&x.View.TipHeight)
	c.u64(&x.View.MedianTimePast)
	c.str(&x.View.PolicyDigest)
	c.str(&x.PolicyDigest)
	c.u64(&x.Now)
}

type sourceRow struct {
	Key     SourceKey
	Active  uint64 // generation whose rows are the active ones
	Latest  uint64
	Closed  uint64 // every generation at or below is retired for ever
	Pending PendingCount
	// The quarantine holds the claims First..Next-1.
	First, Next uint64
	Limited     bool
}

func (s *sourceRow) code(c *coder) {
	for _, f := range []*string{&s.Key.Kind, &s.Key.Base, &s.Key.Service, &s.Key.QueryDigest, &s.Key.Principal, &s.Key.Label} {
		c.str(f)
	}
	c.u64(&s.Active)
	c.u64(&s.Latest)
	c.u64(&s.Closed)
	s.Pending.code(c)
	c.u64(&s.First)
	c.u64(&s.Next)
	c.bool(&s.Limited)
}

type generationRow struct {
	Scope    []byte
	W        uint64
	Through  uint64 // accepted
	Any      bool   // Through means something
	Last     uint64 // sequence of the last group in the queue
	Received bool   // its snapshot, whole
	Complete bool   // accepted, whole
	Retired  bool
	// The queue holds ords Head..Tail-1 that were not published yet.
	Head, Tail uint64
	Pending    PendingCount
	Ending     *Ending // without its claim
}

func (g *generationRow) code(c *coder) {
	c.bytes(&g.Scope)
	c.u64(&g.W)
	c.u64(&g.Through)
	c.bool(&g.Any)
	c.u64(&g.Last)
	c.bool(&g.Received)
	c.bool(&g.Complete)
	c.bool(&g.Retired)
	c.u64(&g.Head)
	c.u64(&g.Tail)
	g.Pending.code(c)
	option(c, &g.Ending, func(e *Ending) {
		c.str(&e.Code)
		c.str(&e.Reason)
		c.u64(&e.At)
		c.str(&e.ClaimID)
	})
}

// The lives of a group.
const (
	groupWaiting     = 0
	groupSettled     = 1 // its facts are accepted
	groupPublished   = 2 // so is its membership
	groupQuarantined = 3
	groupRetired     = 4 // its generation went before it settled
)

type groupRow struct {
	Source     uint32
	Generation uint64
	Ord        uint64
	ID         string
	Sequence   uint64
	Phase      byte
	Last       bool // the snapshot is complete with it
	Position   uint64
	Since      uint64
	Status     byte
	Count      uint32 // observations
	Candidates uint32
	Open       uint32 // candidates that are not verified
	Stuck      uint32 // candidates that are hung
	Bytes      uint64
	Targets    []spend.TxID
}

func (g *groupRow) code(c *coder) {
	c.u32(&g.Source)
	c.u64(&g.Generation)
	c.u64(&g.Ord)
	c.str(&g.ID)
	c.u64(&g.Sequence)
	c.most(&g.Phase, 2)
	c.bool(&g.Last)
	c.u64(&g.Position)
	c.u64(&g.Since)
	c.most(&g.Status, groupRetired)
	c.u32(&g.Count)
	c.u32(&g.Candidates)
	c.u32(&g.Open)
	c.u32(&g.Stuck)
	c.u64(&g.Bytes)
	list(c, &g.Targets, c.txid)
}

// observationRow is an observation; its canonical bytes are Head, the evidence in
// base64 when Spliced, Tail.
type observationRow struct {
	ID       string
	Kind     string
	Outpoint spend.Outpoint
	Effect   byte
	Evidence bool
	Target   spend.TxID
	Variant  [32]byte
	Spliced  bool
	Head     []byte
	Tail     []byte
}

func (o *observationRow) code(c *coder) {
	c.str(&o.ID)
	c.str(&o.Kind)
	c.outpoint(&o.Outpoint)
	c.most(&o.Effect, byte(SpendOf))
	c.bool(&o.Evidence)
	c.txid(&o.Target)
	c.hash(&o.Variant)
	c.bool(&o.Spliced)
	c.bytes(&o.Head)
	c.bytes(&o.Tail)
}

type candidateRow struct {
	Target       spend.TxID
	Variant      [32]byte
	Size         uint64
	Status       byte // see resultStatuses; 0: none yet
	Reason       string
	Context      string
	Dependencies []spend.Outpoint
	Claims       []claimKey
	// Hung says that it was recorded as limited or unresolved, and is still while a
	// new view has it looked at again.
	Hung bool
}

// resultStatuses are those that are kept, as they are numbered.
var resultStatuses = [...]ResultStatus{"", Verified, Invalid, Unresolved, Limited}

func (a *candidateRow) code(c *coder) {
	c.txid(&a.Target)
	c.hash(&a.Variant)
	c.u64(&a.Size)
	c.most(&a.Status, byte(len(resultStatuses)-1))
	c.str(&a.Reason)
	c.str(&a.Context)
	list(c, &a.Dependencies, c.outpoint)
	list(c, &a.Claims, func(k *claimKey) { k.code(c) })
	c.bool(&a.Hung)
}

// claimKey names a placement of some transaction.
type claimKey struct {
	TxID   spend.TxID
	Height uint32
	Root   [32]byte
}

func (k *claimKey) code(c *coder) {
	c.txid(&k.TxID)
	c.u32(&k.Height)
	c.hash(&k.Root)
}

// claimRow is a placement in its transaction's row.
type claimRow struct {
	Height   uint32
	Root     [32]byte
	Coinbase bool
	Holds    bool   // in the context in force
	Known    bool   // on some branch
	Settled  bool   // a group that was verified whole brought it
	Held     bool   // it ever held
	HeldAt   uint64 // since when first
	Group    uint64 // a group that brought it and is not quarantined; 0: none
}

func (p *claimRow) code(c *coder) {
	c.u32(&p.Height)
	c.hash(&p.Root)
	c.bool(&p.Coinbase)
	c.bool(&p.Holds)
	c.bool(&p.Known)
	c.bool(&p.Settled)
	c.bool(&p.Held)
	c.u64(&p.HeldAt)
	c.u64(&p.Group)
}

// flipRow is a change of finality.
type flipRow struct {
	At    uint64
	Final bool
}

type txRow struct {
	Trusted  bool
	Inputs   []spend.Input
	LockTime uint32
	Outputs  uint32
	FirstRaw spend.Position

	Received   bool
	ReceivedAt uint64
	Ready      bool
	ReadyAt    uint64
	Depth      uint32
	ReadyView  uint64 // position of the context in force at ReadyAt
	Result     byte
	Settled    bool
	Covered    bool
	Claims     []claimRow
	Flips      []flipRow

	// What is published.
	Published  bool
	Status     byte
	Reason     byte
	Other      spend.TxID
	Pending    bool
	Why        byte // of Pending
	Eligible   bool
	EligibleAt uint64
	Replaced   bool // it replaced Replaces, at ReplacedAt
	Replaces   spend.TxID
	ReplacedAt uint64
	Conflicts  []spend.TxID

	// Linked is the place of its row in the list of replacements, when it has one.
	Linked []byte
}

func (t *txRow) code(c *coder) {
	c.bool(&t.Trusted)
	list(c, &t.Inputs, func(in *spend.Input) {
		c.outpoint(&in.Outpoint)
		c.u32(&in.Sequence)
	})
	c.u32(&t.LockTime)
	c.u32(&t.Outputs)
	c.u64(&t.FirstRaw.At)
	c.u32(&t.FirstRaw.Index)
	c.bool(&t.Received)
	c.u64(&t.ReceivedAt)
	c.bool(&t.Ready)
	c.u64(&t.ReadyAt)
	c.u32(&t.Depth)
	c.u64(&t.ReadyView)
	c.most(&t.Result, byte(spend.Limited))
	c.bool(&t.Settled)
	c.bool(&t.Covered)
	list(c, &t.Claims, func(p *claimRow) { p.code(c) })
	list(c, &t.Flips, func(f *flipRow) {
		c.u64(&f.At)
		c.bool(&f.Final)
	})
	c.bool(&t.Published)
	c.most(&t.Status, byte(spend.Pending))
	c.most(&t.Reason, byte(spend.Contradiction))
	c.txid(&t.Other)
	c.bool(&t.Pending)
	c.most(&t.Why, byte(spend.Contradiction))
	c.bool(&t.Eligible)
	c.u64(&t.EligibleAt)
	c.bool(&t.Replaced)
	c.txid(&t.Replaces)
	c.u64(&t.ReplacedAt)
	list(c, &t.Conflicts, c.txid)
	c.bytes(&t.Linked)
}

// carrierRow says what a group has of a transaction.
type carrierRow struct {
	Via     uint32   // the first candidate whose evidence holds it
	Targets []uint32 // candidates about it
	Claims  []claimKey
}

func (x *carrierRow) code(c *coder) {
	c.u32(&x.Via)
	list(c, &x.Targets, c.u32)
	list(c, &x.Claims, func(k *claimKey) { k.code(c) })
}

type idsRow struct{ IDs []spend.TxID }

func (y *idsRow) code(c *coder) { list(c, &y.IDs, c.txid) }

// candidateKey numbers a candidate.
type candidateKey struct {
	Group uint64
	Index uint32
}

type waitersRow struct{ Of []candidateKey }

func (w *waitersRow) code(c *coder) {
	list(c, &w.Of, func(k *candidateKey) {
		c.u64(&k.Group)
		c.u32(&k.Index)
	})
}

// jobRow is a candidate to verify; with Target another transaction of its
// evidence is.
type jobRow struct{ Target *spend.TxID }

func (j *jobRow) code(c *coder) { option(c, &j.Target, c.txid) }

type idRow struct {
	Hash  [32]byte
	Group uint64
}

func (i *idRow) code(c *coder) {
	c.hash(&i.Hash)
	c.u64(&i.Group)
}

type membershipRow struct {
	Present     bool
	Phase       byte
	Sequence    uint64
	Observation string
}

func (m *membershipRow) code(c *coder) {
	c.bool(&m.Present)
	c.most(&m.Phase, 2)
	c.u64(&m.Sequence)
	c.str(&m.Observation)
}

// outputStates are the states as they are numbered.
var outputStates = [...]OutputState{Unknown, Current, Spent, Pending, Conflicting}

type outputRow struct {
	State  byte
	Stale  bool
	By     spend.TxID
	Reason byte
	Since  uint64 // accepted revision in which it came to be so
	Told   byte   // 1 + the state in the last change about it; 0: none
	ToldBy spend.TxID
}

func (o *outputRow) code(c *coder) {
	c.most(&o.State, byte(len(outputStates)-1))
	c.bool(&o.Stale)
	c.txid(&o.By)
	c.most(&o.Reason, byte(spend.Contradiction))
	c.u64(&o.Since)
	c.most(&o.Told, byte(len(outputStates)))
	c.txid(&o.ToldBy)
}

type projectorRow struct {
	At      uint64
	Failure string
}

func (p *projectorRow) code(c *coder) {
	c.u64(&p.At)
	c.str(&p.Failure)
}

func (q *Quarantined) code(c *coder) {
	c.u64(&q.Generation)
	c.u64(&q.At)
	c.str(&q.Code)
	c.str(&q.Reason)
	c.str(&q.ID)
	c.bytes(&q.Bytes)
	c.u64(&q.Length)
	c.hash(&q.Digest)
}

func (ch *Change) code(c *coder) {
	c.u64(&ch.Revision.Received)
	c.u64(&ch.Revision.Accepted)
	c.str(&ch.Context)
	c.str(&ch.Kind)
	state := func(s *OutputState) {
		var n byte
		for i, word := range outputStates {
			if word == *s {
				n = byte(i) + 1
			}
		}
		if c.most(&n, byte(len(outputStates))); n > 0 {
			*s = outputStates[n-1]
		}
	}
	list(c, &ch.Outputs, func(o *OutputChange) {
		c.outpoint(&o.Outpoint)
		state(&o.State)
		state(&o.Was)
		c.bool(&o.Stale)
		c.txid(&o.By)
		list(c, &o.Sources, func(s *SourceID) { c.u32((*uint32)(s)) })
	})
	list(c, &ch.Memberships, func(m *MembershipChange) {
		c.u32((*uint32)(&m.Source))
		c.u64(&m.Generation)
		c.outpoint(&m.Outpoint)
		c.bool(&m.Present)
		c.bool(&m.Gone)
		c.u64(&m.Sequence)
		c.str(&m.Observation)
	})
	list(c, &ch.Transactions, func(t *TxChange) {
		c.txid(&t.ID)
		c.most((*byte)(&t.Status), byte(spend.Pending))
		c.most((*byte)(&t.Was), byte(spend.Pending))
		c.bool(&t.Pending)
		c.most((*byte)(&t.Reason), byte(spend.Contradiction))
		c.txid(&t.Other)
	})
}
