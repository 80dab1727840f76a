package sample

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/overlayd/overlayd/internal/beef"
)

// group is one line, as the operator API takes it.
type group struct {
	Key   string      `json:"key"`
	Edits []groupEdit `json:"edits"`
}

type groupEdit struct {
	Op     string `json:"op"`
	Output *struct {
		TxID  string  `json:"txid"`
		Index *uint32 `json:"outputIndex"`
		BEEF  string  `json:"beef"`
	} `json:"output"`
	Attributes map[string][]string `json:"attributes"`
	Order      *string             `json:"order"`
	Context    *struct {
		Schema string `json:"schema"`
		Bytes  string `json:"bytes"`
	} `json:"context"`
	ExpiresAt *string `json:"expiresAt"`
	Outpoint  *struct {
		TxID  string  `json:"txid"`
		Index *uint32 `json:"outputIndex"`
	} `json:"outpoint"`
	SpendingTxID string `json:"spendingTxid"`
	BEEF         string `json:"beef"`
	Reason       string `json:"reason"`
	ContextID    string `json:"contextId"`
}

// evidence is the BEEF of one edit with what it is evidence of.
type evidence struct {
	target [32]byte
	beef   []byte
}

// feed is a model of the rows, strict about every edit.
type feed struct {
	t        *testing.T
	key      *regexp.Regexp
	keys     map[string]bool
	rows     map[outpoint]bool
	expiring map[outpoint]bool
	ops      map[string]int
	multi    int // rows with a many-valued attribute
	contexts int
	now      uint64
}

func newFeed(t *testing.T) *feed {
	return &feed{t: t, key: regexp.MustCompile(`^[A-Za-z0-9_-]{16,128}$`), keys: map[string]bool{}, rows: map[outpoint]bool{}, expiring: map[outpoint]bool{}, ops: map[string]int{}}
}

// apply checks one line against the contract and the model.
func (f *feed) apply(text []byte) []evidence {
	f.t.Helper()
	var g group
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&g); err != nil {
		f.t.Fatalf("%v: %s", err, text)
	}
	if !f.key.MatchString(g.Key) || f.keys[g.Key] {
		f.t.Fatalf("key %q", g.Key)
	}
	f.keys[g.Key] = true
	if len(g.Edits) == 0 {
		f.t.Fatal("a group without edits")
	}
	var out []evidence
	for i, e := range g.Edits {
		f.ops[e.Op]++
		switch e.Op {
		case "put":
			at := outpoint{f.hash(e.Output.TxID), *e.Output.Index}
			data := f.bytes(e.Output.BEEF)
			if err := beef.CheckOutput(data, at.txid, at.index); err != nil {
				f.t.Fatalf("%s edit %d: %v", g.Key, i, err)
			}
			out = append(out, evidence{at.txid, data})
			f.put(at, e)
			if len(g.Edits) > 1 && g.Edits[0].Op == "spend" && i > 0 {
				f.ops["replacement"]++
			}
		case "spend":
			at := outpoint{f.hash(e.Outpoint.TxID), *e.Outpoint.Index}
			data, spending := f.bytes(e.BEEF), f.hash(e.SpendingTxID)
			if err := beef.CheckSpend(data, spending, at.txid, at.index); err != nil {
				f.t.Fatalf("%s edit %d: %v", g.Key, i, err)
			}
			out = append(out, evidence{spending, data})
			f.take(at, g.Key)
		case "withdraw":
			if e.Reason == "" {
				f.t.Fatal("a withdrawal without a reason")
			}
			f.take(outpoint{f.hash(e.Outpoint.TxID), *e.Outpoint.Index}, g.Key)
		case "invalidate":
			if e.ContextID == "" || e.Reason == "" {
				f.t.Fatalf("%+v", e)
			}
		default:
			f.t.Fatalf("op %q", e.Op)
		}
	}
	return out
}

func (f *feed) put(at outpoint, e groupEdit) {
	f.t.Helper()
	if f.expiring[at] {
		f.t.Fatal("a row with an expiry is touched again")
	}
	if f.rows[at] {
		f.ops["again"]++
	}
	pairs, many := 0, false
	for name, values := range e.Attributes {
		if name == "" || len(values) == 0 || !slices.IsSorted(values) || len(slices.Compact(slices.Clone(values))) != len(values) {
			f.t.Fatalf("attribute %q: %q", name, values)
		}
		pairs += len(values)
		many = many || len(values) > 1
	}
	if pairs == 0 || pairs > 64 || e.Attributes["artist"] == nil || e.Attributes["genre"] == nil {
		f.t.Fatalf("attributes %v", e.Attributes)
	}
	if many {
		f.multi++
	}
	if e.Order != nil && (len(*e.Order) == 0 || len(*e.Order) > 128) {
		f.t.Fatalf("order %q", *e.Order)
	}
	if e.Context != nil {
		f.contexts++
		if e.Context.Schema != legacyContext || !json.Valid(f.bytes(e.Context.Bytes)) {
			f.t.Fatalf("context %+v", e.Context)
		}
	}
	if e.ExpiresAt != nil {
		f.ops["expiry"]++
		at64, err := strconv.ParseUint(*e.ExpiresAt, 10, 64)
		if err != nil || at64 <= f.now {
			f.t.Fatalf("expiresAt %q", *e.ExpiresAt)
		}
		f.expiring[at] = true
		return
	}
	f.rows[at] = true
}

func (f *feed) take(at outpoint, key string) {
	f.t.Helper()
	if !f.rows[at] {
		f.t.Fatalf("%s: %x.%d is not listed", key, at.txid, at.index)
	}
	delete(f.rows, at)
}

func (f *feed) hash(s string) (h [32]byte) {
	f.t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 || hex.EncodeToString(b) != s {
		f.t.Fatalf("hash %q", s)
	}
	return [32]byte(b)
}

func (f *feed) bytes(s string) []byte {
	f.t.Helper()
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// lines splits a stream.
func lines(t *testing.T, stream []byte) [][]byte {
	t.Helper()
	var out [][]byte
	for s := bufio.NewScanner(bytes.NewReader(stream)); s.Scan(); {
		out = append(out, bytes.Clone(s.Bytes()))
		if len(s.Bytes()) > 60<<10 {
			t.Fatalf("a line of %d bytes", len(s.Bytes()))
		}
	}
	return out
}
