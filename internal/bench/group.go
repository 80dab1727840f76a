package bench

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	rand2 "math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// schemaPrefix begins the context schema of every row of a run; the rest names the run.
const schemaPrefix = "urn:overlayd:bench:"

// run names what one run appends, so that neither another run nor rows of others are taken for it.
type run struct {
	name  string
	bytes int // of each row's transaction
}

func newRun(bytes int) *run {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return &run{name: base64.RawURLEncoding.EncodeToString(b[:]), bytes: bytes}
}

func (r *run) schema() string { return schemaPrefix + r.name }

// row is the txid and the whole evidence of the row that a part of the run and a number name. The transaction is one input and one
// output of data that does not compress: ingest asks for structure.
func (r *run) row(part string, number uint64) (txid [32]byte, beef []byte) {
	seed := sha256.Sum256([]byte(r.name + " " + part + " " + strconv.FormatUint(number, 10)))
	beef = append(make([]byte, 0, r.bytes+64), 0x02, 0x00, 0xbe, 0xef, 0, 1, 0)
	head := len(beef)
	beef = append(beef, 1, 0, 0, 0, 1)
	beef = append(beef, seed[:]...)
	beef = append(beef, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1)
	beef = binary.LittleEndian.AppendUint64(beef, 1)
	data := max(1, r.bytes-67)
	script := []byte{0x00, 0x6a, 0x4d}
	script = binary.LittleEndian.AppendUint16(script, uint16(data))
	script = append(script, make([]byte, data)...)
	_, _ = rand2.NewChaCha8(seed).Read(script[5:]) // never fails
	if n := len(script); n < 0xfd {
		beef = append(beef, byte(n))
	} else {
		beef = binary.LittleEndian.AppendUint16(append(beef, 0xfd), uint16(n))
	}
	beef = append(beef, script...)
	beef = append(beef, 0, 0, 0, 0)
	first := sha256.Sum256(beef[head:])
	txid = sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	return txid, beef
}

// appendPut appends the edit that lists a row. Its context is the number; values are those of the attribute, if there is one.
func (r *run) appendPut(dst []byte, part string, number uint64, attribute string, values ...string) []byte {
	txid, beef := r.row(part, number)
	dst = append(dst, `{"op":"put","output":{"txid":"`...)
	dst = hex.AppendEncode(dst, txid[:])
	dst = append(dst, `","outputIndex":0,"beef":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, beef)
	dst = append(dst, `"},`...)
	if attribute != "" {
		dst = append(strconv.AppendQuote(append(dst, `"attributes":{`...), attribute), ":["...)
		for i, v := range values {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendQuote(dst, v)
		}
		dst = append(dst, "]},"...)
	}
	dst = append(dst, `"context":{"schema":"`...)
	dst = append(append(dst, r.schema()...), `","bytes":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, binary.BigEndian.AppendUint64(nil, number))
	return append(dst, `"}}`...)
}

// group is a group of one new row.
func (r *run) group(part string, number uint64, attribute, value string) []byte {
	dst := append(make([]byte, 0, 2*r.bytes+512), `{"key":"`...)
	dst = append(append(dst, r.key(part, number)...), `","edits":[`...)
	return append(r.appendPut(dst, part, number, attribute, value), "]}"...)
}

// key is the group's key: 16..128 of [A-Za-z0-9_-].
func (r *run) key(part string, number uint64) string {
	return "bench-" + r.name + "-" + part + "-" + strconv.FormatUint(number, 10)
}

// withdrawal is a group that withdraws the rows from a number to before another.
func (r *run) withdrawal(part string, from, to uint64) []byte {
	dst := append([]byte(`{"key":"`), r.key(part+"-gone", from)...)
	dst = append(dst, `","edits":[`...)
	for n := from; n < to; n++ {
		if n > from {
			dst = append(dst, ',')
		}
		txid, _ := r.row(part, n)
		dst = append(dst, `{"op":"withdraw","outpoint":{"txid":"`...)
		dst = hex.AppendEncode(dst, txid[:])
		dst = append(dst, `","outputIndex":0},"reason":"benchmark over"}`...)
	}
	return append(dst, "]}"...)
}

// Bounds of giving the rows back.
const (
	withdrawn = 500 // rows in one group
	clearTime = 5 * time.Minute
)

// clear withdraws so many rows of a part, from a number on, whatever the state of ctx (Y8). At a provider of our own there is no
// need: it goes as a whole.
func (r *run) clear(ctx context.Context, t *Target, part string, first, rows uint64) error {
	if t.provider != nil || rows == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
	defer cancel()
	o, err := t.operator()
	if err != nil {
		return err
	}
	defer o.close()
	for from := uint64(0); from < rows; from += withdrawn {
		if _, err := o.append(ctx, r.withdrawal(part, first+from, first+min(from+withdrawn, rows))); err != nil {
			return fmt.Errorf("withdraw the rows of the run: %w", err)
		}
	}
	return nil
}
