package beef

import (
	"context"
	"fmt"
	"math"
	"math/bits"

	"github.com/bsv-blockchain/go-sdk/chainhash"
	"github.com/bsv-blockchain/go-sdk/script/interpreter"
	"github.com/bsv-blockchain/go-sdk/transaction"
	"github.com/bsv-blockchain/go-sdk/transaction/chaintracker"
)

// mimicSize is the size of an inner node of a Merkle tree. A transaction of
// this size could stand for one, so its inclusion cannot be proved.
const mimicSize = 64

// Verify follows the transaction txid (display order) back to the chain: mined
// ancestors by their Merkle path and headers, everything above them by running
// its scripts under the rules in force since Genesis and adding up its values
// (BRC-67, without fees).
//
// Scripts have no limits of their own; ctx is looked at between inputs. An
// ancestor that is missing or txid-only gives [ErrUnresolved]. A fault in the
// evidence is an [*Error], a fault of the headers is the caller's own error,
// wrapped, and says nothing about the evidence.
//
// It sets Merkle paths and parents inside the bundle, so one bundle serves one
// Verify at a time.
func (b *Bundle) Verify(ctx context.Context, txid [32]byte, headers chaintracker.ChainTracker) (err error) {
	_, target, err := b.target(txid)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Reason: "evidence that cannot be verified", cause: fmt.Errorf("panic while verifying: %v", r)}
		}
	}()
	root := chainhash.Hash(reversed(txid[:]))
	seen := map[chainhash.Hash]bool{root: true}
	type step struct {
		id chainhash.Hash
		tx *transaction.Transaction
	}
	for todo := []step{{root, target}}; len(todo) > 0; {
		next := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		mined, err := b.mined(ctx, next.id, next.tx, headers)
		if err != nil {
			return err
		}
		if mined {
			continue
		}
		if err := b.run(ctx, next.id, next.tx); err != nil {
			return err
		}
		for _, in := range next.tx.Inputs {
			if id := *in.SourceTXID; !seen[id] {
				seen[id] = true
				todo = append(todo, step{id, in.SourceTransaction})
			}
		}
	}
	return nil
}

// mined says whether the bundle holds a path for the transaction, and fails
// when the path leads nowhere or to a root that the headers do not know.
func (b *Bundle) mined(ctx context.Context, id chainhash.Hash, tx *transaction.Transaction, headers chaintracker.ChainTracker) (bool, error) {
	path := tx.MerklePath
	if path == nil {
		if path = b.sdk.FindBumpByHash(&id); path == nil {
			return false, nil
		}
	}
	i, ok := b.index[reversed(id[:])]
	if e := b.layout.entries[i]; ok && e.end-e.start == mimicSize {
		return false, &Error{Reason: fmt.Sprintf("transaction %s has the size of a tree node: its inclusion proves nothing", id)}
	}
	if !provable(path, id) {
		return false, &Error{Reason: fmt.Sprintf("the Merkle path of %s is incomplete", id)}
	}
	root, err := path.ComputeRoot(&id)
	if err != nil {
		return false, &Error{Reason: fmt.Sprintf("the Merkle path of %s is broken", id), cause: err}
	}
	known, err := headers.IsValidRootForHeight(ctx, root, path.BlockHeight)
	if err != nil {
		return false, fmt.Errorf("beef: ask for the block header at height %d: %w", path.BlockHeight, err)
	}
	if !known {
		return false, &Error{Reason: fmt.Sprintf("the Merkle path of %s does not lead to block %d", id, path.BlockHeight)}
	}
	return true, nil
}

// provable says whether every sibling on the way from txid to the root is in
// the path or follows from it. go-sdk searches for a missing sibling with work
// that doubles at every level, so it is asked only when nothing is missing.
func provable(path *transaction.MerklePath, txid chainhash.Hash) bool {
	have := make(map[uint64]struct{}, len(path.Path[0]))
	var offset, highest uint64
	found := false
	for _, leaf := range path.Path[0] {
		have[leaf.Offset] = struct{}{}
		highest = max(highest, leaf.Offset)
		if leaf.Hash != nil && *leaf.Hash == txid && !found {
			offset, found = leaf.Offset, true
		}
	}
	if !found {
		return false
	}
	if len(path.Path) == 1 && len(path.Path[0]) == 1 {
		return true // a block of one transaction
	}
	for level := range max(len(path.Path), bits.Len64(highest)) {
		if _, ok := have[(offset>>level)^1]; !ok {
			return false
		}
		above := make(map[uint64]struct{}, len(have)/2+1)
		for o := range have {
			if _, ok := have[o+1]; ok && o%2 == 0 {
				above[o/2] = struct{}{}
			}
		}
		if level+1 < len(path.Path) {
			for _, leaf := range path.Path[level+1] {
				above[leaf.Offset] = struct{}{}
			}
		}
		have = above
	}
	return true
}

// run checks an unmined transaction against the outputs it spends.
func (b *Bundle) run(ctx context.Context, id chainhash.Hash, tx *transaction.Transaction) error {
	if len(tx.Inputs) == 0 {
		return &Error{Reason: fmt.Sprintf("transaction %s is not mined and spends nothing", id)}
	}
	var in, out uint64
	type outpoint struct {
		txid  chainhash.Hash
		index uint32
	}
	spent := make(map[outpoint]bool, len(tx.Inputs))
	for i, input := range tx.Inputs {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("beef: verify %s: %w", id, err)
		}
		o := outpoint{*input.SourceTXID, input.SourceTxOutIndex}
		if spent[o] {
			return &Error{Reason: fmt.Sprintf("transaction %s spends the same output twice", id)}
		}
		spent[o] = true
		if input.SourceTransaction == nil {
			if parent := b.sdk.FindTransactionByHash(input.SourceTXID); parent != nil {
				input.SourceTransaction = parent
			} else {
				return &Error{Reason: fmt.Sprintf("ancestor %s of %s is missing", input.SourceTXID, id), kind: ErrUnresolved}
			}
		}
		source := input.SourceTxOutput()
		if source == nil {
			return &Error{Reason: fmt.Sprintf("input %d of %s spends an output that does not exist", i, id)}
		}
		if source.Satoshis > math.MaxUint64-in {
			return &Error{Reason: fmt.Sprintf("values of %s overflow", id)}
		}
		in += source.Satoshis
		err := interpreter.NewEngine().Execute(
			interpreter.WithTx(tx, i, source),
			interpreter.WithForkID(),
			interpreter.WithAfterGenesis(),
		)
		if err != nil {
			return &Error{Reason: fmt.Sprintf("the script of input %d of %s fails", i, id), cause: err}
		}
	}
	for _, o := range tx.Outputs {
		if o.Satoshis > math.MaxUint64-out {
			return &Error{Reason: fmt.Sprintf("values of %s overflow", id)}
		}
		out += o.Satoshis
	}
	if out > in {
		return &Error{Reason: fmt.Sprintf("transaction %s spends %d satoshis and has %d", id, out, in)}
	}
	return nil
}
