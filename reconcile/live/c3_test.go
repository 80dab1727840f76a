package live_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// faulty is a backend whose n-th update goes wrong: before the commit, or after it
// with the reply lost. It is never closed by a store over it.
type faulty struct {
	reconcile.Backend
	mu    sync.Mutex
	n     int  // guarded by mu; updates so far
	at    int  // the one that fails; 0: none
	after bool // it happened all the same
}

var errCut = errors.New("the power went")

func (f *faulty) Update(ctx context.Context, do func(reconcile.Reader) (reconcile.Writes, error)) error {
	f.mu.Lock()
	f.n++
	hit := f.n == f.at
	f.mu.Unlock()
	if hit && !f.after {
		return errCut
	}
	err := f.Backend.Update(ctx, do)
	if hit && err == nil {
		return fmt.Errorf("%w: %w", reconcile.ErrUnknown, errCut)
	}
	return err
}

func (f *faulty) Close() error { return nil }

// story is a provider with five rows in the snapshot, pages of two, and changes that
// come while it is read: two rows enter, one is spent and replaced.
type story struct {
	chain    *verifytest.Chain
	provider *provider
	rows     []*verifytest.Tx
	spender  *verifytest.Tx
}

func newStory(t testing.TB) *story {
	c := verifytest.NewChain(t)
	s := &story{chain: c, rows: coins(c, 0, 7)}
	s.spender = verifytest.Pay(verifytest.Payment{From: []verifytest.Out{s.rows[1].Out(0)}})
	return s.again(t)
}

// again is the same story, told by another provider.
func (s *story) again(t testing.TB) *story {
	c := s.chain
	s = &story{chain: c, provider: newProvider(t, "one"), rows: s.rows, spender: s.spender}
	for _, tx := range s.rows[:5] {
		s.provider.seed(row(c, tx, 0, verifytest.Evidence{}))
	}
	var once sync.Once
	s.provider.before = func(_ context.Context, endpoint string, n int, _ []byte) {
		if endpoint == "read" && n >= 2 {
			once.Do(s.goOn)
		}
	}
	return s
}

// goOn is what happens while the snapshot is read.
func (s *story) goOn() {
	p, c := s.provider, s.chain
	p.say(lists(row(c, s.rows[5], 0, verifytest.Evidence{})), lists(row(c, s.rows[6], 0, verifytest.Evidence{})))
	beef := c.BEEF(s.spender, verifytest.Evidence{})
	p.say(
		p.spends(s.rows[1].Outpoint(0), s.spender, beef), p.withdraws(s.rows[1].Outpoint(0), "spent"),
		lists(wire.Output{Evidence: wire.Evidence{TxID: s.spender.ID.String(), BEEF: beef}}),
	)
}

// wallet follows the story in pages of two.
func (s *story) wallet(t testing.TB, store reconcile.Store) *wallet {
	w := walletOver(t, store, s.chain, s.provider)
	w.config.Sources[0].Limits.MaxObservations = 3
	return w
}

// told checks that the store holds the whole story, each thing once.
func (s *story) told(w *wallet) {
	w.t.Helper()
	if got, want := w.present(0), s.provider.truth(); !slices.Equal(got, want) {
		w.t.Errorf("present are %v, want %v", got, want)
	}
	st := w.source(s.provider)
	if st.Latest.Number != 1 || !st.Latest.Complete || st.Latest.Through != s.provider.head || s.provider.opened() != 1 {
		w.t.Errorf("the source stands at %+v; %d sessions", st.Latest, s.provider.opened())
	}
	for _, tx := range s.rows {
		want := reconcile.Current
		if tx == s.rows[1] {
			want = reconcile.Spent
		}
		if got := w.output(tx.Outpoint(0)); got.State != want || want == reconcile.Spent && got.By != s.spender.ID {
			w.t.Errorf("%s is %+v, want %s", tx.ID, got, want)
		}
	}
	if got := w.output(s.spender.Outpoint(0)); got.State != reconcile.Current {
		w.t.Errorf("the change is %+v", got)
	}
	w.read(func(snap reconcile.Snapshot) {
		counts, err := snap.Counts()
		if err != nil || counts.Pending.Groups != 0 {
			w.t.Errorf("%+v, %v", counts, err)
		}
	})
	w.audit()
}

// TestC3_ReceiptAndCheckpointAreOneCommit has the power go at every commit of a run,
// before it and after it, and starts again: at each request, what its cursor stands
// for is in the store, and in the end everything is there once.
func TestC3_ReceiptAndCheckpointAreOneCommit(t *testing.T) {
	t.Parallel()
	first := newStory(t)
	for _, after := range []bool{false, true} {
		for at := 1; ; at++ {
			s := first.again(t)
			kept := memstore.New()
			f := &faulty{Backend: kept, at: at, after: after}
			store, err := reconcile.Open(t.Context(), f, reconcile.Options{Partition: partition, NonFinal: true})
			if err == nil {
				w := s.wallet(t, store)
				s.watch(t, store)
				if err = w.untilLive(); err != nil && !errors.Is(err, errCut) {
					t.Fatalf("update %d: %v", at, err)
				}
			} else if !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			if f.n < at { // nothing was cut
				if at < 10 {
					t.Errorf("a whole run has only %d updates", f.n)
				}
				break
			}
			again := openOver(t, &faulty{Backend: kept}, reconcile.Budget{})
			s.watch(t, again)
			w := s.wallet(t, again)
			if err := w.untilLive(); err != nil {
				t.Fatalf("update %d, the second run: %v", at, err)
			}
			s.told(w)
			if t.Failed() {
				t.Fatalf("update %d, after %v", at, after)
			}
		}
	}
}

// watch checks at every read that the rows which its cursor has behind it are in the
// store.
func (s *story) watch(t testing.TB, store reconcile.Store) {
	then := s.provider.before
	s.provider.before = func(ctx context.Context, endpoint string, n int, body []byte) {
		if endpoint == "read" {
			q, err := wire.ParseRead(body)
			if err != nil {
				t.Error(err)
				return
			}
			behind := 5
			if _, err := fmt.Sscanf(q.Cursor, "session-1 snapshot %d", &behind); err != nil {
				behind = 5
			}
			snap, err := store.Read(context.WithoutCancel(ctx), 0) // a run that ends cancels its requests
			if err != nil {
				return // the power went
			}
			for _, tx := range s.rows[:behind] {
				if _, found, err := snap.Transaction(tx.ID); err != nil || !found {
					t.Errorf("the cursor %q is used and %s is not in the store: %v", q.Cursor, tx.ID, err)
				}
			}
			if err := snap.Close(); err != nil {
				t.Error(err)
			}
		}
		then(ctx, endpoint, n, body)
	}
}

// A second run takes up the session where the first left it, and tells nothing twice
// that it told.
func TestC3_TheNextRunGoesOn(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	store := openOver(t, memstore.New(), reconcile.Budget{})
	w := s.wallet(t, store)
	if err := w.untilLive(); err != nil {
		t.Fatal(err)
	}
	reads := s.provider.seen("read")
	told := of[live.Accepted](w)
	for i, e := range told {
		if i > 0 && e.Revision.Accepted != told[i-1].Revision.Accepted+1 {
			t.Errorf("revision %d follows %d", e.Revision.Accepted, told[i-1].Revision.Accepted)
		}
	}
	again := s.wallet(t, store)
	if err := again.untilLive(); err != nil {
		t.Fatal(err)
	}
	s.told(again)
	if n := s.provider.seen("read"); n > reads+2 {
		t.Errorf("the second run asked %d times", n-reads)
	}
	if more := of[live.Accepted](again); len(more) > 0 {
		t.Errorf("%d changes were told again", len(more))
	}
}
