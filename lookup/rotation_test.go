package lookup

import (
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// TestH10_ManifestsRotateWithoutAGap walks two nodes through three manifests: at every second at least one is good for a new
// Open, both nodes serve the same one, and a session goes on under the one it was opened with.
func TestH10_ManifestsRotateWithoutAGap(t *testing.T) {
	t.Parallel()
	const life = 600
	n, m := twoNodes(t, setup{manifest: life})
	n.stock(3)
	under := func(on *node, digest string) reply {
		return on.request(openPath, ask{}.body(), capabilityHeader(digest))
	}
	old := n.manifest()
	first := capabilityHeader(old.Digest())
	b := under(n, old.Digest()).batch(t)
	n.advance(old.IssuedAt + life/2 - 1)
	if got := m.capability(); got != old.Digest() {
		t.Fatal("a manifest is renewed before half its life")
	}
	for range 3 {
		n.advance(old.IssuedAt + life/2)
		fresh := m.manifest()
		if fresh.Digest() == old.Digest() || fresh.ExpiresAt != fresh.IssuedAt+life || fresh.IssuedAt < old.IssuedAt+life/2 {
			t.Fatalf("%d..%d after %d..%d", fresh.IssuedAt, fresh.ExpiresAt, old.IssuedAt, old.ExpiresAt)
		}
		if got := n.capability(); got != fresh.Digest() {
			t.Fatal("two nodes serve different manifests")
		}
		n.advance(old.ExpiresAt - 1)
		for _, on := range []*node{n, m} {
			under(on, old.Digest()).batch(t)
			under(on, fresh.Digest()).batch(t)
		}
		n.advance(old.ExpiresAt)
		for _, on := range []*node{n, m} {
			under(on, old.Digest()).refused(t, wire.Expired)
			under(on, fresh.Digest()).batch(t)
			on.request(readPath, readBody(b.Session, b.Cursor, wide), first).batch(t)
		}
		old = fresh
	}
}
