package model_test

import (
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	modelSteps   = flag.Int64("modelsteps", 2000, "how many operations TestS1_S2_S4_S7_L1_L3_L4_L5_Model checks at least")
	modelSeed    = flag.Uint64("modelseed", 0, "the seed of its first case; 0 draws one")
	modelWorkers = flag.Int("modelworkers", 3, "how many cases run at a time")
)

const (
	caseSteps = 500 // operations of a case
	rigCases  = 12  // cases of a database
	// shrinkTime bounds the search for a shorter case.
	shrinkTime = time.Minute
)

// op is one operation; what it does is drawn from its seed.
type op struct {
	kind int
	seed uint64
}

// kinds are the operations with their weights.
var kinds = []struct {
	name   string
	weight int
	run    func(*drive) error
}{
	{"append", 24, (*drive).appending},
	{"read", 34, (*drive).reading},
	{"open", 12, (*drive).opening},
	{"open again", 5, (*drive).again},
	{"time", 6, (*drive).passing},
	{"close", 3, (*drive).closing},
	{"prohibit", 3, (*drive).ruling},
	{"compact", 5, (*drive).retaining},
	{"audit", 2, (*drive).auditing},
	{"remove", 1, (*drive).removing},
	{"grant", 1, (*drive).granting},
	{"rotate", 1, (*drive).rotating},
}

// restartOdds: one operation in so many starts a node anew.
const restartOdds = 1500

// draw makes the operations of a case.
func draw(seed uint64) []op {
	rng := mathrand.New(mathrand.NewPCG(seed, 1))
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	ops := make([]op, caseSteps)
	for i := range ops {
		ops[i].seed = rng.Uint64()
		if rng.IntN(restartOdds) == 0 {
			ops[i].kind = len(kinds)
			continue
		}
		at := rng.IntN(total)
		for at >= kinds[ops[i].kind].weight {
			at -= kinds[ops[i].kind].weight
			ops[i].kind++
		}
	}
	return ops
}

// outcome of a case.
type outcome struct {
	steps  int
	failed int // index of the operation that failed
	trace  []string
	err    error
}

// play runs operations as one case.
func (r *rig) play(name string, ops []op) (o outcome) {
	d, err := newDrive(r, name)
	if err != nil {
		return outcome{err: fmt.Errorf("prepare a case: %w", err)}
	}
	o.failed = -1
	defer func() {
		if v := recover(); v != nil {
			o.err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
		o.steps, o.trace = d.steps, d.trace
	}()
	for i, op := range ops {
		o.failed = i
		d.rng = mathrand.New(mathrand.NewPCG(op.seed, 2))
		d.steps++
		run := (*drive).restarting
		if op.kind < len(kinds) {
			run = kinds[op.kind].run
		}
		if o.err = run(d); o.err != nil {
			return o
		}
	}
	d.rng = mathrand.New(mathrand.NewPCG(1, 2))
	o.failed = len(ops)
	if o.err = d.auditing(); o.err == nil {
		o.err = d.retaining()
	}
	return o
}

// shrink looks for fewer operations that fail too: it leaves out ever smaller runs of them.
func (r *rig) shrink(name string, ops []op, failed outcome) ([]op, outcome) {
	deadline := time.Now().Add(shrinkTime)
	ops = ops[:min(failed.failed+1, len(ops))]
	tries := 0
	for size := len(ops) / 2; size > 0; size /= 2 {
		for from := 0; from < len(ops) && time.Now().Before(deadline); {
			shorter := slices.Concat(ops[:from], ops[min(from+size, len(ops)):])
			tries++
			if o := r.play(fmt.Sprint(name, "-", tries), shorter); o.err != nil {
				ops, failed = shorter[:min(o.failed+1, len(shorter))], o
				continue
			}
			from += size
		}
	}
	return ops, failed
}

// TestS1_S2_S4_S7_L1_L3_L4_L5_Model drives the provider at random beside the model. Each operation, with every answer it
// got compared in full, is one step.
func TestS1_S2_S4_S7_L1_L3_L4_L5_Model(t *testing.T) {
	t.Parallel()
	seed := *modelSeed
	if seed == 0 {
		seed = mathrand.Uint64() >> 16
	}
	began := time.Now()
	var steps, cases, next atomic.Int64
	var mu sync.Mutex
	counts := map[string]int{}
	workers := min(*modelWorkers, int(*modelSteps/caseSteps)+1)
	t.Run("workers", func(t *testing.T) {
		for w := range workers {
			t.Run(fmt.Sprint(w), func(t *testing.T) {
				t.Parallel()
				for steps.Load() < *modelSteps && !t.Failed() {
					t.Run("database", func(t *testing.T) {
						r := newRig(t)
						for i := 0; i < rigCases && steps.Load() < *modelSteps; i++ {
							at := seed + uint64(next.Add(1)-1)
							ops := draw(at)
							name := fmt.Sprint("case-", at)
							o := r.play(name, ops)
							steps.Add(int64(o.steps))
							cases.Add(1)
							mu.Lock()
							for _, op := range ops[:max(0, min(o.failed+1, len(ops)))] {
								if op.kind < len(kinds) {
									counts[kinds[op.kind].name]++
								} else {
									counts["restart"]++
								}
							}
							mu.Unlock()
							if o.err == nil {
								continue
							}
							t.Errorf("seed %d fails after %d steps, and after %d in all: %v", at, o.steps, steps.Load(), o.err)
							short, least := r.shrink(name, ops, o)
							t.Fatalf("seed %d again with %d operations (run it with -modelseed=%d -modelsteps=1):\n%s\n%v",
								at, len(short), at, strings.Join(least.trace, "\n"), least.err)
						}
					})
				}
			})
		}
	})
	took := time.Since(began)
	t.Logf("%d steps in %d cases, seeds %d to %d, in %s: %.0f steps a second; %v", steps.Load(), cases.Load(), seed, seed+uint64(next.Load())-1,
		took.Round(time.Millisecond), float64(steps.Load())/took.Seconds(), counts)
}
