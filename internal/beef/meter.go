package beef

import (
	"errors"
	"math"
	"math/big"

	"github.com/bsv-blockchain/go-sdk/script"
)

// meter follows a script without looking at its signatures and adds up what
// running it costs. It never says that a script fails: where it cannot go on,
// the engine cannot either, and the cost up to there is what counts. Where a
// signature decides on the way, both ways are followed.
type meter struct {
	limit     int64 // of work
	signature int64 // what checking one costs
	work      int64
	ways      [][]bool // results of signatures that are still to be tried
}

// errStop ends one way: the engine would end there as well, or has finished.
var errStop = errors.New("the way ends")

// heavy ends the weighing: what it names is too much.
type heavy string

func (h heavy) Error() string { return string(h) }

// weigh says what there is too much of, "" when running is fine.
func (m *meter) weigh(unlocking, locking []byte) string {
	first, pushOnly, what := m.parse(unlocking)
	if what != "" || !pushOnly {
		return what
	}
	second, _, what := m.parse(locking)
	if what != "" {
		return what
	}
	m.ways = [][]bool{nil}
	for tried := 0; len(m.ways) > 0; tried++ {
		if tried == maxForks {
			return "branching on signatures"
		}
		results := m.ways[len(m.ways)-1]
		m.ways = m.ways[:len(m.ways)-1]
		err := newWay(m, results).run(first, second)
		if h, ok := errors.AsType[heavy](err); ok {
			return string(h)
		}
	}
	return ""
}

type instruction struct {
	op   byte
	data []byte
}

// parse splits a script as the engine does: what follows a return outside of all
// conditions is not read.
func (m *meter) parse(s []byte) (out []instruction, pushOnly bool, what string) {
	pushOnly = true
	depth := 0
	for len(s) > 0 {
		op, data, rest, ok := nextOp(s)
		if !ok {
			return nil, false, "" // the engine refuses it while parsing
		}
		if len(out) == maxOps {
			return nil, false, "length"
		}
		out, s = append(out, instruction{op, data}), rest
		pushOnly = pushOnly && op <= script.Op16
		switch op {
		case script.OpIF, script.OpNOTIF, script.OpVERIF, script.OpVERNOTIF:
			depth++
		case script.OpENDIF:
			depth = max(depth-1, 0)
		case script.OpRETURN:
			if depth == 0 {
				return out, pushOnly, ""
			}
		}
	}
	return out, pushOnly, ""
}

// way is one run through the scripts.
type way struct {
	m       *meter
	results []bool // of the signatures, as they come
	known   int    // how many of results are used up

	stack, alt [][]byte
	memory     int64 // bytes of both
	conds      []byte
	elses      []bool
	returned   bool
	last       bool // at the last opcode
}

// States of a condition.
const (
	condFalse byte = iota
	condTrue
	condSkip
)

func newWay(m *meter, results []bool) *way { return &way{m: m, results: results} }

func (w *way) run(scripts ...[]instruction) error {
	for i, s := range scripts {
		w.returned = false
		for j, in := range s {
			w.last = i == len(scripts)-1 && j == len(s)-1
			if err := w.pay(300 + 4*int64(len(w.conds))); err != nil {
				return err
			}
			stop, err := w.step(in)
			if err != nil {
				return err
			}
			if stop {
				break
			}
		}
		if len(w.conds) > 0 {
			return errStop
		}
		for len(w.alt) > 0 {
			w.drop(&w.alt)
		}
	}
	return nil
}

func (w *way) pay(cost int64) error {
	if w.m.work += cost; w.m.work > w.m.limit || w.m.work < 0 {
		return heavy("work")
	}
	return nil
}

func (w *way) executing() bool { return len(w.conds) == 0 || w.conds[len(w.conds)-1] == condTrue }

func (w *way) step(in instruction) (stop bool, err error) {
	exec := true
	for _, c := range w.conds {
		exec = exec && c != condFalse
	}
	exec = exec && (!w.returned || in.op == script.OpRETURN)
	conditional := false
	switch in.op {
	case script.OpIF, script.OpNOTIF, script.OpELSE, script.OpENDIF, script.OpVERIF, script.OpVERNOTIF:
		conditional = true
	}
	if !conditional && (!exec || !w.executing()) {
		return false, nil
	}
	switch in.op {
	case script.OpIF, script.OpNOTIF:
		cond := condFalse
		switch {
		case exec && !w.executing():
			cond = condSkip
		case exec:
			b, err := w.pop()
			if err != nil {
				return false, err
			}
			if truth(b) == (in.op == script.OpIF) {
				cond = condTrue
			}
		}
		w.conds, w.elses = append(w.conds, cond), append(w.elses, false)
	case script.OpELSE:
		if len(w.conds) == 0 || w.elses[len(w.elses)-1] {
			return false, errStop
		}
		w.elses[len(w.elses)-1] = true
		switch c := &w.conds[len(w.conds)-1]; *c {
		case condTrue:
			*c = condFalse
		case condFalse:
			*c = condTrue
		}
	case script.OpENDIF:
		if len(w.conds) == 0 {
			return false, errStop
		}
		w.conds, w.elses = w.conds[:len(w.conds)-1], w.elses[:len(w.elses)-1]
	case script.OpVERIF, script.OpVERNOTIF:
		if exec {
			return false, errStop
		}
	case script.OpRETURN:
		w.returned = true
		return len(w.conds) == 0, nil
	default:
		return false, w.operate(in)
	}
	return false, nil
}

// push puts an element on the stack. Elements may share their bytes, yet each
// counts whole: that is the side to be wrong on.
func (w *way) push(b []byte) error { return w.pushTo(&w.stack, b) }

func (w *way) pushTo(s *[][]byte, b []byte) error {
	if w.memory += int64(len(b)) + 24; w.memory > maxMemory {
		return heavy("memory")
	}
	*s = append(*s, b)
	return w.pay(int64(len(b)) / 8)
}

func (w *way) pop() ([]byte, error) { return w.popFrom(&w.stack) }

func (w *way) popFrom(s *[][]byte) ([]byte, error) {
	if len(*s) == 0 {
		return nil, errStop
	}
	return w.drop(s), nil
}

func (w *way) drop(s *[][]byte) []byte {
	b := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	w.memory -= int64(len(b)) + 24
	return b
}

// number pops a script number. The engine builds one byte by byte, with work
// that grows with the square of its length.
func (w *way) number() (*big.Int, error) {
	b, err := w.pop()
	if err != nil {
		return nil, err
	}
	return w.toNumber(b, maxNumber)
}

const maxNumber = 750_000 // bytes, since Genesis

func (w *way) toNumber(b []byte, limit int) (*big.Int, error) {
	if len(b) > limit {
		return nil, errStop
	}
	n := int64(len(b))
	if err := w.pay(n*n/2 + 50*n); err != nil {
		return nil, err
	}
	v := new(big.Int)
	if n == 0 {
		return v, nil
	}
	reversed := make([]byte, n)
	for i := range b {
		reversed[len(b)-1-i] = b[i]
	}
	negative := reversed[0]&0x80 != 0
	reversed[0] &= 0x7f
	if v.SetBytes(reversed); negative {
		v.Neg(v)
	}
	return v, nil
}

// small pops a number as the engine does where an index is wanted.
func (w *way) small() (int64, error) {
	v, err := w.number()
	if err != nil {
		return 0, err
	}
	return max(min(v.Int64(), math.MaxInt32), math.MinInt32), nil
}

func (w *way) encode(v *big.Int) ([]byte, error) {
	b := v.Bytes()
	n := int64(len(b))
	if err := w.pay(n*n/8 + 50*n); err != nil {
		return nil, err
	}
	out := make([]byte, len(b), len(b)+1)
	for i := range b {
		out[len(b)-1-i] = b[i]
	}
	if len(out) > 0 {
		if out[len(out)-1]&0x80 != 0 {
			out = append(out, 0)
		}
		if v.Sign() < 0 {
			out[len(out)-1] |= 0x80
		}
	}
	return out, nil
}

func (w *way) pushNumber(v *big.Int) error {
	b, err := w.encode(v)
	if err != nil {
		return err
	}
	return w.push(b)
}

func (w *way) pushBool(b bool) error {
	if b {
		return w.push([]byte{1})
	}
	return w.push(nil)
}

func (w *way) verify() error {
	b, err := w.pop()
	if err != nil {
		return err
	}
	if !truth(b) {
		return errStop
	}
	return nil
}

// decided is the result of a signature: on a way that has not come here before,
// it holds, and the other way is left for later.
func (w *way) decided(verify bool) bool {
	if w.known < len(w.results) {
		w.known++
		return w.results[w.known-1]
	}
	if !verify && !w.last { // a verify that fails ends the script at once
		other := append(append(make([]bool, 0, len(w.results)+1), w.results...), false)
		w.m.ways = append(w.m.ways, other)
	}
	w.results = append(w.results[:len(w.results):len(w.results)], true)
	w.known++
	return true
}

func truth(b []byte) bool {
	for i, c := range b {
		if c != 0 {
			return i != len(b)-1 || c != 0x80
		}
	}
	return false
}
