package verify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Plan reads what a BEEF holds for one target: its raw transactions, and where
// their Merkle paths lead, asked of the view. It runs no script and does no I/O;
// its work is bounded by the budget. A fault of the evidence is in the result.
func Plan(data []byte, target spend.TxID, v View, b reconcile.Budget) reconcile.Planned {
	b = b.Defaults()
	p := reconcile.Planned{Variant: sha256.Sum256(data), Target: target}
	if len(data) > b.Candidate {
		p.Fault = limited("Candidate", uint64(b.Candidate))
		return p
	}
	bundle, err := beef.Parse(data)
	if err != nil {
		p.Fault = fault(err)
		if errors.Is(err, beef.ErrTxIDOnly) && !atomicAbout(data, target) {
			p.Fault.Status = reconcile.Invalid
		}
		return p
	}
	members, _, err := bundle.Closure(target, b.Transactions)
	if err != nil {
		p.Fault = fault(err)
		if errors.Is(err, beef.ErrLimit) {
			p.Fault = limited("Transactions", uint64(b.Transactions))
		}
		return p
	}
	for i := range members {
		m := &members[i]
		p.Txs = append(p.Txs, rawTx(m))
		if m.Proof != nil {
			p.Claims = append(p.Claims, reconcile.Claim{TxID: m.TxID, Height: m.Proof.Height, Root: m.Proof.Root, Coinbase: m.Coinbase})
		}
	}
	p.Claims = Ask(v, p.Claims)
	p.Fault = forged(p.Claims, v.Context().TipHeight)
	p.Missing = missing(members, p.Claims)
	return p
}

// forged finds a path that leads to no block: its height is not above the tip, and
// no known branch has its root. A path that leads to another branch is no fault:
// the transaction may still be verified through its parents.
func forged(claims []reconcile.Claim, tip uint64) reconcile.Fault {
	for _, c := range claims {
		if !c.Holds && !c.Known && uint64(c.Height) <= tip {
			return reconcile.Fault{Status: reconcile.Invalid, Reason: fmt.Sprintf("the Merkle path of %s leads to no block at height %d", c.TxID, c.Height)}
		}
	}
	return reconcile.Fault{}
}

// missing lists the parents that the bundle does not hold and that are needed:
// those of members whose path does not hold.
func missing(members []beef.Member, claims []reconcile.Claim) []spend.TxID {
	here := make(map[spend.TxID]bool, len(members))
	for i := range members {
		here[members[i].TxID] = true
	}
	holds := make(map[spend.TxID]bool, len(claims))
	for _, c := range claims {
		holds[c.TxID] = c.Holds
	}
	var out []spend.TxID
	for i := range members {
		if m := &members[i]; !holds[m.TxID] && !m.Coinbase {
			for _, in := range m.Inputs {
				if id := spend.TxID(in.Prev); !here[id] {
					here[id] = true
					out = append(out, id)
				}
			}
		}
	}
	return out
}

func rawTx(m *beef.Member) reconcile.RawTx {
	tx := reconcile.RawTx{ID: m.TxID, Raw: m.Raw, Inputs: make([]spend.Input, len(m.Inputs)), LockTime: m.LockTime, Outputs: len(m.Outputs)}
	for i, in := range m.Inputs {
		tx.Inputs[i] = spend.Input{Outpoint: spend.Outpoint{TxID: in.Prev, Index: in.Index}, Sequence: in.Sequence}
	}
	return tx
}

// fault says what an error of internal/beef means for the candidate.
func fault(err error) reconcile.Fault {
	f := reconcile.Fault{Status: reconcile.Invalid, Reason: "unreadable evidence"}
	if e, ok := errors.AsType[*beef.Error](err); ok {
		f.Reason = e.Reason
	}
	if errors.Is(err, beef.ErrTxIDOnly) {
		f.Status = reconcile.Unresolved
	}
	return f
}

func limited(budget string, limit uint64) reconcile.Fault {
	return reconcile.Fault{Status: reconcile.Limited, Reason: (&reconcile.LimitError{Bound: budget, Limit: limit}).Error()}
}

// atomicAbout says whether bytes that begin as an Atomic BEEF are about target.
func atomicAbout(data []byte, target spend.TxID) bool {
	const subject = 4
	if len(data) < subject+32 {
		return false
	}
	id := slices.Clone(data[subject : subject+32])
	slices.Reverse(id)
	return spend.TxID(id) == target
}
