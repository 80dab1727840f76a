package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// The file that a sample's proofs lead to is made where it is gone, and left alone where it is.
func TestR9_DevKeepsTheChainOfItsSample(t *testing.T) {
	t.Parallel()
	for _, what := range []string{sampleSmall, "200"} {
		f := &folder{dir: t.TempDir(), state: devState{Sample: what, SampleNow: 1_700_000_000}}
		if err := f.keepChain(t.Context()); err != nil {
			t.Fatal(err)
		}
		mine, other, flags := rootsName, headersName, chainFlags{roots: f.path(rootsName)}
		if what != sampleSmall {
			mine, other, flags = headersName, rootsName, chainFlags{headers: f.path(headersName)}
		}
		chain, err := flags.open(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		view, err := chain.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		height := view.Context().TipHeight
		if what == sampleSmall {
			if height != 905906 {
				t.Errorf("%s: the tip is %d", what, height)
			}
		} else {
			n, err := strconv.Atoi(what)
			if err != nil {
				t.Fatal(err)
			}
			h, err := sample.Options{Seed: sampleSeed, Groups: n, Now: f.state.SampleNow}.Headers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			root, ok := h.MerkleRoot(uint32(height))
			have, _ := view.Root(uint32(height))
			_, more := h.MerkleRoot(uint32(height) + 1)
			if !ok || more || root != have {
				t.Errorf("%s: at the tip %d stands %x, not %x", what, height, have, root)
			}
			if _, err := verify.OpenHeaderFile(f.path(mine), verify.FileOptions{Checkpoint: verify.Checkpoint{Hash: sample.SyntheticGenesis}}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := os.Stat(f.path(other)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is there too: %v", what, other, err)
		}
		if err := os.WriteFile(f.path(mine), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.keepChain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(f.path(mine)); err != nil || string(text) != "mine" {
			t.Errorf("%s: the file was written over: %q, %v", what, text, err)
		}
	}
}
