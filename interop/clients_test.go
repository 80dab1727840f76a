package interop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
)

// callTime is the watchdog: how long any call may take to settle. It is shorter than the longest poll asked for, so that a
// poll which is not woken shows.
const callTime = 20 * time.Second

// official is one of the official clients.
type official interface {
	// device makes a new client object with the given private key: another device or another tab.
	device(t *testing.T, key []byte) device
}

// device is a client object.
type device interface {
	fetch(ctx context.Context, c call) (answer, error)
}

// call is one request. A body is sent as JSON.
type call struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

// answer is what a client hands to its caller, who sees nothing that was not signed.
type answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"` // names in lower case
	Body    string            `json:"body"`
}

// errNeverSettled is the watchdog's finding.
var errNeverSettled = errors.New("the call never settled")

// settle runs a call under the watchdog: also a client that ignores its context is left behind.
func settle(ctx context.Context, d device, c call) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	type result struct {
		answer
		err error
	}
	done := make(chan result, 1)
	go func() { // ends when the client does; its process or this one ends it at last
		a, err := d.fetch(ctx, c)
		done <- result{a, err}
	}()
	select {
	case r := <-done:
		if ctx.Err() != nil {
			return answer{}, fmt.Errorf("%w within %v: %s %s", errNeverSettled, callTime, c.Method, c.URL)
		}
		return r.answer, r.err
	case <-ctx.Done():
		return answer{}, fmt.Errorf("%w within %v: %s %s", errNeverSettled, callTime, c.Method, c.URL)
	}
}

// batch is a successful answer's.
func (a answer) batch(t *testing.T) *wire.Batch {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	b, err := wire.ParseBatch([]byte(a.Body))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// refused asserts an error of the protocol.
func (a answer) refused(t *testing.T, code wire.Code) *wire.Error {
	t.Helper()
	e, err := wire.ParseError([]byte(a.Body), a.Status)
	if err != nil {
		t.Fatalf("status %d: %v in %.500s", a.Status, err, a.Body)
	}
	if e.Code != code || a.Status != code.Status() {
		t.Fatalf("status %d, %s (%s), want %s", a.Status, e.Code, e.Message, code)
	}
	return e
}
