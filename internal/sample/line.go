package sample

import (
	"encoding/base64"
	"encoding/hex"
	"io"
	"strconv"
)

// legacyContext is the schema of context values that are UTF-8 JSON kept as
// they came (BRC-192).
const legacyContext = "https://bsv.brc.dev/apps/0192#legacy-lookup-context-json-v1"

// outpoint names an output; the txid is in display order.
type outpoint struct {
	txid  [32]byte
	index uint32
}

// attribute has its values sorted and distinct.
type attribute struct {
	name   string
	values []string
}

// listing is what a put says.
type listing struct {
	at         outpoint
	beef       []byte
	attributes []attribute // sorted by name
	order      string      // empty: none
	context    []byte      // nil: none
	expiresAt  uint64      // 0: never
}

// line builds one group body. It is reused from group to group. All text that
// goes into it is ASCII of this package's making.
type line struct {
	buf   []byte
	edits int
}

func (l *line) begin(key string) {
	l.buf = append(l.buf[:0], `{"key":`...)
	l.buf = strconv.AppendQuote(l.buf, key)
	l.buf = append(l.buf, `,"edits":[`...)
	l.edits = 0
}

func (l *line) end(w io.Writer) error {
	l.buf = append(l.buf, "]}\n"...)
	_, err := w.Write(l.buf)
	return err
}

func (l *line) edit(op string) {
	if l.edits > 0 {
		l.buf = append(l.buf, ',')
	}
	l.edits++
	l.buf = append(l.buf, `{"op":`...)
	l.buf = strconv.AppendQuote(l.buf, op)
}

func (l *line) put(p listing) {
	l.edit("put")
	l.buf = append(l.buf, `,"output":{`...)
	l.outpoint(p.at)
	l.bytes(`,"beef":`, p.beef)
	l.buf = append(l.buf, '}')
	if len(p.attributes) > 0 {
		l.buf = append(l.buf, `,"attributes":{`...)
		for i, a := range p.attributes {
			if i > 0 {
				l.buf = append(l.buf, ',')
			}
			l.buf = strconv.AppendQuote(l.buf, a.name)
			l.buf = append(l.buf, ":["...)
			for j, v := range a.values {
				if j > 0 {
					l.buf = append(l.buf, ',')
				}
				l.buf = strconv.AppendQuote(l.buf, v)
			}
			l.buf = append(l.buf, ']')
		}
		l.buf = append(l.buf, '}')
	}
	if p.order != "" {
		l.text(`,"order":`, p.order)
	}
	if p.context != nil {
		l.text(`,"context":{"schema":`, legacyContext)
		l.bytes(`,"bytes":`, p.context)
		l.buf = append(l.buf, '}')
	}
	if p.expiresAt != 0 {
		l.text(`,"expiresAt":`, strconv.FormatUint(p.expiresAt, 10))
	}
	l.buf = append(l.buf, '}')
}

func (l *line) spend(at outpoint, spending [32]byte, beef []byte) {
	l.edit("spend")
	l.buf = append(l.buf, `,"outpoint":{`...)
	l.outpoint(at)
	l.buf = append(l.buf, `},"spendingTxid":"`...)
	l.buf = hex.AppendEncode(l.buf, spending[:])
	l.buf = append(l.buf, '"')
	l.bytes(`,"beef":`, beef)
	l.buf = append(l.buf, '}')
}

func (l *line) withdraw(at outpoint, reason string) {
	l.edit("withdraw")
	l.buf = append(l.buf, `,"outpoint":{`...)
	l.outpoint(at)
	l.text(`},"reason":`, reason)
	l.buf = append(l.buf, '}')
}

func (l *line) invalidate(contextID, reason string) {
	l.edit("invalidate")
	l.text(`,"contextId":`, contextID)
	l.text(`,"reason":`, reason)
	l.buf = append(l.buf, '}')
}

func (l *line) outpoint(at outpoint) {
	l.buf = append(l.buf, `"txid":"`...)
	l.buf = hex.AppendEncode(l.buf, at.txid[:])
	l.buf = append(l.buf, `","outputIndex":`...)
	l.buf = strconv.AppendUint(l.buf, uint64(at.index), 10)
}

func (l *line) bytes(before string, b []byte) {
	l.buf = append(append(l.buf, before...), '"')
	l.buf = base64.StdEncoding.AppendEncode(l.buf, b)
	l.buf = append(l.buf, '"')
}

func (l *line) text(before, s string) {
	l.buf = strconv.AppendQuote(append(l.buf, before...), s)
}
