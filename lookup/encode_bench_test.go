package lookup

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// BenchmarkEncode lays out the body of one live group for a session: as it was done before (a slice a piece, BEEF encoded for each
// session, a body allocated for each) and as it is done now. Bytes are compared before anything is measured.
func BenchmarkEncode(b *testing.B) {
	for _, c := range []struct{ observations, beef int }{{1, 300}, {1, 20_000}, {64, 300}, {16, 20_000}} {
		scope := wire.Scope{
			Chain: wire.Chain{Network: "test", GenesisHash: strings.Repeat("0", 64)}, Provider: "https://overlay.example", Service: "ls_catalogue",
			QueryDigest: strings.Repeat("1", 64), RulesDigest: strings.Repeat("2", 64), Access: "public", Epoch: strings.Repeat("3", 64),
		}
		v := newVoice(scope)
		raw, shared := map[[32]byte][]byte{}, &evidence{text: map[[32]byte][]byte{}}
		var facts []fact
		for i := range c.observations {
			beef := bytes.Repeat([]byte{byte(i)}, c.beef)
			e := livefeed.Evidence{SHA256: sha256.Sum256(beef), Size: len(beef)}
			raw[e.SHA256], shared.text[e.SHA256] = beef, []byte(base64.StdEncoding.EncodeToString(beef))
			facts = append(facts, fact{kind: kindOutput, outpoint: livefeed.Outpoint{Index: uint32(i)}, state: &livefeed.State{Evidence: e}})
		}
		room := &room{bodies: newBodies(1<<30, 1<<30)}
		before := func() []byte {
			d := v.formerLiveDraft(7, facts)
			body := d.append(make([]byte, 0, d.size), raw)
			if len(d.disclosed) != c.observations {
				b.Fatal(len(d.disclosed))
			}
			return body
		}
		after := func() []byte {
			d := v.liveDraft(7, facts)
			body, refused := room.lay(d.size)
			if refused != nil {
				b.Fatal(refused)
			}
			body = d.append(body, shared)
			room.leave(true)
			return body
		}
		if x, y := before(), after(); !bytes.Equal(x, y) {
			b.Fatalf("not the same bytes:\n%.400s\n%.400s", x, y)
		}
		for name, f := range map[string]func() []byte{"before": before, "after": after} {
			b.Run(fmt.Sprintf("%d x %d bytes/%s", c.observations, c.beef, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
			})
		}
	}
}

// What follows is the encoder as it was.

type formerDraft struct {
	sequence     uint64
	version      int64 // snapshot groups: the row version, which is the position after this group
	pieces       []formerPiece
	size         int // bytes of the finished group
	observations int
	disclosed    [][]byte
}

type formerPiece struct {
	text     []byte
	evidence *livefeed.Evidence
}

func (d *formerDraft) append(dst []byte, blobs map[[32]byte][]byte) []byte {
	for i := range d.pieces {
		dst = append(dst, d.pieces[i].text...)
		if e := d.pieces[i].evidence; e != nil {
			dst = base64.StdEncoding.AppendEncode(dst, blobs[e.SHA256])
		}
	}
	return dst
}

func (v voice) formerDraft(sequence uint64, id string, facts []fact, observationID func(i int) string) *formerDraft {
	d := &formerDraft{sequence: sequence, observations: len(facts)}
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
		text = v.formerPayload(d, text, f)
		text = append(text, `},"scope":`...)
		text = append(text, v.scope...)
		text = append(text, '}')
		if f.discloses() {
			point := f.outpoint.Bytes()
			d.disclosed = append(d.disclosed, point[:])
		}
	}
	text = append(text, `],"sequence":"`...)
	text = strconv.AppendUint(text, sequence, 10)
	text = append(text, `"}`...)
	d.push(text, nil)
	return d
}

func (d *formerDraft) push(text []byte, evidence *livefeed.Evidence) {
	d.pieces = append(d.pieces, formerPiece{text, evidence})
	d.size += len(text)
	if evidence != nil {
		d.size += base64Size(evidence.Size)
	}
}

func (v voice) formerPayload(d *formerDraft, text []byte, f *fact) []byte {
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

func formerIdentity(namespace byte, parts ...[]byte) string {
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

func (v voice) formerLiveDraft(sequence uint64, facts []fact) *formerDraft {
	return v.formerDraft(sequence, formerIdentity('l', v.scope, beUint64(sequence)), facts, func(i int) string {
		return formerIdentity('l', v.scope, beUint64(sequence), beUint64(uint64(i)))
	})
}
