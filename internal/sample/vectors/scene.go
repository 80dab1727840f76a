package vectors

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/testvectors"
)

// scene is a case while it is made.
type scene struct {
	testvectors.Case
	names map[*tx]string
	fund  *tx // trusted, with outputs to spend
	tip   *block
}

// begin makes a case at height 2, with the root fund.
func begin(name, about string, rows ...string) *scene {
	s := &scene{
		Case: testvectors.Case{
			Name: name, About: about, Rows: rows, NonFinal: true, Views: map[string]string{}, Roots: []string{"fund"},
			Transactions: map[string]testvectors.Transaction{}, Evidence: map[string]testvectors.Evidence{},
		},
		names: map[*tx]string{},
	}
	outside := &tx{id: sha256d([]byte("outside of every case"))}
	s.fund = spending{inputs: []from{{tx: outside, sequence: sequenceFinal, unlock: []byte{0x51}}}, outputs: []uint64{5000, 5000, 5000, 5000}}.make()
	s.enter("fund", s.fund, "")
	return s
}

// chain makes the first blocks up to the given height, of which the last holds txs, and the view base.
func (s *scene) chain(height uint32, txs ...*tx) {
	for s.tip == nil || s.tip.height < height {
		if next := s.tip; next != nil && next.height+1 == height || height == 0 {
			s.tip = s.block(s.tip, "main", txs...)
		} else {
			s.tip = s.block(s.tip, "main")
		}
	}
	s.view("base", s.tip)
}

// block makes a block and its header known.
func (s *scene) block(prev *block, tag string, txs ...*tx) *block {
	b := mine(prev, tag, txs...)
	s.Headers = append(s.Headers, hex.EncodeToString(b.header))
	return b
}

func (s *scene) view(name string, tip *block) {
	hash := tip.hash()
	s.Views[name] = hex.EncodeToString(hash[:])
}

func (s *scene) enter(name string, t *tx, fault string) {
	id := display(t.id)
	s.Transactions[name] = testvectors.Transaction{TxID: hex.EncodeToString(id[:]), Raw: hex.EncodeToString(t.raw), Valid: fault == "", Fault: fault}
	s.names[t] = name
}

// tx makes a transaction that is valid, bad one that is not.
func (s *scene) tx(name string, sp spending) *tx { return s.bad(name, "", sp) }

func (s *scene) bad(name, fault string, sp spending) *tx {
	t := sp.make()
	s.enter(name, t, fault)
	return t
}

// pay spends outputs into one of 1000 less than the first has, all final.
func (s *scene) pay(name string, inputs ...from) *tx {
	return s.tx(name, spending{inputs: inputs, outputs: []uint64{inputs[0].tx.values[inputs[0].index] - 1000}})
}

// above pays as pay does, with the first fee whose txid is greater than another's.
func (s *scene) above(name string, other *tx, inputs ...from) *tx {
	than := display(other.id)
	for fee := uint64(1001); ; fee++ {
		sp := spending{inputs: inputs, outputs: []uint64{inputs[0].tx.values[inputs[0].index] - fee}}
		if id := display(sp.make().id); bytes.Compare(id[:], than[:]) > 0 {
			return s.tx(name, sp)
		}
	}
}

// out is an output to spend, finally.
func (t *tx) out(index uint32) from { return from{tx: t, index: index, sequence: sequenceFinal} }

// at is an output to spend with a sequence.
func (t *tx) at(index, sequence uint32) from { return from{tx: t, index: index, sequence: sequence} }

// bundle is evidence that is to be written.
type bundle struct {
	v1      bool
	subject *tx
	entries []entry
}

// entry is a transaction of a bundle: with raw bytes, and a path when it has a block, or by its txid alone.
type entry struct {
	tx     *tx
	in     *block
	hole   bool // the path lacks its first sibling
	idOnly bool
}

// write serialises a bundle. Each path is a BUMP of its own.
func (b bundle) write() []byte {
	version := byte(2)
	if b.v1 {
		version = 1
	}
	var out []byte
	if b.subject != nil {
		out = append([]byte{1, 1, 1, 1}, b.subject.id[:]...)
	}
	out = append(out, version, 0, 0xbe, 0xef)
	var paths []byte
	count := 0
	index := make([]int, len(b.entries))
	for i, e := range b.entries {
		if e.in != nil {
			path, _ := e.in.path(e.tx, e.hole)
			paths = append(paths, path...)
			index[i] = count
			count++
		}
	}
	out = append(beef.AppendCompactSize(out, uint64(count)), paths...)
	out = beef.AppendCompactSize(out, uint64(len(b.entries)))
	for i, e := range b.entries {
		switch {
		case e.idOnly:
			out = append(append(out, 2), e.tx.id[:]...)
		case b.v1 && e.in != nil:
			out = append(append(append(out, e.tx.raw...), 1), byte(index[i]))
		case b.v1:
			out = append(append(out, e.tx.raw...), 0)
		case e.in != nil:
			out = append(append(out, 1, byte(index[i])), e.tx.raw...)
		default:
			out = append(append(out, 0), e.tx.raw...)
		}
	}
	return out
}

// beef keeps sound evidence under a name.
func (s *scene) beef(name string, b bundle) {
	e := testvectors.Evidence{Bytes: base64.StdEncoding.EncodeToString(b.write()), WellFormed: true}
	if b.subject != nil {
		e.Subject = s.names[b.subject]
	}
	for _, entry := range b.entries {
		if entry.idOnly {
			e.TxIDOnly = append(e.TxIDOnly, s.names[entry.tx])
			continue
		}
		e.Holds = append(e.Holds, s.names[entry.tx])
		if entry.in != nil {
			_, root := entry.in.path(entry.tx, false)
			e.Proofs = append(e.Proofs, testvectors.Proof{Transaction: s.names[entry.tx], Height: entry.in.height, Root: hex.EncodeToString(root[:])})
		}
	}
	s.Evidence[name] = e
}

// broken keeps evidence that cannot be read, or must not be believed.
func (s *scene) broken(name string, data []byte) {
	s.Evidence[name] = testvectors.Evidence{Bytes: base64.StdEncoding.EncodeToString(data)}
}

// proved is evidence of one mined transaction.
func (s *scene) proved(name string, t *tx, in *block) {
	s.beef(name, bundle{entries: []entry{{tx: t, in: in}}})
}

// --- steps ---

func (s *scene) step(st testvectors.Step) { s.Steps = append(s.Steps, st) }

// receive takes names in one group of a source of its own.
func (s *scene) receive(names ...string) { s.step(testvectors.Step{Op: "receive", Names: names}) }

// receiveAs takes one name with the named evidence.
func (s *scene) receiveAs(name, beef string) {
	s.step(testvectors.Step{Op: "receive", Names: []string{name}, BEEFs: []string{beef}})
}

func (s *scene) verify(names ...string) { s.step(testvectors.Step{Op: "verify", Names: names}) }

// take receives and verifies each name in a group of its own.
func (s *scene) take(names ...string) {
	for _, name := range names {
		s.receive(name)
		s.verify(name)
	}
}

func (s *scene) turn(view string) { s.step(testvectors.Step{Op: "view", ID: view}) }
func (s *scene) restart()         { s.step(testvectors.Step{Op: "restart"}) }

// output is the step that evidence shows an output of a transaction, spends that it shows a spend.
func (s *scene) output(beef, target string, index uint32, outcome string) {
	s.step(testvectors.Step{Op: "evidence", BEEF: beef, Target: target, Index: &index, Outcome: outcome})
}

func (s *scene) spends(beef, target, outpoint, outcome string) {
	s.step(testvectors.Step{Op: "evidence", BEEF: beef, Target: target, Spends: outpoint, Outcome: outcome})
}

// value is what a checkpoint compares.
type value map[string]any

func (s *scene) expect(v value) {
	v["walletActions"] = 0
	s.step(testvectors.Step{Op: "expect", Value: v})
}

// states is the checkpoint that says only these.
func (s *scene) states(list ...string) {
	if list == nil {
		list = []string{}
	}
	s.expect(value{"states": list})
}

// fails says what the last step comes to. It ends the case.
func (s *scene) fails(kind string) *scene {
	last := &s.Steps[len(s.Steps)-1]
	last.Outcome, s.ExpectFailure = "", kind
	return s
}
