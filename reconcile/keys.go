package reconcile

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// The spaces: the first byte of every key. Numbers in keys are big endian.
const (
	spaceMeta        = 'm' // -> metaRow
	spaceMutation    = 'k' // key32 -> mutationRow
	spaceContext     = 'c' // position8 -> Context
	spaceSource      = 's' // source4 -> sourceRow
	spaceSourceKey   = 'S' // sha256 of the key, 16 -> source4
	spaceGeneration  = 'g' // source4 generation8 -> generationRow
	spaceGroup       = 'G' // group8 -> groupRow
	spaceQueue       = 'h' // source4 generation8 ord8 -> group8: waits for its results or for its turn
	spaceReady       = 'R' // group8: every candidate is verified, not accepted
	spaceID          = 'i' // source4 namespace16 kind1 id16 -> idRow
	spaceObservation = 'o' // group8 index4 -> observationRow
	spaceEvidence    = 'v' // variant32 -> BEEF
	spaceCandidate   = 'a' // group8 index4 -> candidateRow
	spaceJob         = 'j' // source4 group8 index4 -> jobRow
	spaceVerified    = 'V' // group8 index4: verified in a group that is not accepted
	spaceForeign     = 'F' // group8 index4: unresolved, may be resolved by another context
	spaceWaiters     = 'W' // txid -> waitersRow: candidates that named it as missing
	spaceTx          = 't' // txid -> txRow
	spaceRaw         = 'r' // txid -> raw bytes
	spaceSpend       = 'e' // txid index4 spender32: by the output consumed
	spaceCarrier     = 'x' // txid group8 -> carrierRow
	spaceCarried     = 'y' // group8 -> idsRow
	spaceClaim       = 'P' // height4 txid -> 1 for a coinbase
	spaceLock        = 'l' // kind1 locktime4 txid
	spaceReplacement = 'n' // at8 readyAt8 depth4 firstRaw8 index4 txid -> previous32
	spacePending     = 'b' // txid: of a component that is pending
	spaceDue         = 'D' // txid: its component must be recomputed
	spaceMember      = 'u' // source4 generation8 txid index4 -> membershipRow
	spaceListing     = 'U' // txid index4 source4 generation8
	spaceOutput      = 'O' // txid index4 -> outputRow
	spaceOutputState = 'Y' // state1 txid index4
	spaceSweep       = 'Q' // source4 generation8: retired, rows not removed yet
	spaceChange      = 'w' // accepted8 -> Change, or 0 when it was too large
	spaceProjector   = 'd' // name -> projectorRow
	spaceQuarantine  = 'z' // source4 number8 -> Quarantined
	spaceAttachment  = 'A' // the runtime's own
)

// key builds a key from numbers, ids and bytes.
func key(space byte, parts ...any) []byte {
	k := make([]byte, 1, 64)
	k[0] = space
	for _, p := range parts {
		switch p := p.(type) {
		case uint32:
			k = binary.BigEndian.AppendUint32(k, p)
		case uint64:
			k = binary.BigEndian.AppendUint64(k, p)
		case byte:
			k = append(k, p)
		case spend.TxID:
			k = append(k, p[:]...)
		case spend.Outpoint:
			k = binary.BigEndian.AppendUint32(append(k, p.TxID[:]...), p.Index)
		case []byte:
			k = append(k, p...)
		default:
			panic("a key has no such part")
		}
	}
	return k
}

// after is the first key that does not begin with prefix; nil when there is none.
func after(prefix []byte) []byte {
	end := append([]byte{}, prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

func u32At(k []byte, at int) uint32 { return binary.BigEndian.Uint32(k[at:]) }
func u64At(k []byte, at int) uint64 { return binary.BigEndian.Uint64(k[at:]) }

func txidAt(k []byte, at int) (id spend.TxID) {
	copy(id[:], k[at:at+32])
	return id
}

func outpointAt(k []byte, at int) spend.Outpoint {
	return spend.Outpoint{TxID: txidAt(k, at), Index: u32At(k, at+32)}
}

// namespace is where ids are unique: a scope's live log, or the snapshot of one
// generation of it (0: live).
func namespace(scope []byte, generation uint64) []byte {
	h := sha256.New()
	h.Write(scope)
	h.Write(binary.BigEndian.AppendUint64(nil, generation))
	return h.Sum(nil)[:16]
}

func idKey(source uint32, space []byte, kind byte, id string) []byte {
	h := sha256.Sum256([]byte(id))
	return key(spaceID, source, space, kind, h[:16])
}
