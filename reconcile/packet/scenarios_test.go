package packet_test

import (
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/reconcile/verify"
)

// TestR2_R3_R4_R5_R6_R7_R11_PublishedScenarios plays every published scenario on every store.
func TestR2_R3_R4_R5_R6_R7_R11_PublishedScenarios(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, keep func(t *testing.T) keeper) {
		w, _, ok := publishedWorld(t)
		if !ok {
			return
		}
		scenarios := publishedScenarios(t)
		var checkpoints, restarts atomic.Int64
		t.Run("scenarios", func(t *testing.T) {
			for _, s := range scenarios {
				t.Run(s.Name, func(t *testing.T) {
					t.Parallel()
					p := playScenario(t, w, s, keep(t), false, verify.New(verify.Config{}))
					checkpoints.Add(int64(p.checkpoints))
					restarts.Add(int64(p.restarts))
				})
			}
		})
		if len(scenarios) != 34 || checkpoints.Load() != 56 || restarts.Load() != 25 {
			t.Errorf("%d scenarios, %d checkpoints, %d restarts", len(scenarios), checkpoints.Load(), restarts.Load())
		}
		t.Logf("published packet: %d scenarios, %d checkpoints, %d restarts", len(scenarios), checkpoints.Load(), restarts.Load())
	})
}

// once remembers what the scripts of a transaction came to, for tests that are about something else.
var once = verify.New(verify.Config{})

// TestV2_RestartAfterEveryStep plays the scenarios with a restart after each step of them.
func TestV2_RestartAfterEveryStep(t *testing.T) {
	t.Parallel()
	w, _, ok := publishedWorld(t)
	if !ok {
		return
	}
	for _, s := range publishedScenarios(t) {
		var steps []step
		for _, st := range s.Steps {
			if steps = append(steps, st); st.Op != "restart" {
				steps = append(steps, step{Op: "restart"})
			}
		}
		s.Steps = steps
		t.Run(s.Name, func(t *testing.T) { playScenario(t, w, s, &crashing{keeper: inMemory{}}, false, once) })
	}
}

// TestV3_ReversedCompletion plays the scenarios with the results of each step in the opposite order.
func TestV3_ReversedCompletion(t *testing.T) {
	t.Parallel()
	w, _, ok := publishedWorld(t)
	if !ok {
		return
	}
	for _, s := range publishedScenarios(t) {
		t.Run(s.Name, func(t *testing.T) { playScenario(t, w, s, inMemory{}, true, once) })
	}
}

func publishedScenarios(t *testing.T) []scenario {
	t.Helper()
	var scenarios []scenario
	published(t, "reconciliation-traces.json", &scenarios)
	return scenarios
}

func playScenario(t *testing.T, w *world, s scenario, k keeper, reversed bool, v *verify.Verifier) *player {
	t.Helper()
	mine := *w
	mine.t = t
	p := newPlayer(t, &mine, k, s.NonFinal == nil || *s.NonFinal)
	defer p.close()
	p.watch, p.reversed, p.verifier = s.Watch, reversed, v
	p.play(s.Steps)
	p.audit()
	return p
}
