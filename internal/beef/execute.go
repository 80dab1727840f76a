package beef

import (
	"fmt"

	"github.com/bsv-blockchain/go-sdk/script"
	"github.com/bsv-blockchain/go-sdk/script/interpreter"
	"github.com/bsv-blockchain/go-sdk/script/interpreter/scriptflag"
	"github.com/bsv-blockchain/go-sdk/transaction"
)

// Prepared is a transaction whose scripts are to be run, parsed once for all of
// its inputs. One goroutine at a time.
type Prepared struct {
	*Member
	tx *transaction.Transaction
}

// Prepare reads a raw transaction as [ParseTx] does, and makes it ready to run.
// The error is an [*Error].
func Prepare(raw []byte) (p *Prepared, err error) {
	m, err := ParseTx(raw)
	if err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, &Error{Reason: "unreadable transaction", cause: fmt.Errorf("panic in the transaction reader: %v", r)}
		}
	}()
	tx, err := transaction.NewTransactionFromBytes(raw)
	if err != nil {
		return nil, &Error{Reason: "unreadable transaction", cause: err}
	}
	if len(tx.Inputs) != len(m.Inputs) || len(tx.Outputs) != len(m.Outputs) || reversed(tx.TxID()[:]) != m.TxID {
		return nil, &Error{Reason: "unreadable transaction", cause: fmt.Errorf("scan and reader disagree on %x", m.TxID)}
	}
	return &Prepared{Member: m, tx: tx}, nil
}

// Execute runs the scripts of one input against the output it spends, under the
// rules in force since Genesis: the unlocking script may only push. nil means
// that the input is unlocked.
//
// go-sdk sets no bounds of its own, so what a script would cost is found out
// before it runs: [ErrLimit] when that is more than the seconds and the megabytes that one input may take. Every other error is an [*Error] that says
// that the script fails.
func (p *Prepared) Execute(input int, locking []byte, satoshis uint64) (err error) {
	if input < 0 || input >= len(p.Inputs) {
		return &Error{Reason: fmt.Sprintf("input %d, but transaction %x has %d", input, p.TxID, len(p.Inputs))}
	}
	if err := p.weigh(input, locking); err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Reason: fmt.Sprintf("the script of input %d of %x fails", input, p.TxID), cause: fmt.Errorf("panic while running: %v", r)}
		}
	}()
	spent := &transaction.TransactionOutput{Satoshis: satoshis, LockingScript: script.NewFromBytes(locking)}
	err = interpreter.NewEngine().Execute(
		interpreter.WithTx(p.tx, input, spent),
		interpreter.WithForkID(),
		interpreter.WithAfterGenesis(),
		interpreter.WithFlags(scriptflag.VerifySigPushOnly),
	)
	if err != nil {
		return &Error{Reason: fmt.Sprintf("the script of input %d of %x fails", input, p.TxID), cause: err}
	}
	return nil
}

// Execute runs one input of a raw transaction: see [Prepared.Execute].
func Execute(tx []byte, input int, locking []byte, satoshis uint64) error {
	p, err := Prepare(tx)
	if err != nil {
		return err
	}
	return p.Execute(input, locking, satoshis)
}

// What running the scripts of one input may cost.
const (
	maxWork   = 2_000_000_000 // roughly nanoseconds of one core
	maxMemory = 32 << 20      // bytes on the stacks
	maxOps    = 1 << 19       // opcodes in one script: each takes some 80 bytes when parsed
	maxForks  = 64            // ways through a script that signatures decide on
)

// weigh says with [ErrLimit] when running an input would cost too much.
func (p *Prepared) weigh(input int, locking []byte) error {
	unlocking := p.unlocking[input]
	if plain(unlocking, true) && plain(locking, false) {
		return nil
	}
	m := &meter{limit: maxWork, signature: 1_000_000 + 4*int64(len(p.Raw)) + 300*int64(len(p.Inputs)+len(p.Outputs)) + 10*int64(len(locking))}
	if what := m.weigh(unlocking, locking); what != "" {
		return &Error{Reason: fmt.Sprintf("the script of input %d of %x asks for too much %s", input, p.TxID, what), kind: ErrLimit}
	}
	return nil
}

// plain says that a script is short and made of nothing but opcodes that cannot
// make anything grow, as nearly all are: it needs no weighing.
func plain(s []byte, pushes bool) bool {
	if len(s) > 2_000 {
		return false
	}
	signatures := 0
	for len(s) > 0 {
		op, _, rest, ok := nextOp(s)
		if !ok {
			return true // the engine refuses it while parsing
		}
		s = rest
		switch {
		case op <= script.Op16:
		case pushes:
			return true // not push-only: the engine refuses it
		default:
			switch op {
			case script.OpDUP, script.OpDROP, script.OpSWAP, script.OpEQUAL, script.OpEQUALVERIFY, script.OpVERIFY, script.OpNOP,
				script.OpHASH160, script.OpHASH256, script.OpSHA256, script.OpRIPEMD160, script.OpSHA1:
			case script.OpCHECKSIG, script.OpCHECKSIGVERIFY:
				if signatures++; signatures > 8 {
					return false
				}
			default:
				return false
			}
		}
	}
	return true
}

// nextOp splits the first opcode off a script.
func nextOp(s []byte) (op byte, data, rest []byte, ok bool) {
	op, s = s[0], s[1:]
	n := 0
	switch {
	case op < script.OpPUSHDATA1:
		n = int(op)
	case op == script.OpPUSHDATA1 && len(s) >= 1:
		n, s = int(s[0]), s[1:]
	case op == script.OpPUSHDATA2 && len(s) >= 2:
		n, s = int(s[0])|int(s[1])<<8, s[2:]
	case op == script.OpPUSHDATA4 && len(s) >= 4:
		n, s = int(s[0])|int(s[1])<<8|int(s[2])<<16|int(s[3])<<24, s[4:]
	case op <= script.OpPUSHDATA4:
		return op, nil, nil, false
	}
	if n > len(s) {
		return op, nil, nil, false
	}
	return op, s[:n], s[n:], true
}
