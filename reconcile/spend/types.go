package spend

import (
	"bytes"
	"encoding/hex"
	"fmt"
)

// TxID is a transaction id in display order: byte order of TxID is the order of its hex spelling.
type TxID [32]byte

// String is the display spelling, 64 hex digits.
func (id TxID) String() string { return hex.EncodeToString(id[:]) }

// Compare orders ids as their display spellings.
func (id TxID) Compare(other TxID) int { return bytes.Compare(id[:], other[:]) }

// Outpoint names one output. The chain is that of the store it is kept in.
type Outpoint struct {
	TxID  TxID
	Index uint32
}

// String is the txid, a dot and the index.
func (o Outpoint) String() string { return fmt.Sprintf("%s.%d", o.TxID, o.Index) }

// Compare orders outpoints by txid, then by index.
func (o Outpoint) Compare(other Outpoint) int {
	if c := o.TxID.Compare(other.TxID); c != 0 {
		return c
	}
	switch {
	case o.Index < other.Index:
		return -1
	case o.Index > other.Index:
		return 1
	}
	return 0
}

// Input is one input: what it consumes and its sequence number.
type Input struct {
	Outpoint
	Sequence uint32
}

// Position is where a raw transaction was first received: the ingress position of its batch and the index that the
// batch gave it (new raw transactions in ascending order of their ids).
type Position struct {
	At    uint64
	Index uint32
}

// View is what finality asks of a chain context. NextHeight is the height of the tip plus one; MTP is the median time of
// the tip and its ten predecessors, in Unix seconds. At is the journal position from which the view is in force.
type View struct {
	At              uint64
	NextHeight, MTP uint64
}

// Result is what is known of a transaction's scripts. It never changes once it is Valid or Invalid.
type Result uint8

const (
	None    Result = iota // not decided
	Valid                 // every input was executed, or a proof of inclusion stands for it
	Invalid               // an input fails, or the transaction breaks a rule that needs no chain
	Limited               // a local budget ran out: neither valid nor invalid
)

func (r Result) String() string { return spell("result", int(r), results[:]) }

var results = [...]string{"none", "valid", "invalid", "limited"}

// Tx is one transaction as selection sees it. It belongs to the caller and is never changed here.
type Tx struct {
	ID       TxID
	Inputs   []Input
	LockTime uint32
	FirstRaw Position

	Ready   bool   // a complete support set has been received; its position is ReadyAt
	ReadyAt uint64 // meaningful when Ready
	Depth   uint32 // among those that share ReadyAt; meaningful when Ready

	Result         Result
	Usable         bool // valid or included, and carried by a group that was verified whole
	SupportedToday bool // a proof holds today, or every parent's raw transaction is known: it can be decided
	Forced         bool // included in the current view, or an ancestor of what is: the border of components
	Contradicted   bool // Forced, and so is another that consumes an input of it; or a parent is Invalid

	// Why says what one waits for that is not Ready (zero means MissingDependency), or that is Ready and not decided and not
	// SupportedToday (zero means AnchorLost).
	Why Reason
	// Missing is the first parent that is not known, in order of inputs, if any is not.
	Missing TxID
}

// Component is one closed piece of the graph: everything known and not forced that is reachable over parent, child or a
// shared input, where no step goes through a forced or a trusted transaction.
type Component struct {
	Members []Tx
	Border  []Tx            // the forced neighbours of members
	Trusted func(TxID) bool // roots of local trust, always usable and never members. nil: none

	// Views are those in force at some time, ascending by At: at least the one in force at the least ReadyAt of a member and
	// each at which the finality of a member differs from the view before. More of them change nothing.
	Views    []View
	Now      View // the view in force
	NonFinal bool // select what is not final (parameter nonFinal of the profile)
}

// Status is the state of a transaction, in the words of the profile.
type Status uint8

const (
	Unresolved        Status = iota // its support is not complete: it reserves nothing
	InvalidTx                       // scripts or form fail
	LimitedTx                       // a local budget ran out: a recorded decision
	Unsupported                     // not final, and non-final selection is off
	Conflicting                     // another transaction holds an input, or replaced it
	DependentConflict               // a parent is not selected, or not final today
	SelectedNonFinal                // pending intent: spends nothing, creates nothing
	SelectedFinal                   // provisionally consumes its inputs
	Included                        // in the selected chain, or an ancestor of what is
	Pending                         // its component waits: the state published before stands, stale
)

func (s Status) String() string { return spell("status", int(s), statuses[:]) }

var statuses = [...]string{
	"unresolved", "invalid", "limited", "unsupported", "conflicting", "dependent-conflict",
	"selected-non-final", "selected-final", "included", "pending",
}

// ParseStatus reads what [Status.String] writes.
func ParseStatus(s string) (Status, bool) {
	for i, word := range statuses {
		if word == s {
			return Status(i), true
		}
	}
	return 0, false
}

// Reason says why a transaction has its status. The list is closed.
type Reason uint8

const (
	NoReason          Reason = iota
	MissingDependency        // a parent, or a target of every group that carries it, is not known. Other: the parent, when it is one
	GroupQuarantined         // every group that carried it was quarantined or retired
	GroupWaits               // every group that carries it waits for another member, whose result is limited or unresolved
	AnchorLost               // it was ready by a proof that holds no longer, and its scripts cannot be run without its parents
	ScriptInvalid            // see InvalidTx
	OverBudget               // see LimitedTx
	ReplacedBy               // Other replaced it, for ever
	FirstSeen                // Other was eligible first and holds an input
	IncludedElsewhere        // Other is included and holds an input
	ParentLost               // Other, a parent, is not selected
	ParentNonFinal           // Other, a parent, is selected and not final today
	NonFinalDisabled         // see Unsupported
	BarrierOpen              // Other is ready and not decided; nothing in its component is published meanwhile
	Contradiction            // the current view includes transactions that exclude each other
)

func (r Reason) String() string { return spell("reason", int(r), reasons[:]) }

var reasons = [...]string{
	"", "missing-dependency", "group-quarantined", "group-waits", "anchor-lost", "script-invalid", "over-budget", "replaced-by",
	"first-seen", "included-elsewhere", "parent-lost", "parent-non-final", "non-final-disabled", "barrier-open", "contradiction",
}

// ParseReason reads what [Reason.String] writes.
func ParseReason(s string) (Reason, bool) {
	for i, word := range reasons {
		if word == s {
			return Reason(i), true
		}
	}
	return 0, false
}

func spell(what string, i int, words []string) string {
	if i < 0 || i >= len(words) {
		return fmt.Sprintf("%s(%d)", what, i)
	}
	return words[i]
}

// MaxConflicts bounds the list of conflicts of one outcome. Who holds its input is always named by Other.
const MaxConflicts = 16

// Outcome is what selection says of one transaction.
type Outcome struct {
	ID     TxID
	Status Status
	Reason Reason
	Other  TxID // whom the reason speaks of

	// Eligible says that some frontier of the history admitted it; EligibleAt is the first. Never for forced ones.
	Eligible   bool
	EligibleAt uint64

	Replaced      bool   // it replaced an earlier version in the history
	Replaces      TxID   // that version, when Replaced
	ConflictsWith []TxID // usable transactions that consume one of its inputs, ascending, the first [MaxConflicts]; empty when it is not usable
}

// Replacement is one link of a chain of versions, made in the context in force at position At.
type Replacement struct {
	Previous, Next TxID
	At             uint64
}

// Selection is the state of one component. Under a barrier or a contradiction the outcome of every member, and of whoever in
// the border is contradicted, is Pending, and Replacements is empty: what was published before stands.
type Selection struct {
	Outcomes      []Outcome     // of Members in their order, then of Border in its order
	Replacements  []Replacement // in the order in which the history made them
	Barrier       bool
	Contradiction bool
}
