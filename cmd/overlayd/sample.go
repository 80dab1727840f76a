package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/sample"
)

// sampleSeed is the seed of generated samples that name none.
const sampleSeed = 1

func newSampleCommand(e *env) *cobra.Command {
	var seed, now uint64
	var puts bool
	c := &cobra.Command{
		Use:   "sample N|small",
		Short: "Write sample groups as NDJSON",
		Long: "Sample writes groups, one a line, as `overlayd import` takes them: `small` is a handful of real mainnet\n" +
			"transactions, a number is that many generated groups on the chain " + sample.SyntheticNetwork + ". The same options\n" +
			"give the same bytes.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] == sampleSmall {
				return writeSample(e.stdout, func(w io.Writer) error { return sample.Small(c.Context(), w) })
			}
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 0 {
				return usagef("the sample %q is neither small nor a number of groups", args[0])
			}
			return writeSample(e.stdout, func(w io.Writer) error {
				return sample.Generate(c.Context(), w, sample.Options{Seed: seed, Groups: n, Now: now, PutsOnly: puts})
			})
		},
	}
	c.Flags().Uint64Var(&seed, "seed", sampleSeed, "tells generated samples apart")
	c.Flags().Uint64Var(&now, "now", 0, "Unix `seconds` that expiries are counted from; 0 means no row expires")
	c.Flags().BoolVar(&puts, "puts-only", false, "every group is one new row")
	return c
}

func writeSample(w io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<20)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing the sample: %w", err)
	}
	return nil
}

// The samples of dev that are no number.
const (
	sampleNone  = "none"
	sampleSmall = "small"
)

// generateSample writes the sample of dev named by name, with expiries counted
// from now, and gives the headers of its chain, when it has any, to onBlock.
func generateSample(ctx context.Context, w io.Writer, name string, now uint64, onBlock func(uint32, sample.Header)) error {
	switch name {
	case sampleNone:
		return nil
	case sampleSmall:
		return sample.Small(ctx, w)
	}
	n, err := strconv.Atoi(name)
	if err != nil {
		return fmt.Errorf("the sample %q is neither none, small nor a number of groups", name)
	}
	return sample.Generate(ctx, w, sample.Options{Seed: sampleSeed, Groups: n, Now: now, OnBlock: onBlock})
}
