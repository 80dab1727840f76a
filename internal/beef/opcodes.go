package beef

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // the opcode is what it is
	"crypto/sha256"
	"math"
	"math/big"

	crypto "github.com/bsv-blockchain/go-sdk/primitives/hash"
	"github.com/bsv-blockchain/go-sdk/script"
)

// operate does what an opcode does to the stacks.
func (w *way) operate(in instruction) error {
	switch op := in.op; {
	case op < script.Op1NEGATE:
		return w.push(in.data)
	case op == script.Op1NEGATE:
		return w.push([]byte{0x81})
	case op >= script.Op1 && op <= script.Op16:
		return w.push([]byte{op - script.Op1 + 1})
	case op == script.OpNOP, op >= script.OpNOP1 && op <= script.OpNOP10, op == script.OpCODESEPARATOR:
		return nil
	case op == script.OpVERIFY:
		return w.verify()
	case op >= script.OpTOALTSTACK && op <= script.OpTUCK:
		return w.arrange(op)
	case op >= script.OpCAT && op <= script.OpEQUALVERIFY:
		return w.splice(op)
	case op == script.OpLSHIFT, op == script.OpRSHIFT:
		return w.shift(op)
	case op >= script.Op1ADD && op <= script.OpWITHIN && op != script.Op2MUL && op != script.Op2DIV:
		return w.reckon(op)
	case op >= script.OpRIPEMD160 && op <= script.OpHASH256:
		return w.hash(op)
	case op == script.OpCHECKSIG, op == script.OpCHECKSIGVERIFY:
		return w.checkSig(op == script.OpCHECKSIGVERIFY)
	case op == script.OpCHECKMULTISIG, op == script.OpCHECKMULTISIGVERIFY:
		return w.checkMultiSig(op == script.OpCHECKMULTISIGVERIFY)
	}
	return errStop
}

// roll moves the n-th element from the top (0 is the top) to the top.
func (w *way) roll(n int64) error {
	at := int64(len(w.stack)) - 1 - n
	if n < 0 || at < 0 {
		return errStop
	}
	b := w.stack[at]
	copy(w.stack[at:], w.stack[at+1:])
	w.stack[len(w.stack)-1] = b
	return w.pay(24 * n)
}

// pick pushes the n-th element from the top again.
func (w *way) pick(n int64) error {
	at := int64(len(w.stack)) - 1 - n
	if n < 0 || at < 0 {
		return errStop
	}
	return w.push(w.stack[at])
}

// times does f again and again until it fails.
func times(n int, f func() error) error {
	for range n {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (w *way) arrange(op byte) error {
	remove := func() error { _, err := w.pop(); return err }
	switch op {
	case script.OpTOALTSTACK:
		b, err := w.pop()
		if err != nil {
			return err
		}
		return w.pushTo(&w.alt, b)
	case script.OpFROMALTSTACK:
		b, err := w.popFrom(&w.alt)
		if err != nil {
			return err
		}
		return w.push(b)
	case script.Op2DROP:
		return times(2, remove)
	case script.OpDROP:
		return remove()
	case script.OpDUP:
		return w.pick(0)
	case script.Op2DUP:
		return times(2, func() error { return w.pick(1) })
	case script.Op3DUP:
		return times(3, func() error { return w.pick(2) })
	case script.OpOVER:
		return w.pick(1)
	case script.Op2OVER:
		return times(2, func() error { return w.pick(3) })
	case script.OpSWAP:
		return w.roll(1)
	case script.Op2SWAP:
		return times(2, func() error { return w.roll(3) })
	case script.OpROT:
		return w.roll(2)
	case script.Op2ROT:
		return times(2, func() error { return w.roll(5) })
	case script.OpIFDUP:
		if len(w.stack) == 0 {
			return errStop
		}
		if truth(w.stack[len(w.stack)-1]) {
			return w.pick(0)
		}
		return nil
	case script.OpDEPTH:
		return w.pushNumber(big.NewInt(int64(len(w.stack))))
	case script.OpNIP:
		if err := w.roll(1); err != nil {
			return err
		}
		return remove()
	case script.OpTUCK:
		if err := w.roll(1); err != nil {
			return err
		}
		return w.pick(1)
	case script.OpPICK, script.OpROLL:
		n, err := w.small()
		if err != nil {
			return err
		}
		if op == script.OpPICK {
			return w.pick(n)
		}
		return w.roll(n)
	}
	return errStop
}

func (w *way) splice(op byte) error {
	switch op {
	case script.OpSIZE:
		if len(w.stack) == 0 {
			return errStop
		}
		return w.pushNumber(big.NewInt(int64(len(w.stack[len(w.stack)-1]))))
	case script.OpSPLIT:
		v, err := w.number()
		if err != nil {
			return err
		}
		b, err := w.pop()
		if err != nil {
			return err
		}
		n := v.Int64()
		if v.Sign() < 0 || n < 0 || n > int64(len(b)) {
			return errStop
		}
		if err := w.push(b[:n:n]); err != nil {
			return err
		}
		return w.push(b[n:])
	case script.OpNUM2BIN:
		return w.num2bin()
	case script.OpBIN2NUM:
		b, err := w.pop()
		if err != nil {
			return err
		}
		b = minimal(b)
		if len(b) > maxNumber {
			return errStop
		}
		return w.push(b)
	case script.OpINVERT:
		b, err := w.pop()
		if err != nil {
			return err
		}
		out := make([]byte, len(b))
		for i := range b {
			out[i] = ^b[i]
		}
		return w.push(out)
	}
	b, err := w.pop()
	if err != nil {
		return err
	}
	a, err := w.pop()
	if err != nil {
		return err
	}
	if err := w.pay(int64(len(a) + len(b))); err != nil {
		return err
	}
	switch op {
	case script.OpCAT:
		if w.memory+int64(len(a)+len(b)) > maxMemory {
			return heavy("memory")
		}
		return w.push(append(append(make([]byte, 0, len(a)+len(b)), a...), b...))
	case script.OpEQUAL:
		return w.pushBool(bytes.Equal(a, b))
	case script.OpEQUALVERIFY:
		if !bytes.Equal(a, b) {
			return errStop
		}
		return nil
	case script.OpAND, script.OpOR, script.OpXOR:
		if len(a) != len(b) {
			return errStop
		}
		out := make([]byte, len(a))
		for i := range a {
			switch op {
			case script.OpAND:
				out[i] = a[i] & b[i]
			case script.OpOR:
				out[i] = a[i] | b[i]
			default:
				out[i] = a[i] ^ b[i]
			}
		}
		return w.push(out)
	}
	return errStop
}

func (w *way) num2bin() error {
	size, err := w.number()
	if err != nil {
		return err
	}
	a, err := w.pop()
	if err != nil {
		return err
	}
	if size.Cmp(big.NewInt(math.MaxInt32)) > 0 {
		return errStop
	}
	v, err := w.toNumber(a, math.MaxInt)
	if err != nil {
		return err
	}
	b, err := w.encode(v)
	if err != nil {
		return err
	}
	n := size.Int64()
	if n < int64(len(b)) {
		return errStop
	}
	if n > maxMemory {
		return heavy("memory")
	}
	if err := w.pay(100 * n); err != nil { // the engine counts up byte by byte
		return err
	}
	out := make([]byte, n)
	copy(out, b)
	if len(b) > 0 && n > int64(len(b)) {
		sign := out[len(b)-1] & 0x80
		out[len(b)-1] &= 0x7f
		out[n-1] = sign
	}
	return w.push(out)
}

// minimal is the shortest form of a number, in a copy.
func minimal(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) == 0 || b[len(b)-1]&0x7f != 0 {
		return b
	}
	sign := b[len(b)-1] & 0x80
	end := len(b) - 1
	for end > 0 && b[end-1] == 0 {
		end--
	}
	if end == 0 {
		return nil
	}
	if b[end-1]&0x80 != 0 {
		b[end] = sign
		return b[:end+1]
	}
	b[end-1] |= sign
	return b[:end]
}

func (w *way) shift(op byte) error {
	v, err := w.number()
	if err != nil {
		return err
	}
	b, err := w.pop()
	n := v.Int64()
	if err != nil || n < 0 {
		return errStop
	}
	if err := w.pay(4 * int64(len(b))); err != nil {
		return err
	}
	x := new(big.Int).SetBytes(b)
	bits := int64(8 * len(b))
	switch {
	case n >= bits:
		x.SetInt64(0)
	case op == script.OpRSHIFT:
		x.Rsh(x, uint(n))
	default:
		x.Lsh(x, uint(n))
		x.And(x, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(bits)), big.NewInt(1)))
	}
	return w.push(x.FillBytes(make([]byte, len(b))))
}

// reckon does the opcodes that take numbers.
func (w *way) reckon(op byte) error {
	one := big.NewInt(1)
	b, err := w.number()
	if err != nil {
		return err
	}
	switch op {
	case script.Op1ADD:
		return w.pushNumber(b.Add(b, one))
	case script.Op1SUB:
		return w.pushNumber(b.Sub(b, one))
	case script.OpNEGATE:
		return w.pushNumber(b.Neg(b))
	case script.OpABS:
		return w.pushNumber(b.Abs(b))
	case script.OpNOT:
		return w.pushBool(b.Sign() == 0)
	case script.Op0NOTEQUAL:
		return w.pushBool(b.Sign() != 0)
	}
	a, err := w.number()
	if err != nil {
		return err
	}
	size := int64(len(a.Bits())+1) * int64(len(b.Bits())+1)
	switch op {
	case script.OpADD:
		return w.pushNumber(a.Add(a, b))
	case script.OpSUB:
		return w.pushNumber(a.Sub(a, b))
	case script.OpMUL:
		if err := w.pay(2 * size); err != nil {
			return err
		}
		return w.pushNumber(a.Mul(a, b))
	case script.OpDIV, script.OpMOD:
		if err := w.pay(8 * size); err != nil {
			return err
		}
		if b.Sign() == 0 {
			return errStop
		}
		if op == script.OpDIV {
			return w.pushNumber(a.Quo(a, b))
		}
		return w.pushNumber(a.Rem(a, b))
	case script.OpMIN, script.OpMAX:
		if (a.Cmp(b) < 0) != (op == script.OpMIN) {
			a = b
		}
		return w.pushNumber(a)
	case script.OpWITHIN:
		x, err := w.number()
		if err != nil {
			return err
		}
		return w.pushBool(a.Cmp(x) <= 0 && x.Cmp(b) < 0)
	case script.OpNUMEQUALVERIFY:
		if a.Cmp(b) != 0 {
			return errStop
		}
		return nil
	}
	order := a.Cmp(b)
	return w.pushBool(map[byte]bool{
		script.OpBOOLAND:            a.Sign() != 0 && b.Sign() != 0,
		script.OpBOOLOR:             a.Sign() != 0 || b.Sign() != 0,
		script.OpNUMEQUAL:           order == 0,
		script.OpNUMNOTEQUAL:        order != 0,
		script.OpLESSTHAN:           order < 0,
		script.OpGREATERTHAN:        order > 0,
		script.OpLESSTHANOREQUAL:    order <= 0,
		script.OpGREATERTHANOREQUAL: order >= 0,
	}[op])
}

func (w *way) hash(op byte) error {
	b, err := w.pop()
	if err != nil {
		return err
	}
	if err := w.pay(1_000 + 8*int64(len(b))); err != nil {
		return err
	}
	switch op {
	case script.OpRIPEMD160:
		return w.push(crypto.Ripemd160(b))
	case script.OpSHA1:
		h := sha1.Sum(b) //nolint:gosec // the opcode is what it is
		return w.push(h[:])
	case script.OpSHA256:
		h := sha256.Sum256(b)
		return w.push(h[:])
	case script.OpHASH160:
		return w.push(crypto.Hash160(b))
	default:
		return w.push(crypto.Sha256d(b))
	}
}

func (w *way) checkSig(verify bool) error {
	if _, err := w.pop(); err != nil {
		return err
	}
	signature, err := w.pop()
	if err != nil {
		return err
	}
	result := false
	if len(signature) > 0 {
		if err := w.pay(w.m.signature); err != nil {
			return err
		}
		result = w.decided(verify)
	}
	if verify {
		if !result {
			return errStop
		}
		return nil
	}
	return w.pushBool(result)
}

func (w *way) checkMultiSig(verify bool) error {
	v, err := w.number()
	if err != nil {
		return err
	}
	// The engine makes room for as many keys as it is told of, before it looks
	// for them.
	keys := v.Int64()
	if v.Sign() < 0 || keys < 0 {
		return errStop
	}
	if !v.IsInt64() || keys > maxOps {
		return heavy("memory")
	}
	if err := w.pay(24 * keys); err != nil {
		return err
	}
	remove := func() error { _, err := w.pop(); return err }
	if err := times(int(keys), remove); err != nil {
		return err
	}
	v, err = w.number()
	if err != nil {
		return err
	}
	signatures := v.Int64()
	if signatures < 0 || signatures > keys {
		return errStop
	}
	if err := times(int(signatures)+1, remove); err != nil {
		return err
	}
	result := true
	if signatures > 0 {
		if err := w.pay(keys * w.m.signature); err != nil {
			return err
		}
		result = w.decided(verify)
	}
	if verify {
		return nil
	}
	return w.pushBool(result)
}
