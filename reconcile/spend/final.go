package spend

// LockTimeThreshold divides lock times: below it they are heights, from it on Unix seconds.
const LockTimeThreshold = 500_000_000

// sequenceFinal in every input makes a transaction final whatever its lock time.
const sequenceFinal = 0xffffffff

// Final reports whether the transaction is final at a tip whose next height and median time are given. Its lock time must
// lie strictly below the limit: equality is not final (BRC-192 s10.3).
func Final(t *Tx, nextHeight, mtp uint64) bool { return final(t.Inputs, t.LockTime, nextHeight, mtp) }

// Final is [Final] of the node.
func (n *Node) Final(nextHeight, mtp uint64) bool {
	return n.Trusted || final(n.Inputs, n.LockTime, nextHeight, mtp)
}

func final(inputs []Input, lockTime uint32, nextHeight, mtp uint64) bool {
	if !Locked(inputs, lockTime) {
		return true
	}
	if lockTime < LockTimeThreshold {
		return uint64(lockTime) < nextHeight
	}
	return uint64(lockTime) < mtp
}

// Locked reports whether finality depends on the view at all: there is a lock time, and an input that is not final.
func Locked(inputs []Input, lockTime uint32) bool {
	if lockTime == 0 {
		return false
	}
	for i := range inputs {
		if inputs[i].Sequence != sequenceFinal {
			return true
		}
	}
	return false
}

// Increases reports whether next may replace old: the same outpoints in the same order, no sequence lower, one higher.
// Nothing else plays a part: not lock times, sums, or greatest sequences.
func Increases(old, next *Tx) bool {
	if len(old.Inputs) != len(next.Inputs) {
		return false
	}
	higher := false
	for i := range old.Inputs {
		a, b := &old.Inputs[i], &next.Inputs[i]
		if a.Outpoint != b.Outpoint || b.Sequence < a.Sequence {
			return false
		}
		higher = higher || b.Sequence > a.Sequence
	}
	return higher
}
