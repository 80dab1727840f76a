package sample

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
)

// Generate writes exactly o.Groups lines about the synthetic chain: new rows,
// replacements (a spend and the put of its successor), plain spends,
// withdrawals, rows put again with other attributes, rows that expire when
// o.Now is set, and now and then an invalidation. It fails with the writer's or
// the context's error, or says which option cannot be.
func Generate(ctx context.Context, w io.Writer, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w, 64<<10)
	g := &generator{
		o: o, w: buffered, name: o.name(), genres: genreLabels(), keys: newKeys(),
		random: draw(o.Seed, 0, 0xC0FFEE),
	}
	g.found()
	for g.planned < o.Groups {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("sample: stopped: %w", err)
		}
		g.plan()
		if err := g.write(); err != nil {
			return fmt.Errorf("sample: write: %w", err)
		}
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("sample: write: %w", err)
	}
	return nil
}

// row is a listed output.
type row struct {
	coin
	item    uint64
	edition uint32
	// source makes the evidence of the row again. Most rows are never put
	// again, so only some keep it.
	source *tx
}

// edit is one planned edit. What it needs of its transaction is known when the
// block is closed.
type edit struct {
	op        string
	row       row
	expiresAt uint64
	tx        *tx // evidence of a put, the spending one of a spend
	text      string
}

// generator works block by block: it plans groups until the block is full,
// closes it, and writes them.
type generator struct {
	// Immutable.
	o      Options
	w      *bufio.Writer
	name   string
	genres []string
	keys   []key
	random *stream

	// The chain.
	height   uint32
	prev     [32]byte // hash of the last closed block, wire order
	spare    uint32   // height of the next coinbase to pay from
	wallet   coin
	funder   *tx // made the wallet's coin, nil for a coinbase
	carried  *tx // unmined, first in the next block
	open     []*tx
	inOpen   map[*tx]bool
	contexts uint64

	// The feed as it will be.
	live    []row
	items   uint64
	planned int
	written int
	groups  [][]edit
	line    line
}

// found makes the blocks that have nothing but their coinbase, so that there is
// something to pay from.
func (g *generator) found() {
	g.close(genesis())
	for g.height <= maturity {
		only := coinbase(g.keys, g.o.Seed, g.height)
		g.close(mine(g.prev, newTree([]*tx{only}).root(), g.height))
	}
	g.spare = 1
	g.refill()
}

// close ends a block; the next one is height.
func (g *generator) close(h Header) {
	if g.o.OnBlock != nil {
		g.o.OnBlock(g.height, h)
	}
	g.prev = display(h.Hash())
	g.height++
}

// refill pays from the next coinbase from now on. There is always one: a block
// spends far less than it mints.
func (g *generator) refill() {
	g.wallet = coin{coinbase(g.keys, g.o.Seed, g.spare).id, 0, subsidy, walletKey}
	g.funder = nil
	g.spare++
}

// plan fills one block with transactions, or the stream with groups, and makes
// the evidence of what was planned.
func (g *generator) plan() {
	g.groups = g.groups[:0]
	g.open = append(g.open[:0], coinbase(g.keys, g.o.Seed, g.height))
	g.inOpen = map[*tx]bool{}
	if g.carried != nil {
		g.admit(g.carried)
		g.carried = nil
	}
	size := 8 + int(g.random.below(18))
	for len(g.open) < size && g.planned < g.o.Groups {
		g.group()
	}
	if g.planned < g.o.Groups && !g.full() && g.inOpen[g.funder] && g.wallet.value > 10*reserve && g.random.one(3) {
		// A child of this block's last payment, listed before it is mined.
		parent := g.funder
		g.carried = g.list(1)
		g.carried.parent = parent
	}
	if len(g.open) == 1 {
		// Groups without a transaction, at the end of the stream: no block.
		return
	}
	blocks := newTree(g.open)
	for _, edits := range g.groups {
		for _, e := range edits {
			if e.tx != nil && e.tx.beef == nil {
				e.tx.prove(blocks, g.height)
			}
		}
	}
	for _, t := range g.open {
		t.raw = nil // nobody needs it any more; rows keep the evidence
	}
	g.close(mine(g.prev, blocks.root(), g.height))
}

// group plans one group.
func (g *generator) group() {
	if g.o.PutsOnly {
		g.admit(g.list(1))
		return
	}
	dice := g.random.below(1000)
	if dice >= 998 {
		g.contexts++
		g.add(edit{op: "invalidate", text: fmt.Sprintf("context-%s-%d", g.name, g.contexts)})
		return
	}
	switch {
	case len(g.live) == 0 || dice < 560 && !g.full():
		n := 1
		if g.random.one(16) {
			n += 1 + int(g.random.below(3))
		}
		if g.o.MaxLive > 0 {
			n = min(n, g.o.MaxLive-len(g.live))
		}
		g.admit(g.list(max(n, 1)))
	case dice < 560 || dice >= 740 && dice < 820:
		g.sweep()
	case dice < 740:
		g.replace()
	case dice < 880:
		r := g.pick()
		reasons := [...]string{"evicted", "delisted", "superseded"}
		g.add(edit{op: "withdraw", row: r, text: reasons[g.random.below(uint64(len(reasons)))]})
	default:
		g.revise()
	}
}

func (g *generator) add(edits ...edit) {
	g.groups = append(g.groups, edits)
	g.planned++
}

// full says whether there may be no more rows.
func (g *generator) full() bool { return g.o.MaxLive > 0 && len(g.live) >= g.o.MaxLive }

// admit puts a transaction into the open block.
func (g *generator) admit(t *tx) {
	g.open = append(g.open, t)
	g.inOpen[t] = true
}

// pick takes a row out of the listed ones.
func (g *generator) pick() row {
	i := g.random.below(uint64(len(g.live)))
	last := len(g.live) - 1
	r := g.live[i]
	g.live[i] = g.live[last]
	g.live[last] = row{}
	g.live = g.live[:last]
	return r
}

func (g *generator) encoding() encoding {
	switch n := g.random.below(10); {
	case n < 7:
		return beefV1
	case n < 9:
		return beefV2
	default:
		return atomicBEEF
	}
}

// reserve is what the wallet's coin keeps at least, in satoshis.
const reserve = 10_000

// owner picks who gets an output.
func (g *generator) owner() int { return 1 + int(g.random.below(keyCount-1)) }

// list plans a group of n new rows, outputs of one payment by the wallet.
func (g *generator) list(n int) *tx {
	outputs := make([]output, 0, n+1)
	fee := uint64(12 + 2*n)
	need := fee
	for range n {
		o := output{300 + g.random.below(500), g.owner()}
		outputs = append(outputs, o)
		need += o.value
	}
	if g.wallet.value < need+reserve {
		g.refill()
	}
	change := g.wallet.value - need
	outputs = append(outputs, output{change, walletKey})
	t := pay(g.keys, g.wallet, g.encoding(), outputs...)
	g.wallet = coin{t.id, uint32(n), change, walletKey}
	g.funder = t
	edits := make([]edit, n)
	for i := range n {
		g.items++
		edits[i] = g.enter(row{coin: coin{t.id, uint32(i), outputs[i].value, outputs[i].owner}, item: g.items}, t)
	}
	g.add(edits...)
	return t
}

// enter lists a row and gives its put. A row that will expire is not kept among
// those that later groups are about.
func (g *generator) enter(r row, t *tx) edit {
	e := edit{op: "put", row: r, tx: t}
	if g.o.ExpireShare > 0 && g.random.below(1<<32) < uint64(g.o.ExpireShare*(1<<32)) {
		e.expiresAt = g.o.Now + g.o.ExpireAfter + g.random.below(g.o.ExpireWithin)
		return e
	}
	if r.item%8 == 0 {
		r.source = t
	}
	g.live = append(g.live, r)
	return e
}

// replace spends a row into its successor, in one group.
func (g *generator) replace() {
	old := g.pick()
	const fee = 10
	value := old.value - fee
	if value < 100 {
		g.spend(old)
		return
	}
	to := g.owner()
	t := pay(g.keys, old.coin, g.encoding(), output{value, to})
	g.admit(t)
	next := row{coin: coin{t.id, 0, value, to}, item: old.item, edition: old.edition + 1}
	g.add(edit{op: "spend", row: old, tx: t}, g.enter(next, t))
}

// sweep spends a row, and nothing takes its place.
func (g *generator) sweep() { g.spend(g.pick()) }

func (g *generator) spend(old row) {
	t := pay(g.keys, old.coin, g.encoding(), output{old.value - 10, walletKey})
	g.admit(t)
	g.add(edit{op: "spend", row: old, tx: t})
}

// revise puts a row again with its next edition.
func (g *generator) revise() {
	for range 16 {
		r := &g.live[g.random.below(uint64(len(g.live)))]
		if r.source != nil {
			r.edition++
			g.add(edit{op: "put", row: *r, tx: r.source})
			return
		}
	}
	g.replace()
}

// write writes the planned groups.
func (g *generator) write() error {
	for _, edits := range g.groups {
		g.written++
		g.line.begin(fmt.Sprintf("synthetic-%s-%09d", g.name, g.written))
		for _, e := range edits {
			at := outpoint{display(e.row.txid), e.row.index}
			switch e.op {
			case "put":
				attributes, order, context := labels(g.o, g.genres, e.row.item, e.row.edition)
				g.line.put(listing{at, e.tx.beef, attributes, order, context, e.expiresAt})
			case "spend":
				g.line.spend(at, display(e.tx.id), e.tx.beef)
			case "withdraw":
				g.line.withdraw(at, e.text)
			case "invalidate":
				g.line.invalidate(e.text, "superseded")
			}
		}
		if err := g.line.end(g.w); err != nil {
			return err
		}
	}
	clear(g.groups)
	g.groups = slices.Grow(g.groups[:0], 32)
	return nil
}
