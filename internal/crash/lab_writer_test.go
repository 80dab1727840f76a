//go:build crash

package crash

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
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// coin is a transaction that structure is all of.
type coin struct {
	point Outpoint
	beef  []byte
}

// mint makes a distinct transaction that spends an outpoint, or one of nobody's.
func mint(seed string, spends Outpoint) coin {
	sum := sha256.Sum256([]byte(seed))
	prev := sum[:]
	if spends.TxID != "" {
		prev, _ = hex.DecodeString(spends.TxID) // written by hex
		slices.Reverse(prev)
	}
	raw := append([]byte{1, 0, 0, 0, 1}, prev...)
	raw = binary.LittleEndian.AppendUint32(raw, spends.Index)
	raw = append(raw, 0, 0xff, 0xff, 0xff, 0xff, 1)
	raw = binary.LittleEndian.AppendUint64(raw, 1)
	raw = append(raw, 34, 0x6a, 32)
	raw = append(raw, sum[:]...)
	raw = append(raw, 0, 0, 0, 0)
	first := sha256.Sum256(raw)
	id := sha256.Sum256(first[:])
	slices.Reverse(id[:])
	// BEEF V2: no proofs, one raw transaction.
	return coin{Outpoint{TxID: hex.EncodeToString(id[:])}, append([]byte{2, 0, 0xbe, 0xef, 0, 1, 0}, raw...)}
}

// contextSchema names the kind of context the lab gives.
const contextSchema = "https://overlayd.example/crash-lab"

// body is the group as the operator API takes it.
func body(key string, edits []Edit) []byte {
	type object = map[string]any
	list := []object{}
	for i := range edits {
		e := &edits[i]
		o := object{"op": e.Op}
		point := object{"txid": e.Outpoint.TxID, "outputIndex": e.Outpoint.Index}
		switch e.Op {
		case Put:
			point["beef"] = base64.StdEncoding.EncodeToString(e.BEEF)
			o["output"] = point
			attributes := object{}
			for name, value := range e.Attributes {
				attributes[name] = []string{value}
			}
			o["attributes"], o["order"] = attributes, e.Order
			o["context"] = object{"schema": contextSchema, "bytes": base64.StdEncoding.EncodeToString(e.Context)}
			if e.ExpiresAt > 0 {
				o["expiresAt"] = strconv.FormatUint(e.ExpiresAt, 10)
			}
		case Spend:
			o["outpoint"], o["spendingTxid"] = point, e.SpendingTxID
			o["beef"] = base64.StdEncoding.EncodeToString(e.BEEF)
		case Withdraw:
			o["outpoint"], o["reason"] = point, e.Reason
		case Invalidate:
			o["contextId"], o["reason"] = e.ContextID, e.Reason
		}
		list = append(list, o)
	}
	text, _ := json.Marshal(object{"key": key, "edits": list}) // maps of strings and numbers marshal
	return text
}

// operator is a caller of the operator API on any of the nodes.
type operator struct {
	lab    *run
	client *http.Client
}

func newOperator(r *run) *operator {
	return &operator{r, &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableCompression: true}}}
}

func (o *operator) do(method, path string, body []byte) (status int, text []byte, err error) {
	n := o.lab.nodes[rand.IntN(len(o.lab.nodes))]
	r, err := http.NewRequest(method, "http://"+n.operator+"/operator/v1"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	asked := time.Now()
	response, err := o.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	text, err = io.ReadAll(response.Body)
	o.lab.answered("operator", time.Since(asked))
	return response.StatusCode, text, err
}

// again repeats a request until it has an answer that is not "try again", or the run is past its end by a minute.
func (o *operator) again(method, path string, body []byte) (status int, text []byte) {
	for limit := time.Now().Add(3 * time.Minute); time.Now().Before(limit); {
		select {
		case <-o.lab.over:
			return 0, nil
		default:
		}
		status, text, err := o.do(method, path, body)
		if err == nil && status != http.StatusServiceUnavailable {
			return status, text
		}
		if err == nil {
			o.lab.retryable.Add(1)
			if e, perr := wire.ParseError(text, status); perr != nil || !e.Retryable {
				o.lab.ledger.Find(Refused, "%s %s: 503 that is not retryable: %s", method, path, text)
			}
		}
		time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
	}
	o.lab.ledger.Find(Late, "%s %s had no answer for 3 minutes", method, path)
	return 0, nil
}

// append appends a group, whatever it takes, and records what was acknowledged. refused: the provider will never take it.
func (o *operator) append(key string, edits []Edit) (refused bool) {
	status, text := o.again(http.MethodPost, "/feeds/catalogue/groups", body(key, edits))
	switch {
	case status == http.StatusOK:
		var receipt struct{ Sequence string }
		sequence := uint64(0)
		err := json.Unmarshal(text, &receipt)
		if err == nil {
			sequence, err = strconv.ParseUint(receipt.Sequence, 10, 64)
		}
		if err != nil {
			o.lab.ledger.Find(Refused, "the receipt %s: %v", text, err)
			return true
		}
		o.lab.ledger.Acknowledge(key, sequence, edits)
		return false
	case status == http.StatusBadRequest && expiring(edits):
		return true // it came too late: its deadline had passed
	case status != 0:
		o.lab.ledger.Find(Refused, "group %s: %d %s", key, status, text)
	}
	return true
}

func expiring(edits []Edit) bool {
	now := uint64(time.Now().Unix())
	return slices.ContainsFunc(edits, func(e Edit) bool { return e.ExpiresAt > 0 && e.ExpiresAt <= now })
}

// writer appends groups about rows of its own, one after the other.
func (r *run) writer(ctx context.Context, name string) {
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	var listed []Edit
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("%s-%s-%d-crash-lab", r.name, name, i)
		var edits []Edit
		put := func(c coin) Edit {
			e := Edit{
				Op: Put, Outpoint: c.point, BEEF: c.beef, Order: fmt.Sprintf("%02d", rand.IntN(20)),
				Attributes: map[string]string{"kind": string(rune('a' + rand.IntN(3)))}, Context: []byte(fmt.Sprint(key, len(edits))),
			}
			if rand.IntN(4) == 0 {
				e.ExpiresAt = uint64(time.Now().Unix()) + 1 + uint64(rand.IntN(3))
			}
			return e
		}
		for range 1 + rand.IntN(3) {
			at := -1
			if len(listed) > 0 {
				at = rand.IntN(len(listed))
			}
			switch dice := rand.IntN(100); {
			case at < 0 || dice < 35 && len(listed) < 60:
				e := put(mint(fmt.Sprint(key, len(edits)), Outpoint{}))
				edits, listed = append(edits, e), append(listed, e)
			case dice < 60:
				old := listed[at]
				listed[at] = put(coin{old.Outpoint, old.BEEF})
				edits = append(edits, listed[at])
			case dice < 80:
				old := listed[at]
				by := mint(fmt.Sprint(key, len(edits)), old.Outpoint)
				edits = append(edits, Edit{Op: Spend, Outpoint: old.Outpoint, SpendingTxID: by.point.TxID, BEEF: by.beef})
				listed[at] = put(by)
				edits = append(edits, listed[at])
			case dice < 98:
				edits = append(edits, Edit{Op: Withdraw, Outpoint: listed[at].Outpoint, Reason: "evicted"})
				listed = slices.Delete(listed, at, at+1)
			default:
				edits = append(edits, Edit{Op: Invalidate, ContextID: "context-" + key, Reason: "superseded"})
			}
		}
		before := listed
		if o.append(key, edits) {
			// What the group would have listed may or may not be there from before: what is edited next says so either way.
			listed = before
		}
		if r.think > 0 {
			time.Sleep(time.Duration(rand.Int64N(int64(2 * r.think))))
		}
	}
}

// rotator retires the epoch again and again: sessions live on.
func (r *run) rotator(ctx context.Context) {
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	for i := 0; ctx.Err() == nil; i++ {
		order := fmt.Appendf(nil, `{"key":"%s-retire-%d-crash-lab","mode":"retire"}`, r.name, i)
		if status, text := o.again(http.MethodPost, "/feeds/catalogue/epoch", order); status != http.StatusOK {
			r.ledger.Find(Refused, "a rotation: %d %s", status, text)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(300+rand.IntN(900)) * time.Millisecond):
		}
	}
}

// bell lists a row now and then that one reader waits for.
func (r *run) bell(ctx context.Context) {
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("%s-bell-%d-crash-lab", r.name, i)
		c := mint(key, Outpoint{})
		o.append(key, []Edit{{Op: Put, Outpoint: c.point, BEEF: c.beef, Attributes: map[string]string{"kind": "bell"}, Order: "bell", Context: []byte(key)}})
		time.Sleep(time.Duration(100+rand.IntN(300)) * time.Millisecond)
	}
}

// warden lists a row, prohibits it, lists it again, lifts the prohibition, and so on.
func (r *run) warden(ctx context.Context) {
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	for i := 0; ctx.Err() == nil; i++ {
		c := mint(fmt.Sprint(r.name, "warden", i), Outpoint{})
		path := fmt.Sprintf("/feeds/catalogue/prohibitions/%s.%d", c.point.TxID, c.point.Index)
		put := func(step int) {
			key := fmt.Sprintf("%s-warden-%d-%d-crash-lab", r.name, i, step)
			o.append(key, []Edit{{Op: Put, Outpoint: c.point, BEEF: c.beef, Attributes: map[string]string{"kind": "w"}, Order: "w", Context: []byte(key)}})
		}
		rule := func(method string) {
			done := r.ledger.Forbid(c.point, method == http.MethodDelete)
			if status, text := o.again(method, path, []byte(`{"reason":"court order"}`)); status != http.StatusOK {
				r.ledger.Find(Refused, "%s of a prohibition: %d %s", method, status, text)
				return
			}
			done()
		}
		pause := func() { time.Sleep(time.Duration(100+rand.IntN(200)) * time.Millisecond) }
		r.ledger.Forbidden(c.point)
		put(0)
		pause()
		rule(http.MethodPut)
		put(1)
		pause()
		rule(http.MethodDelete)
		pause()
		rule(http.MethodPut)
		pause()
	}
}
