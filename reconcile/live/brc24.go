package live

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile/spend"
)

const (
	// lookupBytes bounds a BRC-24 answer, whose BEEF is often an array of numbers:
	// about four bytes for one.
	lookupBytes   = 64 << 20
	lookupTimeout = time.Minute
)

// BRC24 asks a lookup service that only answers (BRC-24): POST baseURL/lookup with
// {"service","query"}, answered with an output-list. query is JSON; empty means {}.
// The transaction of an output is the subject of its Atomic BEEF, the one named by
// "txid", or the only one of the bundle that no other of it spends: never the last
// one because it is last.
func BRC24(baseURL, service string, query []byte) Finite {
	baseURL = strings.TrimRight(baseURL, "/")
	if len(query) == 0 {
		query = []byte("{}")
	}
	c := &http.Client{
		Timeout:       lookupTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f := Finite{BaseURL: baseURL, Service: service, Query: query}
	f.Fetch = func(ctx context.Context) ([]Listed, error) {
		if _, err := wire.CanonicalBase(baseURL, true); err != nil {
			return nil, fmt.Errorf("the URL %q is not a base URL: %w", baseURL, err)
		}
		body, err := json.Marshal(struct {
			Service string          `json:"service"`
			Query   json.RawMessage `json:"query"`
		}{service, query})
		if err != nil {
			return nil, fmt.Errorf("the query is no JSON: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, baseURL+"/lookup", bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("make the request: %w", err)
		}
		req.Header.Set("Accept", "application/json")
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			return nil, fmt.Errorf("the lookup service cannot be reached: %w", err)
		}
		defer resp.Body.Close() //nolint:errcheck // it was read
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the lookup service answered with status %d", resp.StatusCode)
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, lookupBytes+1))
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		if len(text) > lookupBytes {
			return nil, fmt.Errorf("the answer has more than %d bytes", lookupBytes)
		}
		return parseOutputList(text)
	}
	return f
}

// octets is a byte string as BRC-24 services write it: an array of numbers, or
// base64.
type octets []byte

func (o *octets) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		b, err := base64.StdEncoding.DecodeString(s)
		*o = b
		return err
	}
	inner, ok := bytes.CutPrefix(text, []byte("["))
	if ok {
		inner, ok = bytes.CutSuffix(inner, []byte("]"))
	}
	if !ok {
		return errors.New("bytes are an array of numbers or base64")
	}
	*o = make(octets, 0, len(inner)/3)
	if len(bytes.TrimSpace(inner)) == 0 {
		return nil
	}
	for part := range bytes.SplitSeq(inner, []byte(",")) {
		n, err := strconv.ParseUint(string(bytes.TrimSpace(part)), 10, 8)
		if err != nil {
			return errors.New("a number of a byte array is not 0 to 255")
		}
		*o = append(*o, byte(n))
	}
	return nil
}

// parseOutputList reads an answer. It is taken whole or not at all.
func parseOutputList(text []byte) ([]Listed, error) {
	var list struct {
		Type    string `json:"type"`
		Outputs []struct {
			BEEF        octets  `json:"beef"`
			OutputIndex *uint32 `json:"outputIndex"`
			TxID        string  `json:"txid"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("the answer is no output-list: %w", err)
	}
	if list.Type != "output-list" {
		return nil, fmt.Errorf("the answer is of the type %.40q, not an output-list", list.Type)
	}
	out := make([]Listed, 0, len(list.Outputs))
	for i, o := range list.Outputs {
		if o.OutputIndex == nil {
			return nil, fmt.Errorf("output %d of the answer has no index", i)
		}
		l := Listed{OutputIndex: *o.OutputIndex, BEEF: o.BEEF}
		var err error
		if o.TxID != "" {
			l.TxID, err = txid(o.TxID)
		} else {
			l.TxID, err = subject(o.BEEF)
		}
		if err != nil {
			return nil, fmt.Errorf("output %d of the answer: %w", i, err)
		}
		out = append(out, l)
	}
	return out, nil
}

// subject finds the transaction that a bundle without a name is about.
func subject(data []byte) (spend.TxID, error) {
	b, err := beef.Parse(data)
	if err != nil {
		return spend.TxID{}, err
	}
	if id, atomic := b.Subject(); atomic {
		return id, nil
	}
	spent := map[[32]byte]bool{}
	ids := b.TxIDs()
	for _, id := range ids {
		tx, err := b.Transaction(id)
		if err != nil {
			return spend.TxID{}, err
		}
		for _, in := range tx.Inputs {
			spent[in.Prev] = true
		}
	}
	var found []spend.TxID
	for _, id := range ids {
		if !spent[id] {
			found = append(found, id)
		}
	}
	if len(found) != 1 {
		return spend.TxID{}, fmt.Errorf("%d transactions of its BEEF are spent by no other, so it does not say which one is meant", len(found))
	}
	return found[0], nil
}
