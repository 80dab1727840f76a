package reconcile_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

func TestK2_RevisionsAreUsedUpBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	const end = math.MaxUint64
	for _, at := range []struct {
		r        reconcile.Revision
		position uint64
		refused  bool
	}{
		{reconcile.Revision{Received: end - 2, Accepted: 4}, 7, false},
		{reconcile.Revision{Received: end, Accepted: 4}, 7, true},
		{reconcile.Revision{Received: end - 1, Accepted: end}, 7, true},
		{reconcile.Revision{Received: 5, Accepted: 4}, end, true},
	} {
		b := memstore.New()
		k := storetest.NewKit(t, storetest.Instance{Backend: b}, storetest.Trust(storetest.Roots...))
		s := k.Source("a")
		m := k.Live(s, storetest.G("g", 1))
		if err := reconcile.SetRevision(t.Context(), b, at.r, at.position); err != nil {
			t.Fatal(err)
		}
		if at.refused {
			k.Refused(m, reconcile.StatusLimited)
		} else {
			k.Commit(m)
			k.Refused(k.Live(s, storetest.G("h", 2), storetest.G("h", 2), storetest.G("i", 1)), reconcile.StatusInvalid)
		}
	}
}

func TestK2_OpeningAnExistingStore(t *testing.T) {
	t.Parallel()
	b := memstore.New()
	ctx := t.Context()
	if _, err := reconcile.Open(ctx, b, reconcile.Options{ReadOnly: true}); err == nil {
		t.Error("an empty store was opened to be looked at")
	}
	k := storetest.NewKit(t, storetest.Instance{Backend: b}, storetest.Trust(storetest.Roots...))
	o := k.Options
	for name, change := range map[string]func(*reconcile.Options){
		"partition": func(o *reconcile.Options) { o.Partition.Access = "other" },
		"chain":     func(o *reconcile.Options) { o.Chain.GenesisHash = "11" },
		"nonFinal":  func(o *reconcile.Options) { o.NonFinal = false },
	} {
		other := o
		change(&other)
		if _, err := reconcile.Open(ctx, b, other); !errors.Is(err, reconcile.ErrPartition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o.Partition.Account = ""
	if _, err := reconcile.Open(ctx, b, o); err == nil || errors.Is(err, reconcile.ErrPartition) {
		t.Errorf("an empty part: %v", err)
	}
	// Whoever looks writes nothing.
	look, err := reconcile.Open(ctx, b, reconcile.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := look.Source(ctx, reconcile.SourceKey{Kind: "x"}); !errors.Is(err, reconcile.ErrReadOnly) {
		t.Errorf("a source: %v", err)
	}
	if err := look.Attach(ctx, reconcile.Attach{}); !errors.Is(err, reconcile.ErrReadOnly) {
		t.Errorf("an attachment: %v", err)
	}
	if look.Durability() != reconcile.Volatile {
		t.Errorf("a store in memory is %s", look.Durability())
	}
	// Trusted roots stay what they were, whatever is given later.
	s := k.Source("a")
	x := k.Spend(storetest.Roots[0].Out(0))
	k.Commit(k.Live(s, storetest.G("g", 1, k.Lists("1", x, 0))))
	k.Work()
	k.Want("status", k.Status(x), "selected-final")
	k.Read(func(s reconcile.Snapshot) {
		for tx, err := range s.Transactions() {
			if err != nil || slices.ContainsFunc(storetest.Roots, func(r storetest.Tx) bool { return r.ID == tx.ID }) {
				t.Errorf("%s, %v", tx.ID, err)
			}
		}
	})
	if err := k.Store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Store.Revision(ctx); !errors.Is(err, reconcile.ErrClosed) {
		t.Errorf("a closed store: %v", err)
	}
}
