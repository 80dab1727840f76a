package beef

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/bsv-blockchain/go-sdk/transaction"
)

// Bundle is a parsed BEEF. It is immutable and keeps the bytes it was parsed
// from, which the caller must not change while it is in use.
type Bundle struct {
	data   []byte
	layout *layout
	index  map[[32]byte]int // display txid -> entry
	sdk    *transaction.Beef
}

// Input is one input of a [Tx].
type Input struct {
	Prev     [32]byte // txid of the spent transaction, display order
	Index    uint32   // index of the spent output
	Sequence uint32
}

// Tx is a transaction whose raw bytes a bundle holds.
type Tx struct {
	TxID    [32]byte // display order, derived from Raw
	Raw     []byte   // shared with the bundle: read only
	Inputs  []Input
	Outputs int // how many; valid indexes are below it
}

// Parse reads one BEEF. The error is an [*Error].
func Parse(data []byte) (*Bundle, error) {
	l, err := scan(data)
	if err != nil {
		return nil, err
	}
	b := &Bundle{data: data, layout: l, index: make(map[[32]byte]int, len(l.entries))}
	for i, e := range l.entries {
		if _, twice := b.index[e.txid]; twice {
			return nil, &Error{Reason: fmt.Sprintf("transaction %x is listed twice", e.txid)}
		}
		b.index[e.txid] = i
	}
	if l.atomic {
		if _, err := b.find(l.subject); err != nil {
			return nil, err
		}
	}
	if err := b.load(); err != nil {
		return nil, err
	}
	return b, nil
}

// load hands the normal form to go-sdk. The recover is for faults of the
// library that the scan does not know of.
func (b *Bundle) load() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Reason: "unreadable BEEF", cause: fmt.Errorf("panic in the BEEF reader: %v", r)}
		}
	}()
	b.sdk, err = transaction.NewBeefFromBytes(b.V2())
	if err != nil {
		return &Error{Reason: "unreadable BEEF", cause: err}
	}
	if len(b.sdk.Transactions) != len(b.layout.entries) {
		return &Error{Reason: "unreadable BEEF", cause: fmt.Errorf("%d transactions scanned, %d read", len(b.layout.entries), len(b.sdk.Transactions))}
	}
	return nil
}

// Subject gives the display txid an Atomic BEEF is about.
func (b *Bundle) Subject() (txid [32]byte, atomic bool) {
	return b.layout.subject, b.layout.atomic
}

// TxIDs lists the transactions whose raw bytes are present, in bundle order.
func (b *Bundle) TxIDs() [][32]byte {
	ids := make([][32]byte, 0, len(b.layout.entries))
	for _, e := range b.layout.entries {
		if e.format != formatTxIDOnly {
			ids = append(ids, e.txid)
		}
	}
	return ids
}

// V2 encodes the bundle as plain BEEF V2: same BUMPs, same transactions, same
// order, without an Atomic subject. Parsing the result and encoding it again
// gives the same bytes.
func (b *Bundle) V2() []byte {
	out := make([]byte, 0, len(b.data)+9)
	out = binary.LittleEndian.AppendUint32(out, versionV2)
	out = append(out, b.data[b.layout.bumpStart:b.layout.bumpsEnd]...)
	out = AppendCompactSize(out, uint64(len(b.layout.entries)))
	for _, e := range b.layout.entries {
		out = append(out, e.format)
		switch e.format {
		case formatTxIDOnly:
			id := reversed(e.txid[:])
			out = append(out, id[:]...)
			continue
		case formatRawBump:
			out = AppendCompactSize(out, e.bump)
		}
		out = append(out, b.data[e.start:e.end]...)
	}
	return out
}

// Transaction gives the transaction with this display txid. It fails with
// [ErrNotFound], [ErrTxIDOnly], or [ErrSubject] when the bundle is Atomic and
// about another transaction.
func (b *Bundle) Transaction(txid [32]byte) (*Tx, error) {
	tx, _, err := b.target(txid)
	return tx, err
}

func (b *Bundle) target(txid [32]byte) (*Tx, *transaction.Transaction, error) {
	if b.layout.atomic && b.layout.subject != txid {
		return nil, nil, &Error{Reason: fmt.Sprintf("the atomic BEEF is about %x, not %x", b.layout.subject, txid), kind: ErrSubject}
	}
	e, err := b.find(txid)
	if err != nil {
		return nil, nil, err
	}
	sdk := b.sdk.FindTransaction(hex.EncodeToString(txid[:]))
	if sdk == nil || len(sdk.Inputs) != e.inputs || len(sdk.Outputs) != e.outputs {
		return nil, nil, &Error{Reason: "unreadable BEEF", cause: fmt.Errorf("scan and reader disagree on %x", txid)}
	}
	tx := &Tx{TxID: e.txid, Raw: b.data[e.start:e.end:e.end], Inputs: make([]Input, len(sdk.Inputs)), Outputs: e.outputs}
	for i, in := range sdk.Inputs {
		tx.Inputs[i] = Input{Prev: reversed(in.SourceTXID[:]), Index: in.SourceTxOutIndex, Sequence: in.SequenceNumber}
	}
	return tx, sdk, nil
}

// find gives the entry with raw bytes for txid.
func (b *Bundle) find(txid [32]byte) (entry, error) {
	i, ok := b.index[txid]
	if !ok {
		return entry{}, &Error{Reason: fmt.Sprintf("transaction %x is not in the BEEF", txid), kind: ErrNotFound}
	}
	e := b.layout.entries[i]
	if e.format == formatTxIDOnly {
		return entry{}, &Error{Reason: fmt.Sprintf("transaction %x is txid-only: its raw bytes are needed", txid), kind: ErrTxIDOnly}
	}
	return e, nil
}

// CheckOutput says whether data is a BEEF that holds the transaction txid
// (display order) with raw bytes and an output index. Scripts and Merkle paths
// are not looked at. The error is an [*Error].
func CheckOutput(data []byte, txid [32]byte, index uint32) error {
	b, err := Parse(data)
	if err != nil {
		return err
	}
	tx, err := b.Transaction(txid)
	if err != nil {
		return err
	}
	if uint64(index) >= uint64(tx.Outputs) {
		return &Error{Reason: fmt.Sprintf("output %d, but transaction %x has %d", index, txid, tx.Outputs)}
	}
	return nil
}

// CheckSpend says whether data is a BEEF that holds the transaction spending
// with raw bytes, and that transaction spends output prevIndex of prev. Txids
// are in display order. The error is an [*Error].
func CheckSpend(data []byte, spending, prev [32]byte, prevIndex uint32) error {
	b, err := Parse(data)
	if err != nil {
		return err
	}
	tx, err := b.Transaction(spending)
	if err != nil {
		return err
	}
	for _, in := range tx.Inputs {
		if in.Prev == prev && in.Index == prevIndex {
			return nil
		}
	}
	return &Error{Reason: fmt.Sprintf("transaction %x does not spend %x.%d", spending, prev, prevIndex)}
}

// AppendCompactSize appends v as Bitcoin writes counts and sizes, in its shortest
// form.
func AppendCompactSize(dst []byte, v uint64) []byte {
	switch {
	case v < 0xfd:
		return append(dst, byte(v))
	case v <= 0xffff:
		return binary.LittleEndian.AppendUint16(append(dst, 0xfd), uint16(v))
	case v <= 0xffff_ffff:
		return binary.LittleEndian.AppendUint32(append(dst, 0xfe), uint32(v))
	default:
		return binary.LittleEndian.AppendUint64(append(dst, 0xff), v)
	}
}
