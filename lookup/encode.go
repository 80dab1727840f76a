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
// the body, or once for all bodies, and never through an intermediate tree. A group is first drafted without its BEEF, so that its exact size is
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

// draft is a group whose bytes are complete but for its BEEF.
type draft struct {
	sequence     uint64
	version      int64  // snapshot groups: the row version, which is the position after this group
	text         []byte // the group without its BEEF
	cuts         []cut  // where that goes, in order
	size         int    // bytes of the finished group
	observations int
	disclosed    []byte // outpoints, 36 bytes each, of the rows named by an output or a spend's previous
}

// cut is where in a draft's text the base64 of a BEEF goes.
type cut struct {
	at       int
	evidence livefeed.Evidence
}

func base64Size(n int) int { return base64.StdEncoding.EncodedLen(n) }

// append writes the finished group.
func (d *draft) append(dst []byte, e *evidence) []byte {
	from := 0
	for i := range d.cuts {
		c := &d.cuts[i]
		dst = append(dst, d.text[from:c.at]...)
		dst = e.append(dst, &c.evidence.SHA256)
		from = c.at
	}
	return append(dst, d.text[from:]...)
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

// naming appends the id of a group's observation, or of the group itself for the number ofGroup.
type naming func(dst []byte, observation int) []byte

const ofGroup = -1

// observationSize is about what an observation takes besides its scope, chain and BEEF.
const observationSize = 400

// draft lays out one group.
func (v voice) draft(sequence uint64, facts []fact, id naming) *draft {
	d := &draft{sequence: sequence, observations: len(facts)}
	text := make([]byte, 0, 128+len(facts)*(observationSize+len(v.scope)+len(v.chain)))
	disclosing := 0
	for i := range facts {
		if facts[i].discloses() {
			disclosing++
		}
	}
	if disclosing > 0 {
		d.cuts, d.disclosed = make([]cut, 0, disclosing), make([]byte, 0, disclosing*outpointSize)
	}
	text = append(text, `{"id":"`...)
	text = id(text, ofGroup)
	text = append(text, `","observations":[`...)
	for i := range facts {
		f := &facts[i]
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, `{"id":"`...)
		text = id(text, i)
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
	d.text = append(text, `"}`...)
	d.size += len(d.text)
	return d
}

// splice notes that a BEEF goes where the text ends.
func (d *draft) splice(text []byte, evidence *livefeed.Evidence) {
	d.cuts = append(d.cuts, cut{len(text), *evidence})
	d.size += base64Size(evidence.Size)
}

// payload appends the members of a payload to text and notes where a BEEF goes.
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
		d.splice(text, &f.state.Evidence)
		text = append(text, `","outputIndex":`...)
		text = strconv.AppendUint(text, uint64(f.outpoint.Index), 10)
		text = append(text, `,"txid":"`...)
		text = hex.AppendEncode(text, f.outpoint.TxID[:])
		return append(text, `"}`...)
	case kindSpend:
		text = append(text, `"beef":"`...)
		d.splice(text, &f.evidence)
		text = append(text, `","previous":`...)
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

// appendIdentity appends a stable id in a namespace ('s' snapshot, 'l' live) made of length-prefixed parts.
func appendIdentity(dst []byte, namespace byte, parts ...[]byte) []byte {
	var room [1024]byte // for most scopes
	text := append(room[:0], namespace)
	for _, part := range parts {
		text = binary.BigEndian.AppendUint64(text, uint64(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.AppendEncode(append(dst, namespace), sum[:18])
}

// liveDraft lays out a live group. Its ids come from epoch and scope, sequence and index alone: not from session, limits or
// time (conformance row L4). The scope holds the epoch.
func (v voice) liveDraft(sequence uint64, facts []fact) *draft {
	var of [8]byte
	binary.BigEndian.PutUint64(of[:], sequence)
	return v.draft(sequence, facts, func(dst []byte, observation int) []byte {
		if observation == ofGroup {
			return appendIdentity(dst, 'l', v.scope, of[:])
		}
		var index [8]byte
		binary.BigEndian.PutUint64(index[:], uint64(observation))
		return appendIdentity(dst, 'l', v.scope, of[:], index[:])
	})
}

// snapshotDraft lays out a snapshot group: one row, numbered W. Its ids belong to the session (conformance row S6).
func (v voice) snapshotDraft(session [32]byte, w uint64, row *livefeed.PageRow) *draft {
	point := row.Outpoint.Bytes()
	facts := [1]fact{{kind: kindOutput, outpoint: row.Outpoint, state: &row.State}}
	d := v.draft(w, facts[:], func(dst []byte, observation int) []byte {
		if observation == ofGroup {
			return appendIdentity(dst, 's', session[:], point[:])
		}
		return appendIdentity(dst, 's', session[:], point[:], []byte{0})
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
func (h *head) append(dst []byte, groups []*draft, e *evidence) []byte {
	dst = append(dst, `{"cursor":`...)
	dst = canon.AppendString(dst, h.cursor)
	dst = append(dst, `,"expiresAt":"`...)
	dst = strconv.AppendUint(dst, h.expiresAt, 10)
	dst = append(dst, `","groups":[`...)
	for i, g := range groups {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = g.append(dst, e)
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
