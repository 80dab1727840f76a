package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/verify"
)

// maxRoots bounds a file of roots, in bytes: about 900 000 blocks.
const maxRoots = 128 << 20

// chainFlags say which chain proofs are held against.
type chainFlags struct{ headers, checkpoint, roots string }

// check judges the flags without reading anything.
func (f *chainFlags) check() (verify.Checkpoint, error) {
	var c verify.Checkpoint
	switch {
	case f.headers != "" && f.roots != "":
		return c, usagef("--headers and --roots both say what the chain is: give one of them")
	case f.checkpoint == "":
		return c, nil
	case f.headers == "":
		return c, usagef("--checkpoint names the first header of --headers, which is missing")
	}
	height, hash, _ := strings.Cut(f.checkpoint, ":")
	n, err := strconv.ParseUint(height, 10, 32)
	if err != nil || !root32(&c.Hash, hash) {
		return c, usagef("--checkpoint is %q; write HEIGHT:HASH, the hash as 64 hex characters", f.checkpoint)
	}
	c.Height = uint32(n)
	return c, nil
}

// open gives the chain: of a watched file of headers, of a file of roots, or none.
func (f *chainFlags) open(log *slog.Logger) (verify.ChainView, error) {
	c, err := f.check()
	if err != nil {
		return nil, err
	}
	if f.headers != "" {
		return openHeaders(f.headers, verify.FileOptions{Checkpoint: c, Log: log})
	}
	if f.roots == "" {
		return &rootsChain{id: noChain}, nil
	}
	file, err := os.Open(f.roots)
	if err != nil {
		return nil, fmt.Errorf("the file of --roots cannot be opened: %w", err)
	}
	defer file.Close() //nolint:errcheck // read only
	r, err := readRoots(file)
	if err != nil {
		return nil, fmt.Errorf("--roots %s: %w", f.roots, err)
	}
	return r, nil
}

func openHeaders(path string, o verify.FileOptions) (verify.ChainView, error) {
	file, err := verify.OpenHeaderFile(path, o)
	if err != nil {
		return nil, fmt.Errorf("--headers: %w", err)
	}
	return file, nil
}

// noChain is the id of the view without a chain.
const noChain = "none"

// rootsChain is a chain of which only some Merkle roots are known, by local trust:
// for samples. It has no times, so that what is locked by time is not final. It does
// not change.
type rootsChain struct {
	id    string
	roots map[uint32][32]byte // display order
	tip   uint32
}

// readRoots reads lines of {"height":885570,"merkleRoot":"64 hex characters"}.
func readRoots(in io.Reader) (*rootsChain, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxRoots+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it cannot be read: %w", err)
	case len(text) > maxRoots:
		return nil, fmt.Errorf("it has more than %d bytes; use --headers for a whole chain", maxRoots)
	}
	r := &rootsChain{roots: map[uint32][32]byte{}}
	sum := sha256.Sum256(text)
	r.id = "roots:" + hex.EncodeToString(sum[:16])
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var v struct {
			Height     *uint32 `json:"height"`
			MerkleRoot string  `json:"merkleRoot"`
		}
		var root [32]byte
		if err := json.Unmarshal(line, &v); err != nil || v.Height == nil || !root32(&root, v.MerkleRoot) {
			return nil, fmt.Errorf(`line %d is not {"height":885570,"merkleRoot":"64 hex characters"}`, n)
		}
		if other, ok := r.roots[*v.Height]; ok && other != root {
			return nil, fmt.Errorf("line %d names another root for the height %d than a line before it", n, *v.Height)
		}
		r.roots[*v.Height] = root
		r.tip = max(r.tip, *v.Height)
	}
	if len(r.roots) == 0 {
		return nil, errors.New("no root is in it")
	}
	return r, nil
}

// root32 reads 64 hex characters.
func root32(to *[32]byte, text string) bool {
	n, err := hex.Decode(to[:], []byte(text[:min(len(text), 64)]))
	return err == nil && n == 32 && len(text) == 64
}

func (r *rootsChain) ID() string { return r.id }

func (r *rootsChain) Context() reconcile.ChainView {
	return reconcile.ChainView{TipHash: r.id, TipHeight: uint64(r.tip)}
}

func (r *rootsChain) Root(height uint32) (root [32]byte, ok bool) {
	root, ok = r.roots[height]
	return root, ok
}

// Known cannot tell about heights without a line.
func (r *rootsChain) Known(height uint32, root [32]byte) bool {
	own, ok := r.roots[height]
	return !ok || own == root
}

func (r *rootsChain) Current(context.Context) (verify.View, error) { return r, nil }

func (r *rootsChain) Fork(context.Context, string, string) (uint32, error) { return 0, nil }

func (r *rootsChain) Changed() <-chan struct{} { return nil }

func (r *rootsChain) Prefetch(context.Context, verify.View, []reconcile.Claim) error { return nil }
