package livefeed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/sample"
)

// realGroups are the sample's group bodies: real transactions with their real BEEF.
func realGroups(t testing.TB) [][]byte {
	t.Helper()
	var out bytes.Buffer
	if err := sample.Small(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
}

// realEdit returns the first put (or spend) of the sample as a tree that a test may bend.
func realEdit(t testing.TB, op string) map[string]any {
	t.Helper()
	for _, line := range append(realGroups(t), syntheticGroups(t)...) {
		var g struct{ Edits []map[string]any }
		if err := json.Unmarshal(line, &g); err != nil {
			t.Fatal(err)
		}
		for _, e := range g.Edits {
			if e["op"] == op {
				return e
			}
		}
	}
	t.Fatalf("the sample has no %s", op)
	return nil
}

func syntheticGroups(t testing.TB) [][]byte {
	t.Helper()
	var out bytes.Buffer
	if err := sample.Generate(t.Context(), &out, sample.Options{Seed: 1, Groups: 200, Now: 1_700_000_000}); err != nil {
		t.Fatal(err)
	}
	return bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
}

// TestJ6_TheSampleDecodes: every group of both samples is taken by the decoder and by the feed.
func TestJ6_TheSampleDecodes(t *testing.T) {
	t.Parallel()
	_, _, f := startQuietFeed(t)
	ops := map[Op]int{}
	for i, line := range append(realGroups(t), syntheticGroups(t)...) {
		p, err := DecodeGroup(line)
		if err != nil {
			t.Fatalf("group %d: %v", i, err)
		}
		for _, e := range p.Edits {
			ops[e.Op]++
		}
		if p.Err != nil {
			t.Fatalf("group %d: %v", i, p.Err)
		}
		if _, err := f.Append(t.Context(), p); err != nil && !strings.Contains(err.Error(), "is not after the feed's time") {
			t.Fatalf("group %d: %v", i, err)
		}
	}
	for _, op := range []Op{Put, Spend, Withdraw} {
		if ops[op] == 0 {
			t.Errorf("the samples have no %v", op)
		}
	}
	f.checkStored(t)
}

func body(t testing.TB, key any, edits ...any) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"key": key, "edits": edits})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const goodKey = "key-0123456789-abc"

// bend returns a copy of the tree with one place changed: a path of names, and a value or `drop`.
func bend(tree map[string]any, value any, path ...string) map[string]any {
	out := map[string]any{}
	for k, v := range tree {
		out[k] = v
	}
	if len(path) > 1 {
		out[path[0]] = bend(out[path[0]].(map[string]any), value, path[1:]...)
	} else if value == drop {
		delete(out, path[0])
	} else {
		out[path[0]] = value
	}
	return out
}

const drop = "\x00drop"

// TestH1_GroupBodiesAreClosedAndExact: each fault is found, names its edit, and leaves the key readable.
func TestH1_GroupBodiesAreClosedAndExact(t *testing.T) {
	t.Parallel()
	put, spend := realEdit(t, "put"), realEdit(t, "spend")
	put = bend(put, "123", "expiresAt")
	put = bend(put, map[string]any{"schema": "urn:x", "bytes": "AAE="}, "context")
	put = bend(put, map[string]any{"a": []any{"1", "2"}}, "attributes")
	put = bend(put, "0001", "order")
	identity := "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
	put = bend(put, []any{identity, identity}, "readers")
	outpoint := map[string]any{"txid": strings.Repeat("ab", 32), "outputIndex": 0}
	withdraw := map[string]any{"op": "withdraw", "outpoint": outpoint, "reason": "evicted"}
	invalidate := map[string]any{"op": "invalidate", "contextId": "c", "reason": "r"}

	p, err := DecodeGroup(body(t, goodKey, put, spend, withdraw, invalidate))
	if err != nil || p.Err != nil {
		t.Fatalf("%v, %v", err, p.Err)
	}
	if e := p.Edits[0]; e.ExpiresAt != 123 || e.Context.Schema != "urn:x" || len(e.Readers) != 1 || !e.HasReaders || string(e.Order) != "0001" || len(e.Attributes[0].Values) != 2 {
		t.Errorf("%+v", e)
	}

	long := func(n int) string { return strings.Repeat("x", n) }
	pairs := func(n int) map[string]any {
		list := []any{}
		for i := range n {
			list = append(list, fmt.Sprint(i))
		}
		return map[string]any{"a": list[:n/2], "b": list[n/2:]}
	}
	accepted := map[string]map[string]any{
		"no attributes":      bend(put, drop, "attributes"),
		"empty attributes":   bend(put, map[string]any{"a": []any{}}, "attributes"),
		"64 pairs":           bend(put, pairs(64), "attributes"),
		"long attribute":     bend(put, map[string]any{long(256): []any{long(256)}}, "attributes"),
		"U+0000":             bend(put, map[string]any{"\x00": []any{"\x00"}}, "attributes"),
		"no order":           bend(put, drop, "order"),
		"empty order":        bend(put, "", "order"),
		"128 bytes of order": bend(put, long(128), "order"),
		"no context":         bend(put, drop, "context"),
		"empty context":      bend(put, "", "context", "bytes"),
		"no expiry":          bend(put, drop, "expiresAt"),
		"late expiry":        bend(put, "9223372036854775806", "expiresAt"),
		"no readers":         bend(put, drop, "readers"),
		"1024 of reason":     bend(withdraw, long(1024), "reason"),
	}
	for name, e := range accepted {
		if p, err := DecodeGroup(body(t, goodKey, e)); err != nil || p.Err != nil {
			t.Errorf("%s: %v, %v", name, err, p.Err)
		}
	}
	beef := put["output"].(map[string]any)["beef"].(string)
	cut, err := base64.StdEncoding.DecodeString(beef)
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]any{
		"not an object":             "put",
		"no op":                     bend(put, drop, "op"),
		"unknown op":                bend(put, "expire", "op"),
		"op of another type":        bend(put, 1, "op"),
		"unknown field":             bend(put, 1, "more"),
		"unknown field below":       bend(put, 1, "output", "more"),
		"unknown field of context":  bend(put, 1, "context", "more"),
		"unknown field of outpoint": bend(withdraw, 1, "outpoint", "more"),
		"a put's field in a spend":  bend(spend, "1", "order"),
		"no output":                 bend(put, drop, "output"),
		"output of another type":    bend(put, "x", "output"),
		"upper case txid":           bend(put, strings.ToUpper(put["output"].(map[string]any)["txid"].(string)), "output", "txid"),
		"another txid":              bend(put, strings.Repeat("ab", 32), "output", "txid"),
		"short txid":                bend(put, "ab", "output", "txid"),
		"index out of range":        bend(put, 1<<32, "output", "outputIndex"),
		"index of no output":        bend(put, 4_000_000, "output", "outputIndex"),
		"index as text":             bend(put, "0", "output", "outputIndex"),
		"fraction of an index":      bend(put, 0.5, "output", "outputIndex"),
		"negative index":            bend(put, -1, "output", "outputIndex"),
		"no beef":                   bend(put, drop, "output", "beef"),
		"empty beef":                bend(put, "", "output", "beef"),
		"beef not in base64":        bend(put, "@", "output", "beef"),
		"beef with trailing data":   bend(put, base64.StdEncoding.EncodeToString(append(cut, 0)), "output", "beef"),
		"beef cut short":            bend(put, base64.StdEncoding.EncodeToString(cut[:len(cut)-1]), "output", "beef"),
		"attributes of array":       bend(put, []any{}, "attributes"),
		"attribute of text":         bend(put, map[string]any{"a": "b"}, "attributes"),
		"attribute of number":       bend(put, map[string]any{"a": []any{1}}, "attributes"),
		"empty attribute":           bend(put, map[string]any{"a": []any{""}}, "attributes"),
		"empty name":                bend(put, map[string]any{"": []any{"x"}}, "attributes"),
		"too long an attribute":     bend(put, map[string]any{"a": []any{long(257)}}, "attributes"),
		"too long a name":           bend(put, map[string]any{long(257): []any{"a"}}, "attributes"),
		"65 pairs":                  bend(put, pairs(65), "attributes"),
		"129 bytes of order":        bend(put, long(129), "order"),
		"order of another type":     bend(put, 1, "order"),
		"relative schema":           bend(put, "x/y", "context", "schema"),
		"schema without a path":     bend(put, "urn:", "context", "schema"),
		"schema without a scheme":   bend(put, ":x", "context", "schema"),
		"schema with a space":       bend(put, "urn:x y", "context", "schema"),
		"schema from a digit":       bend(put, "1rn:x", "context", "schema"),
		"empty schema":              bend(put, "", "context", "schema"),
		"context not in base64":     bend(put, "AA", "context", "bytes"),
		"context without bytes":     bend(put, drop, "context", "bytes"),
		"expiry as number":          bend(put, 1, "expiresAt"),
		"expiry 0":                  bend(put, "0", "expiresAt"),
		"expiry with a zero":        bend(put, "01", "expiresAt"),
		"expiry out of range":       bend(put, "9223372036854775807", "expiresAt"),
		"no reader":                 bend(put, []any{}, "readers"),
		"readers of text":           bend(put, identity, "readers"),
		"reader of another type":    bend(put, []any{1}, "readers"),
		"reader off the curve":      bend(put, []any{"02" + strings.Repeat("00", 32)}, "readers"),
		"spend without its txid":    bend(spend, drop, "spendingTxid"),
		"spend of another outpoint": bend(spend, 77, "outpoint", "outputIndex"),
		"spend by another":          bend(spend, strings.Repeat("ab", 32), "spendingTxid"),
		"withdraw without reason":   bend(withdraw, drop, "reason"),
		"empty reason":              bend(withdraw, "", "reason"),
		"1025 of reason":            bend(withdraw, long(1025), "reason"),
		"withdraw without outpoint": bend(withdraw, drop, "outpoint"),
		"invalidate without id":     bend(invalidate, drop, "contextId"),
		"invalidate an outpoint":    bend(invalidate, outpoint, "outpoint"),
	}
	for name, e := range refused {
		p, err := DecodeGroup(body(t, goodKey, invalidate, e))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		fault, ok := p.Err.(*Error)
		if !ok || fault.Code != Invalid || fault.Edit != 1 || fault.Reason == "" || p.Key != goodKey || p.Edits != nil {
			t.Errorf("%s: %+v, %v", name, p, p.Err)
		}
	}

	for name, b := range map[string][]byte{
		"no edits":       body(t, goodKey),
		"too many edits": body(t, goodKey, slicesOf(invalidate, MaxEdits+1)...),
		"unknown field":  []byte(`{"key":"` + goodKey + `","edits":[{"op":"invalidate","contextId":"c","reason":"r"}],"more":1}`),
		"edits missing":  []byte(`{"key":"` + goodKey + `"}`),
		"edits a text":   []byte(`{"key":"` + goodKey + `","edits":"x"}`),
	} {
		p, err := DecodeGroup(b)
		if err != nil || CodeOf(p.Err) != Invalid || p.Err.(*Error).Edit != -1 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"not JSON":      []byte("{"),
		"an array":      []byte("[]"),
		"no key":        []byte(`{"edits":[]}`),
		"key a number":  body(t, 1, invalidate),
		"short key":     body(t, long(15), invalidate),
		"long key":      body(t, long(129), invalidate),
		"key of dots":   body(t, strings.Repeat(".", 20), invalidate),
		"key twice":     []byte(`{"key":"` + goodKey + `","key":"` + goodKey + `","edits":[]}`),
		"trailing":      append(body(t, goodKey, invalidate), 'x'),
		"more elements": body(t, goodKey, slicesOf(1, 4097)...),
	} {
		if p, err := DecodeGroup(b); CodeOf(err) != Invalid || p != nil {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := DecodeGroup(bytes.Repeat([]byte(" "), MaxGroupBytes+1)); CodeOf(err) != TooLarge {
		t.Errorf("%v", err)
	}
	for _, n := range []int{1, MaxEdits} {
		if p, err := DecodeGroup(body(t, long(128), slicesOf(invalidate, n)...)); err != nil || p.Err != nil || len(p.Edits) != n {
			t.Errorf("%d edits: %v", n, err)
		}
	}
}

func slicesOf(v any, n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// TestL11_TheDigestIsOfTheCanonicalBody: spelling and order of members do not make another group, values do.
func TestL11_TheDigestIsOfTheCanonicalBody(t *testing.T) {
	t.Parallel()
	digest := func(s string) [16]byte {
		p, err := DecodeGroup([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest
	}
	a := digest(`{"key":"` + goodKey + `","edits":[{"op":"invalidate","contextId":"c","reason":"r"}]}`)
	b := digest(` { "edits" : [ {"reason":"\u0072","op":"invalidate","contextId":"c"} ] , "key" : "` + goodKey + `" }`)
	c := digest(`{"key":"` + goodKey + `","edits":[{"op":"invalidate","contextId":"c","reason":"s"}]}`)
	if a != b || a == c {
		t.Errorf("%x %x %x", a, b, c)
	}
}

func FuzzJ6_Group(f *testing.F) {
	for _, line := range realGroups(f)[:2] {
		f.Add(line)
	}
	f.Add([]byte(`{"key":"` + goodKey + `","edits":[{"op":"invalidate","contextId":"c","reason":"r"}]}`))
	f.Add([]byte(`{"key":"` + goodKey + `","edits":[{"op":"withdraw","outpoint":{"txid":"` + strings.Repeat("00", 32) + `","outputIndex":-0},"reason":"r"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodeGroup(b)
		if err != nil {
			if p != nil || CodeOf(err) == 0 {
				t.Errorf("%+v, %v", p, err)
			}
			return
		}
		if !validKeyText(p.Key) {
			t.Errorf("key %q", p.Key)
		}
		if p.Err != nil {
			if CodeOf(p.Err) != Invalid || p.Edits != nil {
				t.Errorf("%+v", p)
			}
			return
		}
		// What decodes is what the feed takes, and the log keeps.
		if err := checkShape(p); err != nil {
			t.Errorf("decoded and then refused: %v", err)
		}
		n := &Pending{p: p}
		n.prepare()
		pl := &plan{rows: map[Outpoint]*row{}, blobs: map[[32]byte][]byte{}}
		var changes []Change
		for i := range p.Edits {
			changes = append(changes, pl.edit(&p.Edits[i], n.puts[i], n.blobs[i], uint64(i+1)))
		}
		if again, err := decodeRecord(appendRecord(nil, changes)); err != nil || len(again) != len(changes) {
			t.Errorf("its record does not read: %v", err)
		}
	})
}
