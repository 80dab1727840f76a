package lookup

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// nth is a client of the test's own.
func nth(i int) (c client) {
	binary.BigEndian.PutUint64(c[:], uint64(i)+1)
	return c
}

func bucketQuotas(t *testing.T, q Quotas) Quotas {
	t.Helper()
	q, err := q.filled()
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestO10_ABucketTellsWhenItHasRoom: who waits as long as told is admitted, who comes a moment earlier is not.
func TestO10_ABucketTellsWhenItHasRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOpens(bucketQuotas(t, Quotas{OpensPerSecond: 2, OpenBurst: 3}))
		for i := range 3 {
			if q, _ := o.take(nth(0), "s"); q != "" {
				t.Fatalf("open %d of the burst: %s", i, q)
			}
		}
		for range 5 {
			q, wait := o.take(nth(0), "s")
			if q != quotaOpens || wait != 500*time.Millisecond {
				t.Fatalf("%s after %s", q, wait)
			}
			time.Sleep(wait - time.Millisecond)
			if q, wait := o.take(nth(0), "s"); q != quotaOpens || wait != time.Millisecond {
				t.Fatalf("%s after %s", q, wait)
			}
			time.Sleep(time.Millisecond)
			if q, _ := o.take(nth(0), "s"); q != "" {
				t.Fatalf("refused by %s after the time told", q)
			}
		}
		if q, _ := o.take(nth(1), "s"); q != "" {
			t.Fatalf("another client is refused by %s", q)
		}
		// After a rest the burst is there again, and no more than that.
		time.Sleep(time.Hour)
		for range 3 {
			if q, _ := o.take(nth(0), "s"); q != "" {
				t.Fatal(q)
			}
		}
		if q, _ := o.take(nth(0), "s"); q != quotaOpens {
			t.Fatal("a rest gave more than the burst")
		}
	})
}

// TestO10_TheTimeToldIsEnough: whatever the rates, waiting the milliseconds told is enough.
func TestO10_TheTimeToldIsEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 500 {
			q := Quotas{
				OpensPerSecond: 0.001 + r.ExpFloat64()*50, OpenBurst: 1 + r.IntN(4),
				ServiceOpensPerSecond: 0.001 + r.ExpFloat64()*50, ServiceOpenBurst: 1 + r.IntN(4),
			}
			o := newOpens(bucketQuotas(t, q))
			for range 20 {
				who := nth(r.IntN(2))
				spent, wait := o.take(who, "s")
				if spent == "" {
					continue
				}
				ms := milliseconds(wait)
				if ms < 1 || wait > 1001*time.Second {
					t.Fatalf("%+v: %s is %d ms", q, wait, ms)
				}
				time.Sleep(time.Duration(ms) * time.Millisecond)
				// The other of the two buckets may have something to say then, but not the same one again.
				if again, _ := o.take(who, "s"); again == spent {
					t.Fatalf("%+v: refused by %s after waiting %d ms", q, again, ms)
				}
			}
		}
	})
}

// TestO10_ARefusedOpenTakesNoToken: what the service refuses costs the client nothing.
func TestO10_ARefusedOpenTakesNoToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOpens(bucketQuotas(t, Quotas{OpensPerSecond: 1, OpenBurst: 2, ServiceOpensPerSecond: 1, ServiceOpenBurst: 1}))
		for _, c := range []struct {
			who     int
			service string
			want    quota
		}{
			{0, "a", ""}, {1, "a", quotaServiceOpens}, {1, "a", quotaServiceOpens}, {1, "a", quotaServiceOpens},
			{1, "b", ""}, {1, "c", ""}, // both its tokens are there
			{1, "d", quotaOpens}, {0, "d", ""}, // and the service's too, when the client has none
		} {
			if got, _ := o.take(nth(c.who), c.service); got != c.want {
				t.Fatalf("client %d at %s: %q, want %q", c.who, c.service, got, c.want)
			}
		}
	})
}

// TestO10_NobodyResetsHisBucket: a client whose bucket is empty floods the node with others. He stays refused, the node's
// memory stays bounded, and who finds no room shares what is left.
func TestO10_NobodyResetsHisBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 64
		o := newOpens(bucketQuotas(t, Quotas{OpensPerSecond: 1, OpenBurst: 100, Clients: most, ServiceOpensPerSecond: 1e6, ServiceOpenBurst: 1e6}))
		for range 100 {
			if q, _ := o.take(nth(0), "s"); q != "" {
				t.Fatal(q)
			}
		}
		refused := map[quota]int{}
		for i := range 10_000 {
			q, _ := o.take(nth(1+i), "s")
			refused[q]++
			if n := o.tracked(); n > most {
				t.Fatalf("%d clients are remembered", n)
			}
			if q, _ := o.take(nth(0), "s"); q != quotaOpens {
				t.Fatalf("after %d others his bucket says %q", i, q)
			}
		}
		// 63 found room, and the rest had the burst of the shared bucket together.
		if refused[""] != most-1+100 || refused[quotaClients] != 10_000-(most-1+100) {
			t.Fatalf("%v", refused)
		}
		// Those who are remembered have all but one token left; a moment later their buckets are full, and there is room.
		time.Sleep(time.Second + time.Millisecond)
		if n := o.tracked(); n != 1 {
			t.Fatalf("%d clients are remembered after a second", n)
		}
		if q, _ := o.take(nth(20_000), "s"); q != "" {
			t.Fatalf("a new client is refused by %s when there is room", q)
		}
		time.Sleep(100 * time.Second)
		if n := o.tracked(); n != 0 || len(o.byFull) != 0 {
			t.Fatalf("%d clients are remembered after a rest", n)
		}
	})
}

// TestO10_ForgettingChangesNothing: with room enough, buckets that come and go decide as buckets kept for ever would.
func TestO10_ForgettingChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := bucketQuotas(t, Quotas{OpensPerSecond: 3, OpenBurst: 5, Clients: 40, ServiceOpensPerSecond: 1e6, ServiceOpenBurst: 1e6})
		o, r := newOpens(q), rand.New(rand.NewPCG(3, 4))
		kept := make(map[int]*rate.Limiter)
		least, refused := q.Clients, 0
		for i := range 50_000 {
			who := r.IntN(40)
			if kept[who] == nil {
				kept[who] = o.fresh()
			}
			want := kept[who].Allow()
			got, _ := o.take(nth(who), "s")
			if (got == "") != want {
				t.Fatalf("step %d: %q, a bucket kept for ever says %v", i, got, want)
			}
			if got != "" {
				refused++
			}
			least = min(least, o.tracked())
			time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
			if r.IntN(1000) == 0 {
				time.Sleep(time.Second)
			}
		}
		if least > 20 || refused == 0 {
			t.Fatalf("never fewer than %d were remembered, %d refused: nothing was shown", least, refused)
		}
	})
}

func BenchmarkOpensTake(b *testing.B) {
	q, err := Quotas{ServiceOpensPerSecond: 1e6, ServiceOpenBurst: 1e6, OpensPerSecond: 0.001}.filled()
	if err != nil {
		b.Fatal(err)
	}
	o := newOpens(q)
	b.ReportAllocs()
	for i := range b.N {
		o.take(nth(i), "s")
	}
}
