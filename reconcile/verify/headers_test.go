package verify_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

func TestY8_HeadersAreChecked(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	b := c.Mine()
	c.Fork(b.Height - 1)
	remake := func(change func(h []byte)) []byte {
		h := bytes.Clone(b.Header)
		change(h)
		for nonce := uint32(0); ; nonce++ {
			binary.LittleEndian.PutUint32(h[76:], nonce)
			if id := doubleHash(h); id[31] < 0x7f {
				return h
			}
		}
	}
	for name, raw := range map[string][]byte{
		"short":               b.Header[:79],
		"long":                append(bytes.Clone(b.Header), 0),
		"of nobody":           remake(func(h []byte) { h[4] ^= 1 }),
		"without work":        func() []byte { h := bytes.Clone(b.Header); h[75] = 0x1d; return h }(),
		"a negative target":   remake(func(h []byte) { binary.LittleEndian.PutUint32(h[72:], 0x20ffffff) }),
		"no target":           remake(func(h []byte) { binary.LittleEndian.PutUint32(h[72:], 0x20000000) }),
		"an oversized target": remake(func(h []byte) { binary.LittleEndian.PutUint32(h[72:], 0x21010000) }),
		"not after the median": remake(func(h []byte) {
			binary.LittleEndian.PutUint32(h[68:], uint32(c.View(c.Tip()).Context().MedianTimePast))
		}),
		"long before the others": remake(func(h []byte) { binary.LittleEndian.PutUint32(h[68:], 0) }),
	} {
		before, height := c.Headers.Tip()
		if err := c.Headers.Add(raw); !errors.Is(err, verify.ErrHeader) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := c.Headers.Tip(); after != before || height != b.Height {
			t.Errorf("%s moved the tip", name)
		}
	}
	later := remake(func(h []byte) {
		binary.LittleEndian.PutUint32(h[68:], uint32(c.View(c.Tip()).Context().MedianTimePast)+1)
	})
	if err := c.Headers.Add(later); err != nil {
		t.Errorf("a second after the median: %v", err)
	}
	if err := c.Headers.Add(b.Header, later); err != nil {
		t.Errorf("known ones again: %v", err)
	}
	if _, err := verify.NewHeaders(nil); !errors.Is(err, verify.ErrHeader) {
		t.Errorf("no first header: %v", err)
	}
}

func TestR9_ViewsOfATree(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	base := c.Tip()
	a1 := c.Mine()
	a2 := c.Mine()
	c.Fork(base.Height)
	b1 := c.Mine()
	tip, _ := c.Headers.Tip()
	if tip != a2.Hash {
		t.Error("less work is selected")
	}
	b2 := c.Mine()
	if tip, _ := c.Headers.Tip(); tip != a2.Hash {
		t.Error("of equals, the second is selected")
	}
	b3 := c.Mine()
	if tip, height := c.Headers.Tip(); tip != b3.Hash || height != b3.Height {
		t.Error("the most work is not selected")
	}
	<-c.Headers.Changed()

	a, b := c.View(a2), c.View(b3)
	for at := b3; ; at = c.Fork(at.Height - 1) {
		if root, ok := b.Root(at.Height); !ok || root != at.Root {
			t.Fatalf("root at %d", at.Height)
		}
		if at.Height == 0 {
			break
		}
		c.Continue(at)
	}
	if _, ok := a.Root(a2.Height + 1); ok {
		t.Error("a root above the tip")
	}
	if !a.Known(b1.Height, b1.Root) || !b.Known(a1.Height, a1.Root) || b.Known(a1.Height, a2.Root) || !b.Known(b3.Height+1, a2.Root) {
		t.Error("known roots")
	}
	for _, row := range []struct {
		x, y *verifytest.Block
		want uint32
	}{{a2, b3, base.Height}, {b3, a2, base.Height}, {b2, b3, b2.Height}, {base, b3, base.Height}, {c.Genesis, a2, 0}, {a2, a2, a2.Height}} {
		got, err := c.Headers.Fork(t.Context(), hex.EncodeToString(row.x.Hash[:]), hex.EncodeToString(row.y.Hash[:]))
		if err != nil || got != row.want {
			t.Errorf("fork of %d and %d: %d, %v", row.x.Height, row.y.Height, got, err)
		}
	}
	if got, err := c.Headers.Fork(t.Context(), "what", b.ID()); err != nil || got != 0 {
		t.Errorf("fork of an unknown view: %d, %v", got, err)
	}
	if err := c.Headers.Select(a1.Hash); err != nil {
		t.Fatal(err)
	}
	v, err := c.Headers.Current(t.Context())
	if err != nil || v.ID() != hex.EncodeToString(a1.Hash[:]) || v.Context().TipHeight != uint64(a1.Height) {
		t.Errorf("selected: %v, %v", v, err)
	}
	if err := c.Headers.Select([32]byte{1}); !errors.Is(err, verify.ErrHeader) {
		t.Errorf("an unknown block is selected: %v", err)
	}
	c.Continue(b3)
	c.Mine()
	if tip, _ := c.Headers.Tip(); tip != a1.Hash {
		t.Error("what was selected does not stay")
	}
	if err := c.Headers.Select([32]byte{}); err != nil {
		t.Fatal(err)
	}
	if _, height := c.Headers.Tip(); height != b3.Height+1 {
		t.Error("the most work is not selected again")
	}
	// The median is that of eleven times, and of fewer near the beginning.
	times := func(b *verifytest.Block) uint64 { return uint64(binary.LittleEndian.Uint32(b.Header[68:])) }
	if got, want := c.View(c.Genesis).Context().MedianTimePast, times(c.Genesis); got != want {
		t.Errorf("median of one: %d, not %d", got, want)
	}
	if got, want := b.Context().MedianTimePast, times(b3)-5*600; got != want {
		t.Errorf("median of eleven: %d, not %d", got, want)
	}
}

// file writes headers as another program would.
type file struct {
	t    *testing.T
	path string
	tick int
}

func newFile(t *testing.T, b []byte) *file {
	f := &file{t: t, path: filepath.Join(t.TempDir(), "headers.bin")}
	f.write(b)
	return f
}

// write replaces the content; times differ, as they would after a while.
func (f *file) write(b []byte) {
	f.t.Helper()
	if err := os.WriteFile(f.path, b, 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.tick++
	at := time.Unix(1_700_000_000+int64(f.tick), 0)
	if err := os.Chtimes(f.path, at, at); err != nil {
		f.t.Fatal(err)
	}
}

func TestR9_HeaderFileReorg(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	base := c.Tip()
	a := c.Mine()
	a2 := c.Mine()
	c.Fork(base.Height)
	b := c.Mine()
	f := newFile(t, a.Bytes())
	h, err := verify.OpenHeaderFile(f.path, verify.FileOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	current := func() verify.View {
		t.Helper()
		v, err := h.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	is := func(what string, b *verifytest.Block) {
		t.Helper()
		if v := current(); v.ID() != hex.EncodeToString(b.Hash[:]) || v.Context() != c.View(b).Context() {
			t.Fatalf("%s: the view is %s at %d", what, v.ID(), v.Context().TipHeight)
		}
	}
	drain := func() bool {
		select {
		case <-h.Changed():
			return true
		default:
			return false
		}
	}
	is("opened", a)
	drain()
	is("unchanged", a)
	if drain() {
		t.Error("a change without one")
	}
	f.write(append(a2.Bytes(), a.Header[:40]...))
	is("grown, and half a header", a2)
	if !drain() {
		t.Error("growth is not told")
	}
	first := current()
	f.write(b.Bytes())
	is("its end is rewritten, and shorter", b)
	if fork, err := h.Fork(t.Context(), first.ID(), current().ID()); err != nil || fork != base.Height {
		t.Errorf("fork at %d, %v", fork, err)
	}
	if !current().Known(a2.Height, a2.Root) || !current().Known(a.Height, a.Root) {
		t.Error("the branch that was written over is forgotten")
	}
	if root, ok := first.Root(a2.Height); !ok || root != a2.Root {
		t.Error("a view has changed")
	}
	// Cut, then written on: the cut is not believed at once.
	f.write(base.Bytes())
	is("cut", b)
	f.write(a2.Bytes())
	is("and written on", a2)
	f.write(a.Bytes())
	is("cut", a2)
	is("and so it stays", a)
	// What cannot be believed leaves the last good chain in force.
	bad := a2.Bytes()
	bad[len(bad)-70] ^= 1
	f.write(bad)
	is("a broken link", a)
	f.write(nil)
	is("emptied", a)
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	is("removed", a)
	f.write(a2.Bytes()[80:])
	is("shifted", a)
	f.write(a2.Bytes())
	is("repaired", a2)
}

func TestR9_HeaderFileBeginsSomewhere(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	tx := pay(c.Fund.Out(0))
	b := c.Mine(tx)
	all := b.Bytes()
	at := uint32(40)
	first := c.Fork(at)
	tail := newFile(t, all[80*at:])
	if _, err := verify.OpenHeaderFile(tail.path, verify.FileOptions{}); !errors.Is(err, verify.ErrHeader) {
		t.Errorf("the middle of a chain without a checkpoint: %v", err)
	}
	if _, err := verify.OpenHeaderFile(tail.path, verify.FileOptions{Checkpoint: verify.Checkpoint{Height: at, Hash: b.Hash}}); !errors.Is(err, verify.ErrHeader) {
		t.Errorf("another checkpoint: %v", err)
	}
	for name, content := range map[string][]byte{"empty": nil, "half a header": all[:40], "broken": append(bytes.Clone(all[:800]), all[880:]...)} {
		if _, err := verify.OpenHeaderFile(newFile(t, content).path, verify.FileOptions{}); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := verify.OpenHeaderFile(filepath.Join(t.TempDir(), "none"), verify.FileOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	h, err := verify.OpenHeaderFile(tail.path, verify.FileOptions{Checkpoint: verify.Checkpoint{Height: at, Hash: first.Hash}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.Current(t.Context())
	if err != nil || v.Context() != c.View(b).Context() {
		t.Fatalf("%+v, %v", v, err)
	}
	if p := verify.Plan(c.BEEF(tx, verifytest.Evidence{}), tx.ID, v, reconcile.Budget{}); len(p.Claims) != 1 || !p.Claims[0].Holds {
		t.Errorf("%+v", p)
	}
	// What lies before the checkpoint can be neither shown nor called forged.
	old := c.Genesis.Txs[0]
	p := verify.Plan(c.BEEF(old, verifytest.Evidence{}), old.ID, v, reconcile.Budget{})
	if p.Fault.Status != "" || len(p.Claims) != 1 || p.Claims[0].Holds || !p.Claims[0].Known {
		t.Errorf("before the checkpoint: %+v", p)
	}
}

// The longest jumps and the shortest lead to the same block.
func TestR9_LongChains(t *testing.T) {
	t.Parallel()
	c := verifytest.NewChain(t)
	blocks := []*verifytest.Block{c.Tip()}
	for range 1500 {
		blocks = append(blocks, c.Mine())
	}
	v := c.View(c.Tip())
	for _, b := range blocks {
		if root, ok := v.Root(b.Height); !ok || root != b.Root {
			t.Fatalf("root at %d", b.Height)
		}
	}
	f := newFile(t, c.Tip().Bytes())
	h, err := verify.OpenHeaderFile(f.path, verify.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if hash, _ := h.Tip(); hash != c.Tip().Hash {
		t.Error("a long file ends elsewhere")
	}
	if !slices.Equal(c.Tip().Bytes()[:80], c.Genesis.Header) {
		t.Error("the bytes of a chain begin elsewhere")
	}
}
