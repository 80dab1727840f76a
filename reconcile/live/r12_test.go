package live_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// TestR12_BRC24 asks a lookup service that only answers: each answer is the next
// generation, one group at sequence 0, never two at once; what an answer leaves out is
// not listed any more, which is no spend.
func TestR12_BRC24(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	rows := coins(c, 0, 3)
	child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{rows[2].Out(0)}})
	var answer atomic.Value
	var inFlight, most atomic.Int32
	list := func(outputs ...map[string]any) {
		text, err := json.Marshal(map[string]any{"type": "output-list", "outputs": outputs})
		if err != nil {
			t.Fatal(err)
		}
		answer.Store(text)
	}
	numbers := func(b []byte) (out []int) {
		for _, n := range b {
			out = append(out, int(n))
		}
		return out
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), inFlight.Add(1)))
		defer inFlight.Add(-1)
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/lookup" || string(body) != `{"service":"ls_old","query":{"find":"all"}}` {
			t.Errorf("%s %s %s %v", r.Method, r.URL.Path, body, err)
		}
		_, _ = w.Write(answer.Load().([]byte))
	}))
	t.Cleanup(server.Close)
	// Bytes as numbers and as base64, the target alone or with what it spends.
	list(
		map[string]any{"beef": numbers(c.BEEF(rows[0], verifytest.Evidence{V1: true})), "outputIndex": 0},
		map[string]any{"beef": c.BEEF(rows[1], verifytest.Evidence{Atomic: true}), "outputIndex": 0},
		map[string]any{"beef": numbers(c.BEEF(child, verifytest.Evidence{})), "outputIndex": 0},
	)
	w := newWallet(t, c)
	old := live.BRC24(server.URL, "ls_old", []byte(`{"find":"all"}`))
	w.config.Finite = []live.Finite{old}
	if err := w.untilLive(); err != nil {
		t.Fatal(err)
	}
	want := []string{rows[0].Outpoint(0).String(), rows[1].Outpoint(0).String(), child.Outpoint(0).String()}
	if got := w.present(0); !slices.Equal(got, sorted(want)) {
		t.Errorf("present are %v, want %v", got, want)
	}
	for _, m := range w.memberships() {
		if m.Phase != reconcile.PhaseFinite || m.Sequence != 0 || m.Generation != 1 {
			t.Errorf("%+v", m)
		}
	}
	list(map[string]any{"beef": numbers(c.BEEF(rows[1], verifytest.Evidence{})), "outputIndex": 0})
	if err := w.untilLive(); err != nil {
		t.Fatal(err)
	}
	if got := w.present(0); !slices.Equal(got, want[1:2]) {
		t.Errorf("present are %v", got)
	}
	if got := w.output(rows[0].Outpoint(0)); got.State != reconcile.Current || len(got.Sources) != 0 {
		t.Errorf("what is not listed any more is %+v", got)
	}
	received := of[live.Received](w)
	if len(received) != 2 || received[1].Generation != 2 || received[1].Groups != 1 || received[1].Through != 0 || most.Load() != 1 {
		t.Errorf("received %+v, %d at once", received, most.Load())
	}
	list() // an empty answer is an answer
	if err := w.untilLive(); err != nil {
		t.Fatal(err)
	}
	if got := w.present(0); len(got) != 0 {
		t.Errorf("present are %v", got)
	}
	w.audit()
}

// A bundle that does not say which transaction is meant is refused; the last one is
// never taken because it is last.
func TestR12_TheTransactionMeantIsNamed(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	rows := coins(c, 0, 2)
	child := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{rows[0].Out(0)}})
	var text []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	t.Cleanup(server.Close)
	f := live.BRC24(server.URL, "ls_old", nil)
	ask := func(outputs ...map[string]any) ([]live.Listed, error) {
		var err error
		if text, err = json.Marshal(map[string]any{"type": "output-list", "outputs": outputs}); err != nil {
			t.Fatal(err)
		}
		return f.Fetch(t.Context())
	}
	got, err := ask(map[string]any{"beef": c.BEEF(child, verifytest.Evidence{}), "outputIndex": 0}) // the target stands first
	if err != nil || len(got) != 1 || got[0].TxID != child.ID {
		t.Errorf("%v, %v", got, err)
	}
	two := c.BEEF(child, verifytest.Evidence{Also: []*verifytest.Tx{rows[1]}})
	if got, err = ask(map[string]any{"beef": two, "outputIndex": 0}); err == nil {
		t.Errorf("took %v", got)
	}
	got, err = ask(map[string]any{"beef": two, "outputIndex": 0, "txid": rows[1].ID.String()})
	if err != nil || got[0].TxID != rows[1].ID {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []map[string]any{
		{"beef": two}, {"beef": []int{1, 256}, "outputIndex": 0}, {"beef": []int{1, 2}, "outputIndex": 0}, {"beef": "!", "outputIndex": 0},
		{"beef": two, "outputIndex": 0, "txid": "ab"}, {"beef": two, "outputIndex": -1},
	} {
		if got, err := ask(bad); err == nil {
			t.Errorf("took %v as %v", bad, got)
		}
	}
	for _, other := range []string{`{}`, `{"type":"freeform","result":[]}`, `[`} {
		text = []byte(other)
		if got, err := f.Fetch(t.Context()); err == nil {
			t.Errorf("took %s as %v", other, got)
		}
	}
}

// Refreshes are serial generations, also when an answer is late, fails, or lies; the
// rows of the answer before stay until the next one is accepted.
func TestR12_FiniteGenerations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := verifytest.NewChain(t)
		rows := coins(c, 0, 3)
		listed := func(tx *verifytest.Tx, e verifytest.Evidence) live.Listed {
			return live.Listed{TxID: tx.ID, BEEF: c.BEEF(tx, e)}
		}
		forged := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{rows[0].Out(0)}, Forged: true})
		lonely := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(9)}}).Out(0)}})
		answers := []func() ([]live.Listed, error){
			func() ([]live.Listed, error) {
				return []live.Listed{listed(rows[0], verifytest.Evidence{}), listed(rows[0], verifytest.Evidence{})}, nil
			},
			func() ([]live.Listed, error) { return nil, errors.New("not now") },
			func() ([]live.Listed, error) { return []live.Listed{listed(forged, verifytest.Evidence{})}, nil },
			func() ([]live.Listed, error) {
				return []live.Listed{listed(lonely, verifytest.Evidence{RawOnly: true})}, nil
			},
			func() ([]live.Listed, error) {
				return []live.Listed{listed(rows[1], verifytest.Evidence{}), listed(rows[2], verifytest.Evidence{})}, nil
			},
		}
		asked, at := 0, []time.Time{}
		w := walletOver(t, openOver(t, memstore.New(), reconcile.Budget{}), c)
		w.patience = long
		w.config.Finite = []live.Finite{{Label: "mine", Every: 30 * time.Second, Fetch: func(context.Context) ([]live.Listed, error) {
			at = append(at, time.Now())
			asked++
			return answers[min(asked, len(answers))-1]()
		}}}
		stop := w.start()
		w.await("the last answer", func() bool { return len(w.present(0)) == 2 && w.memberships()[0].Generation == 4 })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for i := range at[1:] {
			if i != 1 && at[i+1].Sub(at[i]) < time.Second {
				t.Errorf("asked again after %v", at[i+1].Sub(at[i]))
			}
		}
		var shown []string
		for _, a := range of[live.Accepted](w) {
			for _, m := range a.Memberships {
				shown = append(shown, fmt.Sprint(m.Generation, " ", name(m.Outpoint, rows), " ", m.Present, " ", m.Gone))
			}
		}
		want := []string{"1 0 true false", "1 0 false true", "4 1 true false", "4 2 true false"}
		if !slices.Equal(sorted(shown), sorted(want)) {
			t.Errorf("published\n%v\nwant\n%v", shown, want)
		}
		if got := of[live.SourceReset](w); len(got) != 1 || got[0].Generation != 2 || got[0].Code != "invalid" {
			t.Errorf("told %+v", got)
		}
		w.audit()
	})
}

func name(o spend.Outpoint, rows []*verifytest.Tx) int {
	return slices.IndexFunc(rows, func(tx *verifytest.Tx) bool { return tx.ID == o.TxID })
}
