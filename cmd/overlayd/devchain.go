package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/overlayd/overlayd/internal/sample"
)

// Where the Merkle paths of dev's sample lead to, in files of its folder.
const (
	rootsName   = "roots.ndjson" // of the small sample
	headersName = "headers.bin"  // of a generated one
)

// generate writes the sample, then the file that its proofs lead to.
func (f *folder) generate(ctx context.Context, w io.Writer) error {
	var headers bytes.Buffer
	onBlock := func(_ uint32, h sample.Header) { headers.Write(h[:]) }
	if err := generateSample(ctx, w, f.state.Sample, f.state.SampleNow, onBlock); err != nil {
		return err
	}
	name, text := headersName, &headers
	if f.state.Sample == sampleSmall {
		name, text = rootsName, &bytes.Buffer{}
		if err := sample.SmallRoots(text); err != nil {
			return err
		}
	}
	if err := writeFile(f.path(name), text.Bytes()); err != nil {
		return fmt.Errorf("the chain of the sample: %w", err)
	}
	return nil
}

// keepChain writes the file anew where it is gone, as in a folder of a release
// that did not make it.
func (f *folder) keepChain(ctx context.Context) error {
	name := headersName
	if f.state.Sample == sampleSmall {
		name = rootsName
	}
	if _, err := os.Stat(f.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.generate(ctx, io.Discard)
}
