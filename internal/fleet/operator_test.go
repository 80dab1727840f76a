package fleet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// operator calls the operator API at one address.
type operator struct {
	t      *testing.T
	base   string
	client *http.Client
	again  atomic.Int64 // requests that were sent once more
}

func newOperator(t *testing.T, address string) *operator {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &operator{t: t, base: "http://" + address, client: &http.Client{Transport: transport, Timeout: time.Minute}}
}

// of is the operator API of one node.
func (n *node) of() *operator { return newOperator(n.t, n.operator) }

// do sends one request.
func (o *operator) do(ctx context.Context, method, path string, body []byte) (status int, text []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, o.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	response, err := o.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// insist repeats a request, as it is, until it has an answer other than "try again".
func (o *operator) insist(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	for {
		status, text, err := o.do(ctx, method, path, body)
		switch {
		case err == nil && status == http.StatusOK:
			return text, nil
		case err == nil && status != http.StatusServiceUnavailable:
			return nil, fmt.Errorf("%s %s: %d %s", method, path, status, text)
		}
		o.again.Add(1)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s %s: %w; last %d %s, %v", method, path, context.Cause(ctx), status, text, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// must is one request that has to be answered well.
func (o *operator) must(method, path, body string) []byte {
	o.t.Helper()
	status, text, err := o.do(o.t.Context(), method, path, []byte(body))
	if err != nil || status != http.StatusOK {
		o.t.Fatalf("%s %s: %d %s, %v", method, path, status, text, err)
	}
	return text
}

// feed is what a node says of the feed.
type feed struct {
	Head              uint64 `json:",string"`
	Sessions, Waiters int
}

func (o *operator) feed() (f feed) {
	o.t.Helper()
	if err := json.Unmarshal(o.must(http.MethodGet, "/operator/v1/feeds/"+feedName, ""), &f); err != nil {
		o.t.Fatal(err)
	}
	return f
}

// metric is a gauge or counter of the node, whatever labels it has, all of them together.
func (o *operator) metric(name string) (sum float64) {
	o.t.Helper()
	found := false
	for line := range strings.SplitSeq(string(o.must(http.MethodGet, "/metrics", "")), "\n") {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			o.t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		o.t.Fatalf("the node has no metric %s", name)
	}
	return sum
}

// edit changes one row.
type edit struct {
	withdraw bool
	row      string   // its name, of which everything else of it is made
	shelves  []string // that show it; of one row always the same
	mark     string   // what its context says, of a put
}

// txid is the row's transaction.
func (e *edit) txid() string { return txidOf(transaction(e.row)) }

// transaction is a distinct transaction of one input and one output. Nobody asks for more than structure.
func transaction(name string) []byte {
	seed := sha256.Sum256([]byte(name))
	raw := append([]byte{1, 0, 0, 0, 1}, seed[:]...)
	raw = append(raw, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1)
	raw = binary.LittleEndian.AppendUint64(raw, 1)
	raw = append(append(raw, 34, 0x6a, 32), seed[:]...)
	return append(raw, 0, 0, 0, 0)
}

func txidOf(raw []byte) string {
	first := sha256.Sum256(raw)
	txid := sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	return hex.EncodeToString(txid[:])
}

const withdrawn = "gone" // the reason of every withdrawal

// groupBody is a group as the operator API takes it.
func groupBody(key string, edits []edit) []byte {
	type object = map[string]any
	var list []object
	for i := range edits {
		e := &edits[i]
		point := object{"txid": e.txid(), "outputIndex": 0}
		if e.withdraw {
			list = append(list, object{"op": "withdraw", "outpoint": point, "reason": withdrawn})
			continue
		}
		// BEEF V2: no proofs, one raw transaction.
		point["beef"] = base64.StdEncoding.EncodeToString(append([]byte{2, 0, 0xbe, 0xef, 0, 1, 0}, transaction(e.row)...))
		list = append(list, object{
			"op": "put", "output": point, "attributes": object{"shelf": e.shelves}, "order": e.row,
			"context": object{"schema": "urn:overlayd:fleet", "bytes": base64.StdEncoding.EncodeToString([]byte(e.mark))},
		})
	}
	text, _ := json.Marshal(object{"key": key, "edits": list}) // maps of strings and numbers marshal
	return text
}

// append commits a group and returns its sequence. Whatever becomes of a request, the same key is asked for again.
func (o *operator) append(ctx context.Context, key string, edits ...edit) (sequence uint64, replayed bool, err error) {
	text, err := o.insist(ctx, http.MethodPost, "/operator/v1/feeds/"+feedName+"/groups", groupBody(key, edits))
	if err != nil {
		return 0, false, err
	}
	var answer struct {
		Sequence uint64 `json:",string"`
		Replayed bool
	}
	err = json.Unmarshal(text, &answer)
	return answer.Sequence, answer.Replayed, err
}

// put commits a row of that name on a shelf, as one group.
func (o *operator) put(row, shelf string) uint64 {
	o.t.Helper()
	sequence, _, err := o.append(o.t.Context(), "fleet-key-0123456789-"+row, edit{row: row, shelves: []string{shelf}, mark: row})
	if err != nil {
		o.t.Fatal(err)
	}
	return sequence
}
