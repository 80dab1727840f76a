package failpoint

// The points. A transaction of the committer, whatever it carries, passes planned, sent and committed in this order; what it
// carries has points of its own before and after.
const (
	AppendPlanned   = "livefeed/append/planned"   // groups have their sequences, the head is locked, nothing is written
	AppendSending   = "livefeed/append/sending"   // the last moment before the writes and the commit are sent
	AppendAnnounced = "livefeed/append/announced" // committed and announced, nobody answered

	CommitSent = "livefeed/commit/sent"      // writes and commit are on their way, no answer was read
	Committed  = "livefeed/commit/committed" // the answer was read, nobody was woken

	ExpiryPlanned   = "livefeed/expiry/planned"   // due timers have their groups
	ExpiryCommitted = "livefeed/expiry/committed" // they are logged, whoever asked for it not answered

	RulingPlanned   = "livefeed/ruling/planned"   // a prohibition, or its end, is about to be written
	RulingCommitted = "livefeed/ruling/committed" // it is committed, the operator not answered

	OpenClaimed   = "lookup/open/claimed"   // the fence is inserted
	OpenCut       = "lookup/open/cut"       // W and T are fixed
	OpenFirst     = "lookup/open/first"     // the first page is laid out
	OpenStored    = "lookup/open/stored"    // session, body and ledger are written, not committed
	OpenCommitted = "lookup/open/committed" // committed, the answer not gated

	RotateWritten   = "livefeed/rotate/written"   // a new epoch is written, not committed
	RotateCommitted = "livefeed/rotate/committed" // it is, the operator not answered

	RetainRemoved    = "lookup/retain/removed"      // records of old sessions are removed
	CompactAsked     = "livefeed/compact/asked"     // the horizon is known, the floor where it was
	CompactRaised    = "livefeed/compact/raised"    // the floor is up, nothing is removed
	CompactRemoved   = "livefeed/compact/removed"   // a batch of groups or versions is removed
	CompactCollected = "livefeed/compact/collected" // a batch of evidence is

	ReadLooked = "lookup/read/looked" // a poll found nothing and is about to sleep
	BeforeGate = "lookup/answer/gate" // a body is built
	BeforeSend = "lookup/answer/send" // it passed the gate, not a byte is written

	EndAsked     = "lookup/end/asked"     // a session is about to be closed, removed, revoked or reset
	EndCommitted = "lookup/end/committed" // it is, and its polls do not know
)

// The points of a follower. The store commits and then the program goes on; a swap is an accept that lets a new generation take the place of the
// old one and passes its own points instead of those of an accept.
const (
	ReceiveSending   = "reconcile/receive/sending"   // a batch and its checkpoint are about to be written
	ReceiveCommitted = "reconcile/receive/committed" // they are, nobody uses the cursor yet
	CaptureCommitted = "reconcile/capture/committed" // so is the last page of a snapshot, of which nothing need be accepted

	AcceptSending   = "reconcile/accept/sending"   // a group is about to be published
	AcceptCommitted = "reconcile/accept/committed" // it is, nobody was told
	SwapSending     = "reconcile/swap/sending"     // a generation is about to be the source's answer
	SwapCommitted   = "reconcile/swap/committed"   // it is, nobody was told

	ProjectSending   = "reconcile/project/sending"   // a change was applied, its rows and the checkpoint are not written
	ProjectCommitted = "reconcile/project/committed" // they are, nobody was told
)

// Points returns all points, in the order above.
func Points() []string { return append(ProviderPoints(), FollowerPoints()...) }

// FollowerPoints returns the points of a program that follows.
func FollowerPoints() []string {
	return []string{
		ReceiveSending, ReceiveCommitted, CaptureCommitted, AcceptSending, AcceptCommitted, SwapSending, SwapCommitted, ProjectSending,
		ProjectCommitted,
	}
}

// ProviderPoints returns the points of a program that serves.
func ProviderPoints() []string {
	return []string{
		AppendPlanned, AppendSending, AppendAnnounced, CommitSent, Committed, ExpiryPlanned, ExpiryCommitted,
		RulingPlanned, RulingCommitted, OpenClaimed, OpenCut, OpenFirst, OpenStored, OpenCommitted,
		RotateWritten, RotateCommitted, RetainRemoved, CompactAsked, CompactRaised, CompactRemoved, CompactCollected, ReadLooked, BeforeGate,
		BeforeSend, EndAsked, EndCommitted,
	}
}
