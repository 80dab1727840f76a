package livefeed

import (
	"bytes"
	"crypto/sha256"
	"testing"
)

// TestF21_EvidenceIsShownWhenItIsStored: to whoever asked for it, while somebody waits, and before that one is woken. What is not
// committed is not shown.
func TestF21_EvidenceIsShownWhenItIsStored(t *testing.T) {
	t.Parallel()
	_, n, f := startFeed(t)
	type shown struct {
		sum    [32]byte
		stored bool
		woken  bool
	}
	var w *Waiter
	all := make(chan shown, 8)
	n.OnEvidence(func(sum [32]byte, data []byte) {
		is := shown{sum: sum, woken: len(w.C()) > 0}
		b, err := f.Blobs(t.Context(), n.pool, [][32]byte{sum})
		is.stored = err == nil && bytes.Equal(b[sum], data) && sum == sha256.Sum256(data)
		all <- is
	})
	f.mustAppend(t, group("nobody-waits", put(1, attr("a", "b"))))
	if len(all) != 0 {
		t.Error("shown to nobody")
	}
	w = f.Watch(AttributeSelector("a", "b"))
	defer w.Close()
	edit := put(2, attr("a", "b"))
	f.mustAppend(t, group("somebody-waits", edit))
	await(t, "the wake-up", w.C())
	if len(all) != 1 {
		t.Fatalf("shown %d times", len(all))
	}
	if is := <-all; is.sum != sha256.Sum256(edit.BEEF) || !is.stored || is.woken {
		t.Errorf("%+v", is)
	}
	f.refuse(t, Conflict, group("somebody-waits", put(3, attr("a", "b"))))
	if len(all) != 0 {
		t.Error("what was refused is shown")
	}
}
