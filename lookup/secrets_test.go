package lookup

import (
	"bytes"
	"testing"
	"time"
)

// TestA1_SecretsRotateWithoutHarm walks a rotation on two nodes: a new secret is accepted before it seals, an old one after it
// no longer does, and no session of either ends.
func TestA1_SecretsRotateWithoutHarm(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := members(t, setup{identity: key})
	m := members(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	refresh := func() {
		t.Helper()
		for _, node := range []*node{n, m} {
			if err := node.provider.refreshRing(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := n.provider.ring.Load(), m.provider.ring.Load(); len(a.Secrets) != len(b.Secrets) || !bytes.Equal(a.Secrets[0], b.Secrets[0]) {
			t.Fatal("two nodes hold different rings")
		}
	}
	age := func(by time.Duration) {
		t.Helper()
		if _, err := n.pool.Exec(t.Context(), `update session_secret set created_at = created_at - $1`, int64(by.Seconds())); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	first := n.provider.ring.Load().Secrets
	if len(first) != 1 {
		t.Fatalf("%d secrets at first", len(first))
	}
	early := n.person(1)
	b := early.open("ls_anyone", ask{})

	age(secretRotates)
	refresh()
	ring := n.provider.ring.Load().Secrets
	if len(ring) != 2 || !bytes.Equal(ring[0], first[0]) {
		t.Fatal("a new secret is not there, or seals before every node must have it")
	}
	middle := m.person(2)
	age(secretRipens)
	refresh()
	ripe := n.provider.ring.Load().Secrets
	if len(ripe) != 2 || !bytes.Equal(ripe[0], ring[1]) || !bytes.Equal(ripe[1], first[0]) {
		t.Fatal("a ripe secret does not seal, or the old one is not accepted any more")
	}
	late := m.person(3)
	for _, p := range []*person{early, middle, late} {
		p.open("ls_anyone", ask{})
	}
	early.read(b, wide)
	// The old one goes when no session can be left that it sealed.
	age(secretRotates + secretRipens + 48*time.Hour)
	refresh()
	for _, secret := range n.provider.ring.Load().Secrets {
		if bytes.Equal(secret, first[0]) {
			t.Fatal("an old secret stays for ever")
		}
	}
}
