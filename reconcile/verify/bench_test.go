package verify_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bsv-blockchain/go-sdk/script"
	"github.com/bsv-blockchain/go-sdk/script/interpreter"
	"github.com/bsv-blockchain/go-sdk/transaction"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

// benchDesk is a store with as many jobs as are asked for, each about another
// P2PKH input: job n is group n+1.
type benchDesk struct {
	evidence []reconcile.Evidence

	mu    sync.Mutex
	jobs  []reconcile.Job
	over  []bool // by job: it was recorded
	first int    // of those that were not
	done  func()
}

func (d *benchDesk) Work(_ context.Context, after reconcile.Cursor, limit int) (jobs []reconcile.Job, next reconcile.Cursor, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if after.Source > 1 {
		return nil, next, nil
	}
	for at := max(int(after.Group), d.first); at < len(d.jobs); at++ {
		if len(jobs) == limit {
			return jobs, reconcile.Cursor{Source: 1, Group: jobs[limit-1].Group}, nil
		}
		if !d.over[at] {
			jobs = append(jobs, d.jobs[at])
		}
	}
	return jobs, next, nil
}

func (d *benchDesk) Load(_ context.Context, j reconcile.Job) (reconcile.Evidence, error) {
	return d.evidence[int(j.Group)%len(d.evidence)], nil
}

func (d *benchDesk) Record(_ context.Context, results []reconcile.Result) ([]reconcile.Recorded, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]reconcile.Recorded, len(results))
	for i, r := range results {
		if r.Status != reconcile.Verified {
			return nil, fmt.Errorf("%s: %s", r.Status, r.Reason)
		}
		out[i].Kept = true
		d.over[r.Group-1] = true
	}
	for d.first < len(d.over) && d.over[d.first] {
		d.first++
	}
	if d.first == len(d.jobs) {
		d.done()
	}
	return out, nil
}

// payments are transactions with one P2PKH input each.
func payments(b *testing.B, n int) (list []*verifytest.Tx, parent *verifytest.Tx, s *store) {
	b.Helper()
	c := verifytest.NewChain(b)
	s = newStore(b, c.Fund)
	for i := range n {
		tx := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(uint32(i % 64))}, Values: []uint64{uint64(1000 + i)}})
		list = append(list, tx)
		s.add(b, tx.Raw)
	}
	return list, c.Fund, s
}

// BenchmarkR9_ScriptChecks compares the pool with a bare loop around go-sdk, in
// the same process and taking turns, so that both see the same machine. One
// operation is one script. bare/s is one loop on one core; pool/bare/core is what a worker
// does of that, and its goal is 0.9. On a machine that has other work the loops
// on all cores at once are the better measure (pool/all is against them), and so
// is the time that the process itself was given (pool/all/cpu).
func BenchmarkR9_ScriptChecks(b *testing.B) {
	const round = 1000
	txs, parent, s := payments(b, round)
	d := &benchDesk{}
	for _, tx := range txs {
		d.evidence = append(d.evidence, s.load(reconcile.Planned{Target: tx.ID}, output(0)))
	}
	workers := runtime.GOMAXPROCS(0)
	run := func(txs []*verifytest.Tx) {
		for _, tx := range txs {
			t, err := transaction.NewTransactionFromBytes(tx.Raw)
			if err != nil {
				b.Error(err)
				return
			}
			o := parent.Outputs[t.Inputs[0].SourceTxOutIndex]
			err = interpreter.NewEngine().Execute(
				interpreter.WithTx(t, 0, &transaction.TransactionOutput{Satoshis: o.Satoshis, LockingScript: script.NewFromBytes(o.Script)}),
				interpreter.WithForkID(), interpreter.WithAfterGenesis(),
			)
			if err != nil {
				b.Error(err)
			}
		}
	}
	bare := func() time.Duration {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one core: what the loop leaves to be collected is its own to collect
		began := time.Now()
		run(txs)
		return time.Since(began)
	}
	everywhere := func() time.Duration {
		began := time.Now()
		var loops sync.WaitGroup
		for part := range slices.Chunk(txs, (round+workers-1)/workers) {
			loops.Go(func() { run(part) })
		}
		loops.Wait()
		return time.Since(began)
	}
	pool := func() time.Duration {
		ctx, stop := context.WithCancel(b.Context())
		d.jobs, d.over, d.first, d.done = nil, make([]bool, round), 0, stop
		for i := range round {
			d.jobs = append(d.jobs, reconcile.Job{Source: 1, Generation: 1, Group: uint64(i + 1), Target: txs[(i+1)%round].ID, Context: "now"})
		}
		v := verify.New(verify.Config{Cache: -1, Log: slog.New(slog.DiscardHandler)})
		began := time.Now()
		if err := verify.NewPool(v, verify.PoolOptions{}).Run(ctx, d); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var alone, all, pooled, allCPU, pooledCPU time.Duration
	n := 0
	for b.Loop() {
		if n%round == 0 {
			alone += bare()
			at := cpu(b)
			all += everywhere()
			allCPU += cpu(b) - at
			at = cpu(b)
			pooled += pool()
			pooledCPU += cpu(b) - at
		}
		n++
	}
	rounds := (n + round - 1) / round
	scripts := float64(rounds * round)
	b.ReportMetric(scripts/alone.Seconds(), "bare/s")
	b.ReportMetric(scripts/pooled.Seconds(), "pool/s")
	b.ReportMetric(alone.Seconds()/pooled.Seconds()/float64(workers), "pool/bare/core")
	b.ReportMetric(all.Seconds()/pooled.Seconds(), "pool/all")
	b.ReportMetric(allCPU.Seconds()/pooledCPU.Seconds(), "pool/all/cpu")
	b.ReportMetric(0, "ns/op")
}

// cpu is the time that the process was given so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkR9_Plan is one plan of a mined output: parsing, hashing, a Merkle path.
func BenchmarkR9_Plan(b *testing.B) {
	c := verifytest.NewChain(b)
	tx := pay(c.Fund.Out(0))
	var others []*verifytest.Tx
	for i := range uint32(40) {
		others = append(others, pay(c.Fund.Out(i+1)))
	}
	block := c.Mine(append(others, tx)...)
	data := c.BEEF(tx, verifytest.Evidence{})
	view := c.View(block)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if p := verify.Plan(data, tx.ID, view, reconcile.Budget{}); !p.Claims[0].Holds {
			b.Fatal(p.Fault)
		}
	}
}

// BenchmarkR9_WeighedScript is the meter's price: nothing but a long script of joins.
func BenchmarkR9_WeighedScript(b *testing.B) {
	locking := []byte{}
	for range 300 {
		locking = append(locking, 0x76, 0x76, 0x7e, 0x82, 0x75, 0x75) // DUP DUP CAT SIZE DROP DROP
	}
	c := verifytest.NewChain(b)
	tx := verifytest.Pay(verifytest.Payment{From: []verifytest.Out{c.Fund.Out(0)}, Unlock: map[int][]byte{0: {0x51}}})
	p, err := beef.Prepare(tx.Raw)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := p.Execute(0, locking, 1); err != nil {
			b.Fatal(err)
		}
	}
}
