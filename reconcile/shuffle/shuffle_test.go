package shuffle

import (
	"flag"
	"os/exec"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/spend/spendtest"
)

var (
	first     = flag.Uint64("first", 1, "number of the first random history")
	histories = flag.Int("histories", 24, "how many random histories in all")
	orders    = flag.Int("orders", 5, "how many orders of work of each")
)

// kinds of histories. What depends on when a view was looked at under is not left to chance: with proofs, work is done
// before the view changes, in any order.
var kinds = []struct {
	name    string
	shape   spendtest.Shape
	sound   bool // what would be invalid is valid
	sources bool // batches of several groups, from sources that send several
	patient bool // all work is done before a view changes
}{
	{name: "sources", shape: spendtest.Shape{NoProofs: true, NoLimits: true, Txs: 12}, sound: true, sources: true},
	{name: "limits", shape: spendtest.Shape{NoProofs: true}},
	{name: "proofs", shape: spendtest.Shape{NoLimits: true, Txs: 14}, sound: true, sources: true, patient: true},
	{name: "contradictions", shape: spendtest.Shape{NoLimits: true, Contradictions: true}, sound: true, sources: true, patient: true},
	{name: "invalid", shape: spendtest.Shape{NoLimits: true}, patient: true},
}

// TestR3_Shuffle plays random histories in random orders of work, with restarts. The final state of a history is one.
func TestR3_Shuffle(t *testing.T) {
	t.Parallel()
	for k, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			restarts, dropped, runs := 0, 0, 0
			for n := k; n < *histories; n += len(kinds) {
				h := spendtest.Generate(*first+uint64(n), kind.shape)
				if kind.sound {
					for i := range h.Txs {
						if h.Txs[i].Result == spend.Invalid {
							h.Txs[i].Result = spend.Valid
						}
					}
				}
				// The oracle comes last: what orders disagree about is found by comparing them.
				var one *run
				text := ""
				for order := range *orders {
					p := newRun(t, h, uint64(order), kind.sources)
					p.play(kind.patient)
					if one == nil {
						one, text = p, p.text()
					} else {
						if again := p.text(); again != text {
							p.fatal("order %d does not end as order 0 did:\n%s", order, differing(text, again))
						}
						p.end()
					}
					restarts, dropped, runs = restarts+p.restarts, dropped+p.dropped, runs+1
				}
				one.end()
			}
			t.Logf("%d runs with %d restarts and %d late results", runs, restarts, dropped)
			if runs > 19 && (restarts == 0 || dropped == 0) {
				t.Error("nothing was restarted, or nothing came late")
			}
		})
	}
}

// TestR3_MutantIsCaught compiles the fault in that a transaction's place is decided by when its verification was done, and
// wants the test above to fail.
func TestR3_MutantIsCaught(t *testing.T) {
	t.Parallel()
	if failpoint.MutantCompletion {
		t.Log("this is the mutant")
		return
	}
	out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-tags", "mutant_completion", "-run", "^TestR3_Shuffle$", ".").CombinedOutput()
	if err == nil {
		t.Fatalf("the mutant passes:\n%s", out)
	}
	if !strings.Contains(string(out), "does not end as order 0 did") {
		t.Fatalf("the mutant fails otherwise: %v\n%s", err, out)
	}
}
