package beef

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/script"
)

// spending makes a transaction with one input that has this unlocking script.
func spending(unlocking []byte) []byte {
	raw := binary.LittleEndian.AppendUint32(nil, 1)
	raw = append(raw, 1)
	raw = append(raw, bytes.Repeat([]byte{0x11}, 32)...)
	raw = append(raw, 0, 0, 0, 0)
	raw = append(AppendCompactSize(raw, uint64(len(unlocking))), unlocking...)
	raw = append(raw, 0xff, 0xff, 0xff, 0xff, 1)
	raw = append(binary.LittleEndian.AppendUint64(raw, 1), 0)
	return append(raw, 0, 0, 0, 0)
}

func TestX3_UnlockingScriptsOnlyPush(t *testing.T) {
	t.Parallel()
	always := []byte{script.OpTRUE}
	for name, c := range map[string]struct {
		unlocking []byte
		fine      bool
	}{
		"nothing":      {nil, true},
		"pushes":       {[]byte{script.Op0, 1, 7, script.Op16, script.OpPUSHDATA1, 1, 9}, true},
		"an operation": {[]byte{script.Op1, script.OpDUP}, false},
		"a no-op":      {[]byte{script.OpNOP}, false},
		"a return":     {[]byte{script.OpRETURN}, false},
		"a cut push":   {[]byte{script.OpPUSHDATA4, 9}, false},
	} {
		err := Execute(spending(c.unlocking), 0, always, 1)
		if _, ok := errors.AsType[*Error](err); err != nil && !ok || (err == nil) != c.fine || errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Execute(spending(nil), 1, always, 1); err == nil {
		t.Error("an input that does not exist is unlocked")
	}
	if err := Execute(spending(nil), 0, nil, 1); err == nil {
		t.Error("two empty scripts unlock")
	}
	if err := Execute(append(spending(nil), 0), 0, always, 1); err == nil {
		t.Error("bytes after the transaction are not seen")
	}
}

// hostile are locking scripts that ask for far too much.
func hostile() map[string][]byte {
	push := func(v uint32) []byte {
		return append([]byte{5}, append(binary.LittleEndian.AppendUint32(nil, v), 0)...)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	double := bytes.Repeat([]byte{script.OpDUP, script.OpCAT}, 40)
	return map[string][]byte{
		"doubling":              join([]byte{script.Op1}, double),
		"a wide number":         join([]byte{script.Op0}, push(1<<31-1), []byte{script.OpNUM2BIN}),
		"two billion keys":      join(push(1<<31-2), []byte{script.OpCHECKMULTISIG}),
		"squares":               join([]byte{script.Op2}, bytes.Repeat([]byte{script.OpDUP, script.OpMUL}, 40)),
		"a long number":         join([]byte{script.Op1}, bytes.Repeat([]byte{script.OpDUP, script.OpCAT}, 19), []byte{script.Op1ADD}),
		"many copies":           join([]byte{script.Op1, script.OpDUP, script.OpDUP}, bytes.Repeat([]byte{script.Op3DUP}, 500_000)),
		"many signatures":       join(bytes.Repeat([]byte{script.Op1, script.Op1, script.OpCHECKSIG, script.OpDROP}, 100_000)),
		"many opcodes":          bytes.Repeat([]byte{script.OpNOP}, maxOps+1),
		"branches":              bytes.Repeat([]byte{script.Op1, script.Op1, script.OpCHECKSIG, script.OpIF, script.OpENDIF}, 30),
		"behind a signature":    join([]byte{script.Op1, script.Op1, script.OpCHECKSIG, script.OpNOTIF, script.Op1}, double, []byte{script.OpENDIF}),
		"the same in the other": join([]byte{script.Op0, script.OpIF, script.OpELSE, script.Op1}, double, []byte{script.OpENDIF}),
	}
}

func TestX2_HostileScriptsAreNotRun(t *testing.T) {
	// Not parallel: it measures the whole process.
	for name, locking := range hostile() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := Execute(spending(nil), 0, locking, 1)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
		if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 8*maxMemory {
			t.Errorf("%s: the heap has grown by %d bytes", name, grown)
		}
	}
}

// What makes no element grow, but takes long.
func TestX2_WorkIsCounted(t *testing.T) {
	t.Parallel()
	for name, locking := range map[string][]byte{
		"hashing and hashing":  append(bytes.Repeat([]byte{script.OpDUP, script.OpCAT}, 18), bytes.Repeat([]byte{script.OpDUP, script.OpHASH256, script.OpDROP}, 100)...),
		"rolling a deep stack": append(bytes.Repeat([]byte{script.Op1}, 10_000), bytes.Repeat([]byte{2, 0x10, 0x27, script.OpROLL}, 2_000)...),
		"deeply nested":        bytes.Repeat([]byte{script.Op1, script.OpIF}, 5_000),
	} {
		for _, limit := range []int64{maxWork / 100, maxWork} {
			m := &meter{limit: limit}
			what := m.weigh([]byte{script.Op1}, locking)
			if small := limit < maxWork; small != (what == "work") {
				t.Errorf("%s: within %d: %q after %d", name, limit, what, m.work)
			}
		}
	}
}

func TestX2_OrdinaryScriptsAreRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ unlocking, locking string }{
		"a sum":             {"525355", "93935a87"},
		"a slice":           {"04aabbccdd", "527f7502aabb87"},
		"a return":          {"51", "6a6a6a6a"},
		"multisig, empty":   {"00", "000091690000ae"},
		"thousand doubles":  {"51", strings.Repeat("768b75", 1000)},
		"number to bytes":   {"51", "5480040100000087"},
		"a condition":       {"00", "6300675168"},
		"altstack":          {"5152", "6b6c5287690051" + "7575" + "51"},
		"sixteen kilobytes": {"51", strings.Repeat("767e", 14) + "8202004087"},
	} {
		if err := Execute(spending(unhex(t, c.unlocking)), 0, unhex(t, c.locking), 1); err != nil {
			t.Errorf("%s: %v", name, errors.Unwrap(err))
			if e, ok := errors.AsType[*Error](err); ok {
				t.Log(e.cause)
			}
		}
	}
}

// The meter follows what the engine does: on scripts without signatures both
// come to the same end, and none of what the engine takes is too much.
func TestX2_MeterFollowsTheEngine(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(192, 193))
	good := 0
	for range 5_000 {
		if checkMeter(t, randomPushes(rng), randomScript(rng)) {
			good++
		}
	}
	if good < 400 {
		t.Fatalf("only %d scripts succeed: the test shows little", good)
	}
	t.Logf("%d scripts succeed", good)
}

// checkMeter compares meter and engine on one pair of scripts, and says whether
// they succeed.
func checkMeter(t *testing.T, unlocking, locking []byte) bool {
	t.Helper()
	m := &meter{limit: maxWork}
	first, pushOnly, _ := m.parse(unlocking)
	second, _, _ := m.parse(locking)
	w := newWay(m, nil)
	err := w.run(first, second)
	if _, tooMuch := errors.AsType[heavy](err); tooMuch {
		return false
	}
	metered := err == nil && pushOnly && len(w.stack) > 0 && truth(w.stack[len(w.stack)-1])
	p, err := Prepare(spending(unlocking))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Execute(0, locking, 1)
	if errors.Is(err, ErrLimit) {
		t.Fatalf("weighing finds more than following\n%x\n%x", unlocking, locking)
	}
	if metered != (err == nil) {
		e, _ := errors.AsType[*Error](err)
		t.Fatalf("meter %t, engine %v (%v)\n%x\n%x", metered, err, e, unlocking, locking)
	}
	return metered
}

func randomPushes(rng *rand.Rand) []byte {
	var s []byte
	for range 2 + rng.IntN(6) {
		if rng.IntN(3) == 0 {
			s = append(s, randomPush(rng)...)
		} else {
			s = append(s, script.Op1+byte(rng.IntN(6)))
		}
	}
	return s
}

func randomPush(rng *rand.Rand) []byte {
	n := rng.IntN(6)
	out := []byte{byte(n)}
	for range n {
		out = append(out, []byte{0, 1, 0x7f, 0x80, 0xff, byte(rng.Uint32())}[rng.IntN(6)])
	}
	return out
}

func randomScript(rng *rand.Rand) []byte {
	var s []byte
	for range 1 + rng.IntN(14) {
		switch rng.IntN(8) {
		case 0:
			s = append(s, script.Op0)
		case 1:
			s = append(s, randomPush(rng)...)
		case 2:
			s = append(s, script.Op1+byte(rng.IntN(5)))
		case 3:
			s = append(s, []byte{script.OpIF, script.OpNOTIF, script.OpELSE, script.OpENDIF, script.OpENDIF, script.OpRETURN, script.OpVERIF}[rng.IntN(7)])
		default:
			op := script.OpNOP + byte(rng.IntN(int(script.OpNOP10-script.OpNOP)+2))
			if op >= script.OpCHECKSIG && op <= script.OpCHECKMULTISIGVERIFY {
				op = script.OpDUP
			}
			s = append(s, op)
		}
	}
	return s
}

func FuzzX2_Meter(f *testing.F) {
	f.Add([]byte{script.Op1}, []byte{script.OpDUP, script.OpCAT})
	for _, s := range []string{"525355", "04aabbccdd"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte{script.OpADD, script.OpADD})
	}
	f.Fuzz(func(t *testing.T, unlocking, locking []byte) {
		for rest := locking; len(rest) > 0; {
			op, _, next, ok := nextOp(rest)
			if !ok || op >= script.OpCHECKSIG && op <= script.OpCHECKMULTISIGVERIFY {
				return
			}
			rest = next
		}
		if len(unlocking) > 0 {
			for rest := unlocking; len(rest) > 0; {
				_, _, next, ok := nextOp(rest)
				if !ok {
					return
				}
				rest = next
			}
		}
		checkMeter(t, unlocking, locking)
	})
}
