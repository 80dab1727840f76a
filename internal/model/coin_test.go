package model_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/internal/wire"
)

// coin is a transaction of two outputs with two BEEFs that hold it, and for each output two transactions that spend it.
// Structure is all that ingest asks for.
type coin struct {
	txid     [32]byte // display order
	beef     [2][]byte
	spenders [2][2]*coin
}

func (c *coin) hex() string { return hex.EncodeToString(c.txid[:]) }

// rawTransaction makes a transaction that spends one outpoint and has two outputs, distinct by name.
func rawTransaction(name string, spends [32]byte, index uint32) []byte {
	seed := sha256.Sum256([]byte(name))
	raw := []byte{1, 0, 0, 0, 1}
	slices.Reverse(spends[:])
	raw = append(raw, spends[:]...)
	raw = binary.LittleEndian.AppendUint32(raw, index)
	raw = append(raw, 0, 0xff, 0xff, 0xff, 0xff, 2)
	for range 2 {
		raw = binary.LittleEndian.AppendUint64(raw, 1)
		raw = append(raw, 34, 0x6a, 32)
		raw = append(raw, seed[:]...)
	}
	return append(raw, 0, 0, 0, 0)
}

func beefOf(transactions ...[]byte) []byte {
	b := []byte{0x02, 0x00, 0xbe, 0xef, 0, byte(len(transactions))}
	for _, raw := range transactions {
		b = append(append(b, 0), raw...)
	}
	return b
}

func txidOf(raw []byte) [32]byte {
	first := sha256.Sum256(raw)
	txid := sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	return txid
}

// mint makes a coin; its second BEEF brings the transaction that it spends as well.
func mint(name string, spends [32]byte, index uint32) *coin {
	parent := rawTransaction(name+" parent", sha256.Sum256([]byte(name)), 0)
	if spends == ([32]byte{}) {
		spends = txidOf(parent)
	}
	raw := rawTransaction(name, spends, index)
	return &coin{txid: txidOf(raw), beef: [2][]byte{beefOf(raw), beefOf(parent, raw)}}
}

func mintAll(name string, n int) []*coin {
	coins := make([]*coin, n)
	for i := range coins {
		c := mint(fmt.Sprint(name, " ", i), [32]byte{}, 0)
		for output := range c.spenders {
			for j := range c.spenders[output] {
				c.spenders[output][j] = mint(fmt.Sprint(name, " ", i, " spent ", output, j), c.txid, uint32(output))
			}
		}
		coins[i] = c
	}
	return coins
}

var contexts = []*wire.Context{nil, {Schema: "urn:test:context", Bytes: []byte("one")}, {Schema: "urn:test:context", Bytes: []byte{0, 255}}}

const invalidContext = "a context"

// groupJSON is a proposed group as an operator would send it.
func (w *world) groupJSON(key string, edits []edit, people []*person) string {
	quote := func(v any) string {
		b, _ := json.Marshal(v) //nolint:errcheck // strings and lists of them marshal
		return string(b)
	}
	var list []string
	for _, e := range edits {
		c := w.coins[e.point/2]
		outpoint := fmt.Sprintf(`"txid":"%s","outputIndex":%d`, c.hex(), e.point%2)
		b64 := base64.StdEncoding.EncodeToString
		switch e.op {
		case put:
			s := e.state
			text := fmt.Sprintf(`{"op":"put","output":{%s,"beef":"%s"},"attributes":{"artist":%s,"genre":%s}`,
				outpoint, b64(c.beef[s.evidence]), quote(append([]string{}, s.artist...)), quote(append([]string{}, s.genre...)))
			if s.order != "" {
				text += `,"order":` + quote(s.order)
			}
			if x := contexts[s.context]; x != nil {
				text += fmt.Sprintf(`,"context":{"schema":"%s","bytes":"%s"}`, x.Schema, b64(x.Bytes))
			}
			if s.expires != 0 {
				text += fmt.Sprintf(`,"expiresAt":"%d"`, s.expires)
			}
			if s.readers != nil {
				readers := []string{}
				for _, r := range s.readers {
					readers = append(readers, hex.EncodeToString(people[r].identity[:]))
				}
				text += `,"readers":` + quote(readers)
			}
			list = append(list, text+"}")
		case spend:
			by := c.spenders[e.point%2][e.by]
			list = append(list, fmt.Sprintf(`{"op":"spend","outpoint":{%s},"spendingTxid":"%s","beef":"%s"}`, outpoint, by.hex(), b64(by.beef[0])))
		case withdraw:
			list = append(list, fmt.Sprintf(`{"op":"withdraw","outpoint":{%s},"reason":%s}`, outpoint, quote(e.reason)))
		default:
			list = append(list, fmt.Sprintf(`{"op":"invalidate","contextId":"%s","reason":%s}`, invalidContext, quote(e.reason)))
		}
	}
	return `{"key":"` + key + `","edits":[` + strings.Join(list, ",") + `]}`
}
