package beef

import (
	"fmt"
	"math/bits"

	"github.com/bsv-blockchain/go-sdk/chainhash"
	"github.com/bsv-blockchain/go-sdk/transaction"
)

// paths finds the Merkle paths of one closure. Each path of the bundle is folded
// once, whatever number of transactions it proves.
type paths struct {
	bundle *Bundle
	folded []*folded
	places map[chainhash.Hash][]int // leaf -> the paths that hold it; made when first asked
}

// folded is one Merkle path with every node that follows from what it holds.
type folded struct {
	height uint32
	levels [][]node         // what is known of each level below the root, sorted by offset
	index  []map[uint64]int // of levels
	leaves map[chainhash.Hash]uint64
	root   *chainhash.Hash
	fault  string // why the path is broken, "" when it is not
}

// node is one place of a tree. hash is nil where the node repeats its left
// neighbour.
type node struct {
	offset uint64
	hash   *chainhash.Hash
}

// proof says where the bundle's path for m leads. A path that the bundle ties to
// the transaction must be whole; one that only happens to hold it is used when
// it is.
func (p *paths) proof(e entry, m *Member) (*Proof, error) {
	id := chainhash.Hash(reversed(m.TxID[:]))
	if e.format == formatRawBump {
		f := p.fold(int(e.bump))
		if f.fault != "" {
			return nil, &Error{Reason: fmt.Sprintf("the Merkle path of %x is broken: %s", m.TxID, f.fault)}
		}
		proof, fault := f.proof(id, m)
		if fault != "" {
			return nil, &Error{Reason: fmt.Sprintf("the Merkle path of %x %s", m.TxID, fault)}
		}
		return proof, nil
	}
	if p.places == nil {
		p.places = map[chainhash.Hash][]int{}
		for i, path := range p.bundle.sdk.BUMPs {
			for _, leaf := range path.Path[0] {
				if leaf.Hash != nil {
					p.places[*leaf.Hash] = append(p.places[*leaf.Hash], i)
				}
			}
		}
	}
	for _, i := range p.places[id] {
		if f := p.fold(i); f.fault == "" {
			if proof, fault := f.proof(id, m); fault == "" {
				return proof, nil
			}
		}
	}
	return nil, nil
}

func (p *paths) fold(i int) *folded {
	if p.folded[i] == nil {
		p.folded[i] = foldPath(p.bundle.sdk.BUMPs[i])
	}
	return p.folded[i]
}

// foldPath works its way up once, level by level. go-sdk looks a missing node up
// with work that doubles at every level, and again for every transaction.
func foldPath(path *transaction.MerklePath) *folded {
	f := &folded{height: path.BlockHeight, leaves: make(map[chainhash.Hash]uint64, len(path.Path[0]))}
	var highest uint64
	for _, leaf := range path.Path[0] {
		highest = max(highest, leaf.Offset)
		if leaf.Hash != nil {
			if _, twice := f.leaves[*leaf.Hash]; !twice {
				f.leaves[*leaf.Hash] = leaf.Offset
			}
		}
	}
	if len(path.Path) == 1 && len(path.Path[0]) == 1 {
		f.root = path.Path[0][0].Hash // a block of one transaction
		return f
	}
	var above []node // of the level to come, sorted by offset
	for level := range max(len(path.Path), bits.Len64(highest)) {
		nodes := above
		if level < len(path.Path) {
			nodes = merge(f, level, path.Path[level], above)
		}
		if len(nodes) == 0 && level+1 >= len(path.Path) {
			return f // nothing leads further up: no root
		}
		index := make(map[uint64]int, len(nodes))
		above = make([]node, 0, len(nodes)/2)
		for i, n := range nodes {
			index[n.offset] = i
			if n.offset%2 == 0 {
				if n.hash == nil {
					f.fault = fmt.Sprintf("a left node repeats at level %d", level)
				}
				continue
			}
			if i == 0 || nodes[i-1].offset != n.offset-1 || nodes[i-1].hash == nil {
				continue
			}
			above = append(above, node{n.offset / 2, parent(nodes[i-1].hash, n.hash)})
		}
		f.levels, f.index = append(f.levels, nodes), append(f.index, index)
		if f.fault != "" {
			return f
		}
	}
	if len(above) > 0 && above[0].offset == 0 {
		f.root = above[0].hash
	}
	return f
}

// merge joins what a level holds with what follows from the level below. Where
// both have a node they must agree.
func merge(f *folded, level int, held []*transaction.PathElement, derived []node) []node {
	out := make([]node, 0, len(held)+len(derived))
	for _, leaf := range held { // go-sdk sorted them, the scan refused equal ones
		for len(derived) > 0 && derived[0].offset < leaf.Offset {
			out, derived = append(out, derived[0]), derived[1:]
		}
		n := node{leaf.Offset, leaf.Hash}
		if len(derived) > 0 && derived[0].offset == leaf.Offset {
			if n.hash == nil || *n.hash != *derived[0].hash {
				f.fault = fmt.Sprintf("it contradicts itself at level %d", level)
			}
			derived = derived[1:]
		}
		out = append(out, n)
	}
	return append(out, derived...)
}

// parent hashes two nodes; a nil right one repeats the left one.
func parent(left, right *chainhash.Hash) *chainhash.Hash {
	if right == nil {
		right = left
	}
	return transaction.MerkleTreeParent(left, right)
}

// proof follows the transaction up. fault says what is wrong, after "the Merkle
// path of X".
func (f *folded) proof(id chainhash.Hash, m *Member) (p *Proof, fault string) {
	offset, ok := f.leaves[id]
	if !ok {
		return nil, "does not hold it"
	}
	if len(m.Raw) == mimicSize {
		return nil, "proves nothing: the transaction has the size of a tree node"
	}
	working := &id
	for level, index := range f.index {
		own := offset >> level
		i, ok := index[own^1]
		if !ok {
			return nil, fmt.Sprintf("is incomplete at level %d", level)
		}
		sibling := f.levels[level][i]
		switch {
		case own%2 == 0:
			working = parent(working, sibling.hash)
		case sibling.hash == nil:
			return nil, "is broken"
		default:
			working = parent(sibling.hash, working)
		}
	}
	if f.root == nil {
		return nil, "is incomplete"
	}
	if *working != *f.root {
		return nil, "is broken"
	}
	return &Proof{Height: f.height, Root: reversed(f.root[:]), Offset: offset}, ""
}
