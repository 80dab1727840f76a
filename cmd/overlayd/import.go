package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// shownRefusals is how many refused lines are told one by one.
const shownRefusals = 100

type importOptions struct {
	operatorOptions
	feed     string
	retryFor time.Duration
}

func newImportCommand(e *env) *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Append groups from NDJSON through the operator API",
		Long: "Import sends the groups of a file (- is stdin), one JSON object a line, in order. Every group carries its\n" +
			"key, so running the same file again appends nothing twice: an import that was interrupted is resumed by\n" +
			"starting it again. A lost connection is resumed by itself. Refused lines are told on stderr and passed\n" +
			"over. The summary is one JSON object on stdout; the exit code is 0 when every line is in the feed.\n\n" +
			"Without --operator and --token those of `overlayd dev` in --data are used.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return importFile(c.Context(), e, &o, args[0]) },
	}
	o.register(c, false)
	c.Flags().StringVar(&o.feed, "feed", devFeed, "`name` of the feed")
	c.Flags().DurationVar(&o.retryFor, "retry-for", time.Minute, "give up after so `long` without an answer")
	return c
}

// importSummary is what stdout gets.
type importSummary struct {
	Groups   int64 `json:"groups"`   // answered
	Appended int64 `json:"appended"` // new in the feed
	Replayed int64 `json:"replayed"` // were there already
	Refused  int64 `json:"refused"`  // at fault
}

func importFile(ctx context.Context, e *env, o *importOptions, name string) (err error) {
	if err := o.resolve(e); err != nil {
		return err
	}
	input, size := e.stdin, int64(-1)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("the file cannot be opened: %w; correct its name", err)
		}
		defer f.Close() //nolint:errcheck // read only
		input = f
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}

	bar := newByteProgress(e.stderr, size, "importing")
	var sum importSummary
	up := &uploader{
		url: o.operator + "/operator/v1/feeds/" + url.PathEscape(o.feed) + "/import", token: o.token, retryFor: o.retryFor,
		answered: func(a answered) {
			sum.Groups++
			switch {
			case a.refusal != "":
				sum.Refused++
				if sum.Refused <= shownRefusals {
					fmt.Fprintf(e.stderr, "line %d: %s\n", a.line, a.refusal)
				}
			case a.replayed:
				sum.Replayed++
			default:
				sum.Appended++
			}
			bar.add(a.size)
		},
		retrying: func(err error, wait time.Duration) {
			fmt.Fprintf(e.stderr, "overlayd: %v; trying again in %s\n", err, wait)
		},
	}
	err = up.run(ctx, input)
	bar.finish()
	if sum.Refused > shownRefusals {
		fmt.Fprintf(e.stderr, "and %d more refused lines\n", sum.Refused-shownRefusals)
	}
	fmt.Fprintf(e.stderr, "imported %d groups in %.1f s, %.0f groups/s\n", sum.Groups, time.Since(bar.start).Seconds(), bar.rate())
	if jerr := json.NewEncoder(e.stdout).Encode(sum); jerr != nil {
		err = errors.Join(err, jerr)
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d groups; run the same command again to go on", sum.Groups)
	case err != nil:
		return err
	case sum.Refused > 0:
		return fmt.Errorf("%d of %d lines were refused; correct them and run the same command again", sum.Refused, sum.Groups)
	}
	return nil
}
