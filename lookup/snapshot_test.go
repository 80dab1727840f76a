package lookup

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

func few(observations uint32) wire.Limits {
	return wire.Limits{MaxBytes: 1 << 20, MaxObservations: observations}
}

func outputs(batches ...*wire.Batch) []string {
	var out []string
	for _, o := range observations(batches...) {
		if o.Output != nil {
			out = append(out, o.Output.Evidence.TxID)
		}
	}
	return out
}

func TestS1_SnapshotAndWatermarkAreOneCut(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(30)
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	var mu sync.Mutex
	at := make(map[uint64]string) // sequence -> txid of the put it holds
	// Each scan is written beside, by so many groups at most: a writer that is faster than the scan would give the next one ever more.
	const scanned, beside = 6, 60
	may := make(chan struct{}, scanned*beside)
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-may:
			}
			c := mint(fmt.Sprint("during", i), 0)
			seq, err := n.tryAppend(c.put(genre(i), fmt.Sprintf(`,"order":"%04d"`, i%40)))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			at[seq] = c.hex()
			mu.Unlock()
		}
	})
	var scans [][]*wire.Batch
	for range scanned {
		for range beside {
			may <- struct{}{}
		}
		scans = append(scans, n.scan(ask{limits: few(7)}))
	}
	cancel()
	writing.Wait()
	mu.Lock()
	defer mu.Unlock()
	for _, scan := range scans {
		got := make(map[string]bool)
		for _, id := range outputs(scan...) {
			if got[id] {
				t.Fatal("a row came twice")
			}
			got[id] = true
		}
		w := scan[0].Through
		before := 0
		for seq, id := range at {
			if got[id] != (seq <= w) {
				t.Fatalf("sequence %d in S: %v, W %d", seq, got[id], w)
			}
			if seq <= w {
				before++
			}
		}
		if len(got) != 30+before {
			t.Fatalf("%d rows at W %d, want %d", len(got), w, 30+before)
		}
		// And everything after W arrives live.
		b := scan[len(scan)-1]
		after := make(map[string]bool)
		for {
			b = n.read(b, wide)
			for _, id := range outputs(b) {
				after[id] = true
			}
			if b.Through == b.HighWater {
				break
			}
		}
		if len(after) != len(at)-before {
			t.Fatalf("%d rows live, want %d", len(after), len(at)-before)
		}
	}
}

func TestS2_PagesOfAnySizeAreTheSameSnapshot(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	coins := n.stock(23)
	n.append(coins[4].withdrawn("gone"))
	n.append(coins[7].put(`{"genre":["jazz","rock"]}`, `,"order":"0000"`))
	for _, query := range []string{`{}`, `{"match":{"genre":"jazz"}}`} {
		whole := n.scan(ask{query: query})
		if len(whole) != 1 {
			t.Fatalf("%d pages", len(whole))
		}
		want := outputs(whole...)
		if query == `{}` && len(want) != 22 {
			t.Fatalf("%d rows", len(want))
		}
		for _, limits := range []wire.Limits{few(1), few(2), few(5), few(22), few(23), {MaxBytes: 3000, MaxObservations: 1024}, {MaxBytes: 5000, MaxObservations: 3}} {
			pages := n.scan(ask{query: query, limits: limits})
			if got := outputs(pages...); !slices.Equal(got, want) {
				t.Fatalf("%s at %+v: %d rows or another order", query, limits, len(got))
			}
			for i, p := range pages {
				if p.SnapshotComplete != (i == len(pages)-1) || p.Phase != wire.PhaseSnapshot || p.Through != pages[0].Through {
					t.Fatalf("page %d: complete %v phase %s through %d", i, p.SnapshotComplete, p.Phase, p.Through)
				}
				for _, g := range p.Groups {
					if g.Sequence != p.Through {
						t.Fatalf("group numbered %d at W %d", g.Sequence, p.Through)
					}
				}
			}
		}
	}
}

func TestS3_BoundaryIsAlwaysAResponseOfItsOwn(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	empty := n.open(ask{})
	if !empty.SnapshotComplete || empty.Phase != wire.PhaseSnapshot || len(empty.Groups) != 0 || empty.Through != 0 {
		t.Fatalf("%+v", empty)
	}
	next := n.read(empty, wide)
	if next.Phase != wire.PhaseLive || !next.SnapshotComplete || len(next.Groups) != 0 {
		t.Fatalf("%+v", next)
	}
	n.stock(4)
	last := n.live(`{}`)
	if last.Phase != wire.PhaseSnapshot || !last.SnapshotComplete || len(last.Groups) != 4 {
		t.Fatalf("%+v", last)
	}
	if b := n.read(last, wide); b.Phase != wire.PhaseLive || len(b.Groups) != 0 {
		t.Fatalf("%+v", b)
	}
	// A page that ends exactly with the last row is the last page.
	pages := n.scan(ask{limits: few(2)})
	if len(pages) != 2 || len(pages[1].Groups) != 2 {
		t.Fatalf("%d pages", len(pages))
	}
}

func TestS4_RowsStayAsTheyWereAtW(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key})
	coins := n.stock(6)
	want := outputs(n.scan(ask{})...)
	first := n.open(ask{limits: few(1)})
	n.append(coins[1].withdrawn("evicted"))
	n.append(coins[2].spent(mint("spender", 0, coins[2].point())))
	n.append(coins[3].put(genre(1), `,"order":"9999"`))
	n.append(coins[4].put(genre(1), fmt.Sprintf(`,"order":"0004","expiresAt":"%d"`, n.clockNow()+500)))
	n.advance(n.clockNow() + 501)
	n.halt()
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	got := outputs(first)
	b := first
	for !b.SnapshotComplete {
		b = m.read(b, few(1))
		got = append(got, outputs(b)...)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%v\n%v", got, want)
	}
	// Readable only while T < expiresAt.
	m.advance(first.ExpiresAt - 1)
	m.read(first, few(1))
	m.advance(first.ExpiresAt)
	m.request(readPath, readBody(first.Session, first.Cursor, few(1))).refused(t, wire.ResetRequired)
}

func TestS5_RowExpiry(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	stays, due, later := mint("stays", 0), mint("due", 0), mint("later", 0)
	base := n.clockNow() + 10_000
	n.append(stays.put(genre(0), `,"order":"1"`))
	n.append(due.put(genre(0), fmt.Sprintf(`,"order":"2","expiresAt":"%d"`, base)))
	n.append(later.put(genre(0), fmt.Sprintf(`,"order":"3","expiresAt":"%d"`, base+1)))
	n.advance(base)
	pages := n.scan(ask{limits: few(1)})
	if got := outputs(pages...); !slices.Equal(got, []string{stays.hex(), later.hex()}) {
		t.Fatalf("S at T=%d: %v", base, got)
	}
	// The expiry falls during the last page: the row stays in S and leaves live.
	again := n.open(ask{limits: few(1)})
	n.advance(base + 1)
	lastPage := n.read(again, few(1))
	if got := outputs(lastPage); !slices.Equal(got, []string{later.hex()}) {
		t.Fatalf("last page %v", got)
	}
	if got := tellAll(observations(n.read(lastPage, wide))); !slices.Equal(got, []string{"withdraw " + later.short() + " expired"}) {
		t.Fatalf("live %v", got)
	}
}

func TestS6_SnapshotIdentifiers(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(3)
	a := ask{id: newID(), limits: few(1)}
	first := n.open(a)
	second := n.read(first, few(2))
	if again := n.read(first, few(2)); !slices.Equal(ids(second), ids(again)) {
		t.Fatal("ids changed within a session")
	}
	other := n.scan(ask{})
	n.append(mint("live", 0).put(genre(0), ""))
	live := n.read(other[len(other)-1], wide)
	all := append(append(ids(first, second), ids(other...)...), ids(live)...)
	slices.Sort(all)
	if compact := slices.Compact(slices.Clone(all)); len(compact) != len(all) {
		t.Fatalf("%d ids, %d distinct", len(all), len(compact))
	}
}

func TestS7_RereadingAPageCursor(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	n.stock(9) // W 9: one digit; the head will need two
	groupsOf := func(b *wire.Batch) string {
		text, err := json.Marshal(ids(b))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(string(text), b.Cursor, b.SnapshotComplete, b.Through)
	}
	first := n.open(ask{limits: few(2)})
	wantTight := n.read(first, few(4))
	exact := wire.Limits{MaxBytes: uint32(len(n.request(readPath, readBody(first.Session, first.Cursor, wire.Limits{MaxBytes: 99999, MaxObservations: 4})).body)), MaxObservations: 4}
	// Echoed maxBytes has one digit less than 99999 or as many: settle on the length that repeats.
	for {
		r := n.request(readPath, readBody(first.Session, first.Cursor, exact))
		if len(r.body) == int(exact.MaxBytes) && r.status == 200 {
			break
		}
		if r.status != 200 || len(r.body) > int(exact.MaxBytes) {
			t.Fatalf("%d bytes for %d: %s", len(r.body), exact.MaxBytes, r.body)
		}
		exact.MaxBytes = uint32(len(r.body))
	}
	before := n.read(first, exact)
	if groupsOf(before) != groupsOf(wantTight) {
		t.Fatal("an exact fit cut other groups")
	}
	n.stock(0)
	for i := range 20 {
		n.append(mint(fmt.Sprint("more", i), 0).put(genre(i), ""))
	}
	for _, l := range []wire.Limits{few(4), exact} {
		again := n.read(first, l)
		if groupsOf(again) != groupsOf(before) {
			t.Fatalf("limits %+v cut other groups after the head grew", l)
		}
		if again.HighWater < again.Through || again.HighWater > 29 {
			t.Fatalf("highWater %d", again.HighWater)
		}
	}
	if got := n.read(first, few(4)).HighWater; got != 29 {
		t.Fatalf("highWater %d, want 29", got)
	}
	// Other limits change only the length of the prefix.
	long, short := ids(n.read(first, few(5))), ids(n.read(first, few(3)))
	if !slices.Equal(long[:len(short)], short) {
		t.Fatal("a shorter page is not a prefix")
	}
}

// ids are all group and observation ids, in order.
func ids(batches ...*wire.Batch) []string {
	var out []string
	for _, b := range batches {
		for _, g := range b.Groups {
			out = append(out, g.ID)
			for _, o := range g.Observations {
				out = append(out, o.ID)
			}
		}
	}
	return out
}
