package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/overlayd/overlayd/reconcile"
)

// FileOptions configure [OpenHeaderFile].
type FileOptions struct {
	// Checkpoint is the first header of the file. Zero: the file begins with the
	// first block of its chain, which is trusted as it stands.
	Checkpoint Checkpoint
	// Every is how often Watch looks at the file. Zero means 1 s.
	Every time.Duration
	// Log takes why a changed file is not believed. Zero: slog.Default.
	Log *slog.Logger
}

// Checkpoint is a block that is trusted to be on the chain. Hash is in display
// order.
type Checkpoint struct {
	Height uint32
	Hash   [32]byte
}

// HeaderFile is the chain in a file of consecutive 80-byte headers that another
// program writes. What the file holds is the selected chain: appended headers
// extend it, and a rewritten end is a reorganisation. Blocks that are written over
// stay known. It is safe for concurrent use.
type HeaderFile struct {
	path string
	o    FileOptions

	mu    sync.Mutex
	tree  *Headers
	hash  [][32]byte // of the file's headers as they were read last
	size  int64
	mod   time.Time
	short int64 // length of a file that only lost headers, seen once; -1: none
}

// OpenHeaderFile reads the file. An unreadable, empty or broken one is an error;
// later trouble with it is logged, and the last good chain stays in force.
func OpenHeaderFile(path string, o FileOptions) (*HeaderFile, error) {
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	f := &HeaderFile{path: path, o: o, short: -1}
	if err := f.look(true); err != nil {
		return nil, fmt.Errorf("verify: header file %s: %w", path, err)
	}
	return f, nil
}

// look reads what has changed.
func (f *HeaderFile) look(first bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	info, err := file.Stat()
	if err != nil {
		return err
	}
	n := info.Size() / headerSize // a header that is being written does not count
	if !first && info.Size() == f.size && info.ModTime().Equal(f.mod) && f.short < 0 {
		return nil
	}
	common, tail, err := f.tail(file, n)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("no header in it")
	}
	// A file that only got shorter is most likely about to be written on: believe
	// it when it is found like this again.
	if len(tail) == 0 && n < int64(len(f.hash)) && f.short != n {
		f.short = n
		return nil
	}
	f.short, f.size, f.mod = -1, info.Size(), info.ModTime()
	if first {
		if f.tree, err = newHeaders(tail[0], f.o.Checkpoint.Height); err != nil {
			return err
		}
		hash, _ := f.tree.Tip()
		switch zero := ([32]byte{}); {
		case f.o.Checkpoint.Hash != zero && hash != f.o.Checkpoint.Hash:
			return fmt.Errorf("%w: the file begins with %x, not with the checkpoint", ErrHeader, hash)
		case f.o.Checkpoint == (Checkpoint{}) && [32]byte(tail[0][4:36]) != zero:
			return fmt.Errorf("%w: the file begins in the middle of a chain: give a checkpoint", ErrHeader)
		}
	} else if common == 0 {
		return fmt.Errorf("%w: the file is another chain now", ErrHeader)
	}
	if err := f.tree.Add(tail...); err != nil {
		return err
	}
	f.hash = f.hash[:common]
	for _, raw := range tail {
		h, _, err := readHeader(raw)
		if err != nil {
			return err
		}
		f.hash = append(f.hash, h.hash)
	}
	return f.tree.Select(f.hash[len(f.hash)-1])
}

// tail reads the headers that are not those of last time. A header names the one
// before it, so the first equal one from the end vouches for all before it.
func (f *HeaderFile) tail(file *os.File, n int64) (common int64, tail [][]byte, err error) {
	const block = 4096
	for end := n; end > 0; {
		from := max(0, end-block)
		buf := make([]byte, (end-from)*headerSize)
		if _, err := io.ReadFull(io.NewSectionReader(file, from*headerSize, int64(len(buf))), buf); err != nil {
			return 0, nil, err
		}
		var part [][]byte
		for i := end - 1; i >= from; i-- {
			raw := buf[(i-from)*headerSize:][:headerSize:headerSize]
			if i < int64(len(f.hash)) {
				h, _, err := readHeader(raw)
				if err == nil && h.hash == f.hash[i] {
					return i + 1, reverse(append(tail, part...)), nil
				}
			}
			part = append(part, raw)
		}
		tail, end = append(tail, part...), from
	}
	return 0, reverse(tail), nil
}

func reverse(b [][]byte) [][]byte {
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return b
}

// Watch looks at the file until ctx ends.
func (f *HeaderFile) Watch(ctx context.Context) error {
	tick := time.NewTicker(f.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.refresh()
		}
	}
}

func (f *HeaderFile) refresh() {
	if err := f.look(false); err != nil {
		f.o.Log.Warn("header file not believed: the last good chain stays in force", "file", f.path, "error", err)
	}
}

// Current looks at the file and gives its view.
func (f *HeaderFile) Current(ctx context.Context) (View, error) {
	f.refresh()
	return f.tree.Current(ctx)
}

// Changed is a hint that the file's chain is another one.
func (f *HeaderFile) Changed() <-chan struct{} { return f.tree.Changed() }

// Fork is the height of the last common block of two views.
func (f *HeaderFile) Fork(ctx context.Context, old, new string) (uint32, error) {
	return f.tree.Fork(ctx, old, new)
}

// Prefetch has nothing to do: all is here.
func (f *HeaderFile) Prefetch(context.Context, View, []reconcile.Claim) error { return nil }

// Tip is the hash (display order) and the height of the last header.
func (f *HeaderFile) Tip() (hash [32]byte, height uint32) { return f.tree.Tip() }

var (
	_ ChainView = (*HeaderFile)(nil)
	_ Watcher   = (*HeaderFile)(nil)
)
