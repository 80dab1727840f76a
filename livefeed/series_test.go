package livefeed

import (
	"context"
	"testing"
)

// TestL11_ASeriesKeepsItsOrderOverAnOutage: what comes after a group that could not be appended is not appended either, so that
// sending the series again from there keeps its order.
func TestL11_ASeriesKeepsItsOrderOverAnOutage(t *testing.T) {
	t.Parallel()
	_, _, f := startFeed(t)
	lost := &Pending{feed: f, done: make(chan struct{})}
	lost.finish(Receipt{}, fault(Unavailable, "an outage"))
	taken := &Pending{feed: f, done: make(chan struct{})}
	taken.state.Store(pendingWithdrawn)
	bad := f.Submit(t.Context(), &Proposal{Key: "of-no-shape-at-all-0", Err: fault(Invalid, "bad")})

	for name, before := range map[string]*Pending{"lost": lost, "withdrawn": taken} {
		last := before
		for i := range 3 {
			last = f.SubmitAfter(t.Context(), group(name+string(rune('0'+i)), put(i)), last)
		}
		if _, err := last.Wait(t.Context()); CodeOf(err) != Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c := f.cut(t); c.W != 0 {
		t.Fatalf("%d groups were appended", c.W)
	}
	// A group refused for what it is stops nothing.
	n := f.SubmitAfter(context.Background(), group("next", put(1)), bad)
	if r, err := n.Wait(t.Context()); err != nil || r.Sequence != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if n.after != nil {
		t.Error("a finished proposal keeps the one before it in memory")
	}
}
