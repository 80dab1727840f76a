package verifytest

import (
	"encoding/binary"
	"testing"

	"github.com/overlayd/overlayd/reconcile/verify"
)

const (
	subsidy      = 50 * 100_000_000 // satoshis of a coinbase
	genesisTime  = 1_700_000_000    // Unix seconds of block 0
	blockSeconds = 600
	easiestBits  = 0x207fffff
)

// Chain is a growing tree of blocks. One goroutine at a time.
type Chain struct {
	// Headers has every block that was mined.
	Headers *verify.Headers
	// Genesis is block 0: its coinbase is all the money there is.
	Genesis *Block
	// Fund is a transaction in block 101 with 64 outputs of 100000000 satoshis less
	// their share.
	Fund *Tx

	t      testing.TB
	tip    *Block
	where  map[*Tx][]*Block // the newest last
	serial uint64
}

// Block is one block.
type Block struct {
	Header []byte   // 80 bytes
	Hash   [32]byte // display order
	Root   [32]byte // display order
	Height uint32
	Txs    []*Tx // a coinbase first

	prev *Block
	tree [][][32]byte // Merkle tree, txids first, wire order
}

// NewChain mines a first block, a hundred empty ones, so that its coinbase is
// mature, and one with [Chain.Fund].
func NewChain(t testing.TB) *Chain {
	t.Helper()
	c := &Chain{t: t, where: map[*Tx][]*Block{}}
	c.Genesis = c.Mine()
	for range 100 {
		c.Mine()
	}
	values := make([]uint64, 64)
	for i := range values {
		values[i] = subsidy/64 - 1
	}
	c.Fund = Pay(Payment{From: []Out{c.Genesis.Txs[0].Out(0)}, Values: values})
	c.Mine(c.Fund)
	return c
}

// coinbase makes the first transaction of the next block: no two are the same.
func (c *Chain) coinbase(height uint32) *Tx {
	c.serial++
	script := append([]byte{4}, le32(height)...)
	script = binary.LittleEndian.AppendUint64(append(script, 8), c.serial)
	t := &Tx{Outputs: []Output{{Satoshis: subsidy, Script: keys[0].lock}}}
	raw := append(le32(1), 1)
	raw = append(raw, make([]byte, 32)...)
	raw = append(raw, le32(Final)...)
	raw = append(append(raw, byte(len(script))), script...)
	raw = append(append(raw, le32(Final)...), 1)
	raw = binary.LittleEndian.AppendUint64(raw, subsidy)
	raw = append(append(raw, byte(len(keys[0].lock))), keys[0].lock...)
	t.Raw = append(raw, 0, 0, 0, 0)
	t.name()
	return t
}

// Mine puts transactions into the next block, after a coinbase.
func (c *Chain) Mine(txs ...*Tx) *Block {
	c.t.Helper()
	b := &Block{prev: c.tip}
	var prev [32]byte
	if c.tip != nil {
		b.Height, prev = c.tip.Height+1, display(c.tip.Hash)
	}
	b.Txs = append([]*Tx{c.coinbase(b.Height)}, txs...)
	level := make([][32]byte, len(b.Txs))
	for i, t := range b.Txs {
		level[i] = t.wire
		c.where[t] = append(c.where[t], b)
	}
	for b.tree = [][][32]byte{level}; len(level) > 1; b.tree = append(b.tree, level) {
		above := make([][32]byte, 0, (len(level)+1)/2)
		for i := 0; i < len(level); i += 2 {
			right := level[min(i+1, len(level)-1)]
			above = append(above, sha256d(append(level[i][:], right[:]...)))
		}
		level = above
	}
	b.Root = display(level[0])
	h := append(le32(1), prev[:]...)
	h = append(h, level[0][:]...)
	h = append(append(h, le32(genesisTime+blockSeconds*b.Height)...), le32(easiestBits)...)
	for nonce := uint32(0); ; nonce++ {
		b.Header = append(h[:76:76], le32(nonce)...)
		if id := sha256d(b.Header); id[31] < 0x7f {
			b.Hash = display(id)
			break
		}
	}
	c.tip = b
	if c.Headers == nil {
		headers, err := verify.NewHeaders(b.Header)
		if err != nil {
			c.t.Fatal(err)
		}
		c.Headers = headers
	} else if err := c.Headers.Add(b.Header); err != nil {
		c.t.Fatal(err)
	}
	return b
}

// Tip is the block that the next one stands on.
func (c *Chain) Tip() *Block { return c.tip }

// Fork goes back: the next block stands on the one at height of the branch that
// grew last.
func (c *Chain) Fork(height uint32) *Block {
	for c.tip.Height > height {
		c.tip = c.tip.prev
	}
	return c.tip
}

// Continue makes the next block stand on b.
func (c *Chain) Continue(b *Block) { c.tip = b }

// Bytes are the headers from block 0 to b, as a header file has them.
func (b *Block) Bytes() []byte {
	out := make([]byte, 80*(b.Height+1))
	for at := b; at != nil; at = at.prev {
		copy(out[80*at.Height:], at.Header)
	}
	return out
}

// View is the view that ends in b.
func (c *Chain) View(b *Block) verify.View {
	c.t.Helper()
	v, err := c.Headers.View(b.Hash)
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}
