package sample

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/bsv-blockchain/go-sdk/chainhash"
	"github.com/bsv-blockchain/go-sdk/script/interpreter"
	"github.com/bsv-blockchain/go-sdk/transaction"

	"github.com/overlayd/overlayd/internal/beef"
)

func generate(t testing.TB, o Options) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Generate(t.Context(), &out, o); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestN1_GeneratedIsAcceptedAndN3_MeetsItsRows(t *testing.T) {
	t.Parallel()
	const n = 1000
	for name, o := range map[string]Options{
		"defaults":  {Groups: n},
		"expiring":  {Seed: 1, Groups: n, Now: 1_800_000_000, ExpireShare: 0.1},
		"bounded":   {Seed: 2, Groups: n, MaxLive: 20, Artists: 3},
		"puts only": {Seed: 3, Groups: n, PutsOnly: true},
	} {
		f := newFeed(t)
		f.now = o.Now
		all := lines(t, generate(t, o))
		if len(all) != n {
			t.Fatalf("%s: %d lines", name, len(all))
		}
		for _, text := range all {
			f.apply(text)
			if o.MaxLive > 0 && len(f.rows) > o.MaxLive {
				t.Fatalf("%s: %d rows", name, len(f.rows))
			}
		}
		t.Logf("%s: %v, %d many-valued, %d contexts, %d rows", name, f.ops, f.multi, f.contexts, len(f.rows))
		if o.PutsOnly {
			if f.ops["put"] != n || len(f.rows) != n {
				t.Errorf("%s: %v", name, f.ops)
			}
			continue
		}
		for _, op := range []string{"put", "spend", "replacement", "withdraw", "again", "invalidate"} {
			if f.ops[op] == 0 {
				t.Errorf("%s: no %s in %v", name, op, f.ops)
			}
		}
		if (f.ops["expiry"] > 0) != (o.Now != 0) || f.multi == 0 || f.contexts == 0 {
			t.Errorf("%s: %v, %d many-valued, %d contexts", name, f.ops, f.multi, f.contexts)
		}
	}
}

// Merkle paths lead to the headers, the headers to each other, and every
// script that spends a transaction of the stream runs, mined or not.
func TestR9_GeneratedEvidenceIsValid(t *testing.T) {
	t.Parallel()
	o := Options{Seed: 7, Groups: 300}
	var headers Headers
	prev, blocks := [32]byte{}, uint32(0)
	o.OnBlock = func(height uint32, h Header) {
		if height != blocks || h.Prev() != prev || h.Hash()[0] >= 0x7f {
			t.Errorf("header %d does not follow", height)
		}
		if height == 0 && h.Hash() != SyntheticGenesis {
			t.Error("another genesis block")
		}
		prev, blocks = h.Hash(), blocks+1
		headers.Add(h)
	}
	f := newFeed(t)
	known := map[chainhash.Hash]*transaction.Transaction{}
	seen := map[[sha256.Size]byte]bool{}
	scripts, unmined, encodings := 0, 0, map[string]int{}
	for _, text := range lines(t, generate(t, o)) {
		for _, e := range f.apply(text) {
			if sum := sha256.Sum256(e.beef); seen[sum] {
				continue
			} else {
				seen[sum] = true
			}
			b, err := beef.Parse(e.beef)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Verify(t.Context(), e.target, &headers); err != nil {
				t.Fatal(err)
			}
			encodings[hex.EncodeToString(e.beef[:2])]++
			if len(b.TxIDs()) == 2 {
				unmined++
			}
			own, err := b.Transaction(e.target)
			if err != nil {
				t.Fatal(err)
			}
			tx, err := transaction.NewTransactionFromBytes(own.Raw)
			if err != nil {
				t.Fatal(err)
			}
			known[*tx.TxID()] = tx
			parent := known[*tx.Inputs[0].SourceTXID]
			if parent == nil {
				continue
			}
			source := parent.Outputs[tx.Inputs[0].SourceTxOutIndex]
			tx.Inputs[0].SourceTransaction = parent
			if err := interpreter.NewEngine().Execute(interpreter.WithTx(tx, 0, source), interpreter.WithForkID(), interpreter.WithAfterGenesis()); err != nil {
				t.Fatalf("%s: %v", tx.TxID(), err)
			}
			if tx.TotalOutputSatoshis() >= source.Satoshis {
				t.Fatalf("%s pays no fee", tx.TxID())
			}
			scripts++
		}
	}
	t.Logf("%d blocks, %d pieces of evidence, %d scripts run, %d unmined, encodings %v", blocks, len(seen), scripts, unmined, encodings)
	// Only the first payment spends a coinbase, which is nobody's evidence.
	if scripts != len(known)-1 || unmined < 2 || len(encodings) != 3 {
		t.Errorf("%d of %d scripts run, %d unmined, encodings %v", scripts, len(known), unmined, encodings)
	}
	again, err := o.Headers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for height := range blocks {
		want, _ := headers.MerkleRoot(height)
		if got, ok := again.MerkleRoot(height); !ok || got != want {
			t.Fatalf("Headers differs at height %d", height)
		}
	}
	if _, ok := again.MerkleRoot(blocks); ok {
		t.Error("a block after the last")
	}
	if top, err := again.CurrentHeight(t.Context()); err != nil || top != blocks-1 {
		t.Errorf("height %d, %v", top, err)
	}
}

func TestN2_GeneratedIsDeterministic(t *testing.T) {
	t.Parallel()
	o := Options{Seed: 5, Groups: 400, Now: 1_800_000_000}
	one, two := generate(t, o), generate(t, o)
	if !bytes.Equal(one, two) {
		t.Fatal("two runs differ")
	}
	// The same bytes on every machine and after every change here: whoever
	// changes the stream makes old imports end in conflicts, and should know.
	sum := sha256.Sum256(one)
	if got := hex.EncodeToString(sum[:]); got != streamDigest {
		t.Errorf("the stream has changed: %s", got)
	}
	seed, later := o, o
	seed.Seed++
	later.Now++
	for _, other := range []Options{seed, later} {
		if other.name() == o.name() {
			t.Error("other options claim the same keys")
		}
	}
}

const streamDigest = "e7f8c3d7e46cf0f886122eb59965668e70227f370ddb0d5ba2393c0c727843d9"

func TestGenerateSmallCounts(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 9, 26, 27} {
		if got := len(lines(t, generate(t, Options{Groups: n}))); got != n {
			t.Errorf("%d lines, %d wanted", got, n)
		}
	}
}

func TestGenerateRefuses(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"groups":  {Groups: -1},
		"share":   {ExpireShare: 1.5},
		"nan":     {ExpireShare: math.NaN()},
		"artists": {Artists: -1},
		"live":    {MaxLive: -1},
		"time":    {Now: math.MaxUint64},
	} {
		if err := Generate(t.Context(), io.Discard, o); err == nil {
			t.Errorf("%s accepted", name)
		}
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Generate(stopped, io.Discard, Options{Groups: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := Small(stopped, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := Generate(t.Context(), broken{}, Options{Groups: 1000}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if err := Small(t.Context(), broken{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func BenchmarkGenerate(b *testing.B) {
	const n = 2000
	var c counter
	for b.Loop() {
		if err := Generate(b.Context(), &c, Options{Groups: n}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "groups/s")
	b.ReportMetric(float64(c)/float64(n)/float64(b.N), "bytes/group")
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
