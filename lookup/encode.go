package lookup

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// Bodies are written canonically (RFC 8785) by splicing: member names in order, no white space, BEEF encoded straight into
// the body and never through an intermediate tree. A group is first drafted without its BEEF, so that its exact size is
// known before a byte of evidence is read.

const (
	kindOutput      = "output"
	kindSpend       = "spend"
	kindWithdraw    = "withdraw"
	kindInvalidated = "assessment-invalidated"
)

// fact is one observation before it has an identity and bytes.
type fact struct {
	kind         string
	outpoint     livefeed.Outpoint
	state        *livefeed.State   // output
	evidence     livefeed.Evidence // spend
	spendingTxID [32]byte          // spend
	reason       string            // withdraw, assessment-invalidated
	contextID    string            // assessment-invalidated
}

// discloses reports whether serving the fact newly discloses its row (conformance row A5); a withdraw may always pass.
func (f *fact) discloses() bool { return f.kind == kindOutput || f.kind == kindSpend }

// draft is a group whose bytes are complete but for the BEEF of its pieces.
type draft struct {
	sequence     uint64
	version      int64 // snapshot groups: the row version, which is the position after this group
	pieces       []piece
	size         int // bytes of the finished group
	observations int
	disclosed    []byte // outpoints, 36 bytes each, of the rows named by an output or a spend's previous
}

// piece is a run of finished bytes, followed by the base64 of a BEEF unless evidence is nil.
type piece struct {
	text     []byte
	evidence *livefeed.Evidence
}

func base64Size(n int) int { return base64.StdEncoding.EncodedLen(n) }

// append writes the finished group, taking each BEEF from blobs.
func (d *draft) append(dst []byte, blobs map[[32]byte][]byte) []byte {
	for i := range d.pieces {
		dst = append(dst, d.pieces[i].text...)
		if e := d.pieces[i].evidence; e != nil {
			dst = base64.StdEncoding.AppendEncode(dst, blobs[e.SHA256])
		}
	}
	return dst
}

// voice is what every observation of a session repeats: its scope and chain, already canonical.
type voice struct {
	scope []byte
	chain []byte
}

func newVoice(scope wire.Scope) voice {
	chain := append([]byte(`{"genesisHash":`), canon.AppendString(nil, scope.Chain.GenesisHash)...)
	chain = append(chain, `,"network":`...)
	chain = append(canon.AppendString(chain, scope.Chain.Network), '}')
	return voice{scope: scope.AppendCanonical(nil), chain: chain}
}

// draft lays out one group.
func (v voice) draft(sequence uint64, id string, facts []fact, observationID func(i int) string) *draft {
	d := &draft{sequence: sequence, observations: len(facts)}
	text := append([]byte(`{"id":"`), id...)
	text = append(text, `","observations":[`...)
	for i := range facts {
		f := &facts[i]
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `{"id":"`...)
		text = append(text, observationID(i)...)
		text = append(text, `","kind":"`...)
		text = append(text, f.kind...)
		text = append(text, `","payload":{`...)
		text = v.payload(d, text, f)
		text = append(text, `},"scope":`...)
		text = append(text, v.scope...)
		text = append(text, '}')
		if f.discloses() {
			point := f.outpoint.Bytes()
			d.disclosed = append(d.disclosed, point[:]...)
		}
	}
	text = append(text, `],"sequence":"`...)
	text = strconv.AppendUint(text, sequence, 10)
	text = append(text, `"}`...)
	d.push(text, nil)
	return d
}

func (d *draft) push(text []byte, evidence *livefeed.Evidence) {
	d.pieces = append(d.pieces, piece{text, evidence})
	d.size += len(text)
	if evidence != nil {
		d.size += base64Size(evidence.Size)
	}
}

// payload appends the members of a payload to text, pushing finished pieces where a BEEF goes, and returns the open text.
func (v voice) payload(d *draft, text []byte, f *fact) []byte {
	switch f.kind {
	case kindOutput:
		if c := f.state.Context; c != nil {
			text = append(text, `"context":{"bytes":"`...)
			text = base64.StdEncoding.AppendEncode(text, c.Bytes)
			text = append(text, `","schema":`...)
			text = canon.AppendString(text, c.Schema)
			text = append(text, `},`...)
		}
		text = append(text, `"evidence":{"beef":"`...)
		d.push(text, &f.state.Evidence)
		text = append([]byte(nil), `","outputIndex":`...)
		text = strconv.AppendUint(text, uint64(f.outpoint.Index), 10)
		text = append(text, `,"txid":"`...)
		text = hex.AppendEncode(text, f.outpoint.TxID[:])
		return append(text, `"}`...)
	case kindSpend:
		text = append(text, `"beef":"`...)
		d.push(text, &f.evidence)
		text = append([]byte(nil), `","previous":`...)
		text = v.outpoint(text, f.outpoint)
		text = append(text, `,"spendingTxid":"`...)
		text = hex.AppendEncode(text, f.spendingTxID[:])
		return append(text, '"')
	case kindWithdraw:
		text = append(text, `"outpoint":`...)
		text = v.outpoint(text, f.outpoint)
		text = append(text, `,"reason":`...)
		return canon.AppendString(text, f.reason)
	default:
		text = append(text, `"contextId":`...)
		text = canon.AppendString(text, f.contextID)
		text = append(text, `,"reason":`...)
		return canon.AppendString(text, f.reason)
	}
}

func (v voice) outpoint(text []byte, o livefeed.Outpoint) []byte {
	text = append(text, `{"chain":`...)
	text = append(text, v.chain...)
	text = append(text, `,"outputIndex":`...)
	text = strconv.AppendUint(text, uint64(o.Index), 10)
	text = append(text, `,"txid":"`...)
	text = hex.AppendEncode(text, o.TxID[:])
	return append(text, `"}`...)
}

// identitySize is the length in characters of every group and observation id: a namespace letter and 18 digest bytes.
const identitySize = 1 + 24

// identity makes a stable id in a namespace ('s' snapshot, 'l' live) from length-prefixed parts.
func identity(namespace byte, parts ...[]byte) string {
	h := sha256.New()
	var size [8]byte
	h.Write([]byte{namespace})
	for _, part := range parts {
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	out := make([]byte, 1, identitySize)
	out[0] = namespace
	return string(base64.RawURLEncoding.AppendEncode(out, h.Sum(nil)[:18]))
}

func beUint64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// liveDraft lays out a live group. Its ids come from epoch and scope, sequence and index alone: not from session, limits or
// time (conformance row L4). The scope holds the epoch.
func (v voice) liveDraft(sequence uint64, facts []fact) *draft {
	return v.draft(sequence, identity('l', v.scope, beUint64(sequence)), facts, func(i int) string {
		return identity('l', v.scope, beUint64(sequence), beUint64(uint64(i)))
	})
}

// snapshotDraft lays out a snapshot group: one row, numbered W. Its ids belong to the session (conformance row S6).
func (v voice) snapshotDraft(session [32]byte, w uint64, row *livefeed.PageRow) *draft {
	point := row.Outpoint.Bytes()
	facts := []fact{{kind: kindOutput, outpoint: row.Outpoint, state: &row.State}}
	d := v.draft(w, identity('s', session[:], point[:]), facts, func(int) string {
		return identity('s', session[:], point[:], []byte{0})
	})
	d.version = row.Version
	return d
}

// head is everything of a Batch but its groups.
type head struct {
	session, cursor                            string
	scope                                      []byte
	phase                                      string
	complete                                   bool
	through, highWater, expiresAt, replayUntil uint64
	limits                                     wire.Limits
}

// append writes the whole body with the groups given.
func (h *head) append(dst []byte, groups []*draft, blobs map[[32]byte][]byte) []byte {
	dst = append(dst, `{"cursor":`...)
	dst = canon.AppendString(dst, h.cursor)
	dst = append(dst, `,"expiresAt":"`...)
	dst = strconv.AppendUint(dst, h.expiresAt, 10)
	dst = append(dst, `","groups":[`...)
	for i, g := range groups {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = g.append(dst, blobs)
	}
	dst = append(dst, `],"highWater":"`...)
	dst = strconv.AppendUint(dst, h.highWater, 10)
	dst = append(dst, `","limits":{"maxBytes":`...)
	dst = strconv.AppendUint(dst, uint64(h.limits.MaxBytes), 10)
	dst = append(dst, `,"maxObservations":`...)
	dst = strconv.AppendUint(dst, uint64(h.limits.MaxObservations), 10)
	dst = append(dst, `,"waitMs":`...)
	dst = strconv.AppendUint(dst, uint64(h.limits.WaitMs), 10)
	dst = append(dst, `},"phase":"`...)
	dst = append(dst, h.phase...)
	dst = append(dst, `","replayUntil":"`...)
	dst = strconv.AppendUint(dst, h.replayUntil, 10)
	dst = append(dst, `","scope":`...)
	dst = append(dst, h.scope...)
	dst = append(dst, `,"session":`...)
	dst = canon.AppendString(dst, h.session)
	dst = append(dst, `,"snapshotComplete":`...)
	dst = strconv.AppendBool(dst, h.complete)
	dst = append(dst, `,"through":"`...)
	dst = strconv.AppendUint(dst, h.through, 10)
	return append(dst, `","version":1}`...)
}
