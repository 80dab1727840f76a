package livefeed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
)

// Chain names the block chain a feed's outputs live on. It is fixed for the feed's life.
type Chain struct {
	Network string   // such as "main"; 1..64 bytes
	Genesis [32]byte // genesis block hash, display order
}

// Outpoint names one transaction output. TxID is in display order, the order of its hex text.
type Outpoint struct {
	TxID  [32]byte
	Index uint32
}

// Bytes returns the 36 bytes that stand for the outpoint in keys: the txid in display order, then
// the index big-endian, so that they sort as (txid hex, index) does.
func (o Outpoint) Bytes() [36]byte {
	var b [36]byte
	copy(b[:32], o.TxID[:])
	binary.BigEndian.PutUint32(b[32:], o.Index)
	return b
}

// String returns "txid.index", for logs and errors.
func (o Outpoint) String() string {
	return fmt.Sprintf("%s.%d", hex.EncodeToString(o.TxID[:]), o.Index)
}

func outpointOf(b []byte) (Outpoint, error) {
	if len(b) != outpointLen {
		return Outpoint{}, fmt.Errorf("an outpoint of %d bytes", len(b))
	}
	return Outpoint{TxID: [32]byte(b[:32]), Index: binary.BigEndian.Uint32(b[32:])}, nil
}

const outpointLen = 36

// Selector is the posted form of one attribute name and value (or of [All]). Rows, groups and
// waiters are found by selectors, so the feed needs no knowledge of any query language.
type Selector [16]byte

// All is the selector of the whole feed: a waiter on it is woken by every group, a page or a log
// read without selectors means it, and groups that concern every query are posted under it.
// It is a constant in all but syntax.
var All = Selector{'*'}

// AttributeSelector returns the selector of one attribute value: the first 16 bytes of a SHA-256
// over the length-prefixed name and the value.
func AttributeSelector(name, value string) Selector {
	b := make([]byte, 0, len(selectorDomain)+4+len(name)+len(value))
	b = append(b, selectorDomain...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(name)))
	b = append(b, name...)
	b = append(b, value...)
	sum := sha256.Sum256(b)
	return Selector(sum[:16])
}

// selectorDomain is frozen: posted selectors are compared with ones computed later.
const selectorDomain = "overlayd:selector:1\x00"

// Attribute is one name of a row with its values. In a [State] and an [Edit] attributes are sorted by
// name and values are sorted and distinct.
type Attribute struct {
	Name   string
	Values []string
}

// Context is the application context of a row: an absolute IRI and opaque bytes.
type Context struct {
	Schema string
	Bytes  []byte
}

// Evidence refers to stored BEEF bytes by their SHA-256; [Feed.Blobs] fetches them.
type Evidence struct {
	SHA256 [32]byte
	Size   int
}

// State is what one version of a row says. It is never changed after it was made.
type State struct {
	Evidence   Evidence
	Attributes []Attribute
	Order      []byte // the order key as given, at most 128 bytes
	Context    *Context
	ExpiresAt  uint64     // whole Unix seconds; 0 = never
	Readers    [][33]byte // sorted, distinct; nil = everyone the service admits
	Hidden     bool       // in force: a prohibition
}

// Selectors returns the selectors of the state's attributes, sorted and distinct.
func (s *State) Selectors() []Selector {
	if s == nil {
		return nil
	}
	n := 0
	for _, a := range s.Attributes {
		n += len(a.Values)
	}
	out := make([]Selector, 0, n)
	for _, a := range s.Attributes {
		for _, v := range a.Values {
			out = append(out, AttributeSelector(a.Name, v))
		}
	}
	return sortSelectors(out)
}

func sortSelectors(list []Selector) []Selector {
	slices.SortFunc(list, compareSelectors)
	return slices.Compact(list)
}

func compareSelectors(a, b Selector) int { return bytes.Compare(a[:], b[:]) }

// Op is the kind of an edit or a change. The values are stored: never renumber them.
type Op uint8

const (
	Put        Op = 1 // the row is present with a new state
	Spend      Op = 2 // the row's output was spent
	Withdraw   Op = 3 // the row was taken out, with the operator's reason
	Invalidate Op = 4 // an assessment every query of the feed must drop
	Expire     Op = 5 // the row's deadline passed; logged by the feed itself
)

func (o Op) String() string {
	switch o {
	case Put:
		return "put"
	case Spend:
		return "spend"
	case Withdraw:
		return "withdraw"
	case Invalidate:
		return "invalidate"
	case Expire:
		return "expire"
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Change is one edit as it was committed, with the row before and after it. Both are nil when the
// edit touched no row: a spend or withdraw of an absent one, or an invalidate.
type Change struct {
	Op            Op
	Outpoint      Outpoint // zero for Invalidate
	Before, After *State
	SpendingTxID  [32]byte // Spend
	SpendEvidence Evidence // Spend
	Reason        string   // Withdraw, Invalidate
	ContextID     string   // Invalidate
}

// Group is one committed group, decoded. It is shared between readers: do not change it.
type Group struct {
	Sequence    uint64
	Tag         [8]byte // random, made at commit: two histories never share one
	CommittedAt uint64  // T of the commit
	Changes     []Change
}

// Edit is one proposed edit of a group.
type Edit struct {
	Op           Op // Put, Spend, Withdraw or Invalidate
	Outpoint     Outpoint
	BEEF         []byte // Put: contains the output; Spend: contains the spending transaction
	Attributes   []Attribute
	Order        []byte
	Context      *Context
	ExpiresAt    uint64
	Readers      [][33]byte
	HasReaders   bool // the edit named readers, though perhaps none
	SpendingTxID [32]byte
	Reason       string
	ContextID    string
}

// Proposal is a decoded group that waits for its place in the log.
type Proposal struct {
	Key    string   // idempotency key, 16..128 of [A-Za-z0-9_-]
	Digest [16]byte // of the canonical body: what "the same body" means
	Edits  []Edit
	// Err is the fault found while decoding, an *Error. It is returned only if the key is new: a
	// group that was once accepted is answered as it was then.
	Err error
}

// Receipt is the answer to an accepted proposal.
type Receipt struct {
	Sequence  uint64 // the group's place, for ever
	HighWater uint64 // the feed's head when the answer was made
	Replayed  bool   // the key was known already: nothing was appended
}
