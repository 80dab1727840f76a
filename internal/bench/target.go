package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/internal/wire"
)

// Target is the provider that is measured, seen through one of its services.
type Target struct {
	BaseURL     string // of the public listener
	OperatorURL string // of the operator API
	Token       string // of the operator API
	DatabaseURL string // of the provider's database, for baselines; empty: those are left out
	Service     string
	Feed        string // that the service shows
	Signed      bool   // the service is for those who prove who they are
	// Attribute is one that the service's rules declare: readers then ask for the rows of the run alone. Empty: they ask for all.
	Attribute string
	// Identity signs for all readers; nil: each has a key of its own, which the service must admit.
	Identity *secp256k1.PrivateKey
	// EvidenceBytes is how long the transaction of each row is made, at least 100. Zero means 400.
	EvidenceBytes int

	provider *Provider // ours; nil: one that was there before
	retries  atomic.Int64
}

func (t *Target) evidence() int {
	if t.EvidenceBytes == 0 {
		return 400
	}
	return max(t.EvidenceBytes, 100)
}

// kind names the service in a table.
func (t *Target) kind() string {
	if t.Signed {
		return "signed"
	}
	return "public"
}

// operator is one connection to the operator API.
type operator struct {
	t *Target
	c *conn
}

func (t *Target) operator() (*operator, error) {
	c, err := newConn(strings.TrimSuffix(t.OperatorURL, "/"))
	if err != nil {
		return nil, fmt.Errorf("the operator API: %w", err)
	}
	return &operator{t, c}, nil
}

func (o *operator) close() { o.c.close() }

const operatorBytes = 16 << 20 // of an answer; metrics are the long ones

func (o *operator) send(ctx context.Context, method, path string, body []byte) (reply, error) {
	r, err := http.NewRequest(method, o.c.base.String()+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Authorization", "Bearer "+o.t.Token)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return o.c.do(ctx, r, 0, operatorBytes)
}

// append appends a group and returns its sequence. What may be tried again is, under the same key: it is appended once.
func (o *operator) append(ctx context.Context, group []byte) (uint64, error) {
	var p patience
	for {
		a, err := o.send(ctx, http.MethodPost, "/operator/v1/feeds/"+o.t.Feed+"/groups", group)
		if err == nil && a.status == http.StatusOK {
			var receipt struct{ Sequence string }
			if err := json.Unmarshal(a.body, &receipt); err != nil {
				return 0, fmt.Errorf("the answer to an append: %w", err)
			}
			return strconv.ParseUint(receipt.Sequence, 10, 64)
		}
		if err = p.again(ctx, o.t, a, err); err != nil {
			return 0, fmt.Errorf("append: %w", err)
		}
	}
}

// patience is how long something is tried again.
type patience struct {
	until time.Time
}

const patienceTime = 30 * time.Second

// again returns nil when the request may be sent again, after the time that was asked for.
func (p *patience) again(ctx context.Context, t *Target, a reply, err error) error {
	pause := 20 * time.Millisecond
	if err == nil {
		said, parse := wire.ParseError(a.body, a.status)
		switch {
		case parse != nil:
			return fmt.Errorf("status %d without an error of the protocol", a.status)
		case !said.Retryable:
			return said
		case said.RetryAfterMs != nil:
			pause = time.Duration(*said.RetryAfterMs) * time.Millisecond
		}
		err = said
	} else if _, broken := errors.AsType[brokenError](err); !broken {
		return err
	}
	if t.provider != nil {
		if gone := t.provider.child.ended(); gone != nil {
			return gone
		}
	}
	if p.until.IsZero() {
		p.until = time.Now().Add(patienceTime)
	} else if time.Now().After(p.until) {
		return fmt.Errorf("no better answer within %s: %w", patienceTime, err)
	}
	t.retries.Add(1)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
		return nil
	}
}

// usage is what the provider's process used up to now.
type usage struct {
	residentBytes, cpuSeconds float64
}

// usage reads the provider's metrics. A platform that does not tell gives zeros.
func (o *operator) usage(ctx context.Context) (usage, error) {
	a, err := o.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return usage{}, err
	}
	if a.status != http.StatusOK {
		return usage{}, fmt.Errorf("the metrics of the operator API: status %d", a.status)
	}
	var u usage
	s := bufio.NewScanner(bytes.NewReader(a.body))
	for s.Scan() {
		name, value, _ := strings.Cut(s.Text(), " ")
		switch name {
		case "process_resident_memory_bytes":
			u.residentBytes, _ = strconv.ParseFloat(value, 64)
		case "process_cpu_seconds_total":
			u.cpuSeconds, _ = strconv.ParseFloat(value, 64)
		}
	}
	return u, s.Err()
}
