package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// env is everything of the process that commands may touch.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	// exit ends the process at once, when an orderly stop is not to be had. Nil: that is waited for, however long.
	exit func(code int)
}

// lookup finds a variable of the environment; an empty one counts as absent.
func (e *env) lookup(name string) string {
	for i := len(e.environ) - 1; i >= 0; i-- {
		if key, value, ok := strings.Cut(e.environ[i], "="); ok && key == name {
			return value
		}
	}
	return ""
}

// Exit codes.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is the caller's fault: the command line has to be changed.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// failure marks what a command itself returned; what else cobra returns is usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// run executes one command line and returns the exit code.
func run(ctx context.Context, e *env, args []string) int {
	root := newRootCommand(e)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitFine
	}
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(e.stderr, "overlayd: interrupted before it was done")
	default:
		for sentence := range strings.Lines(err.Error()) {
			fmt.Fprintln(e.stderr, "overlayd:", strings.TrimRight(sentence, "\n"))
		}
	}
	_, failed := errors.AsType[failure](err)
	if _, usage := errors.AsType[usageError](err); failed && !usage {
		return exitFailed
	}
	fmt.Fprintf(e.stderr, "overlayd: see `%s --help`\n", command.CommandPath())
	return exitUsage
}

func newRootCommand(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:           "overlayd",
		Short:         "Live lookups of overlay outputs (BRC-193) from Postgres",
		Long:          "Overlayd lets clients page a catalogue of outputs, then follow its changes and resume\nwithout losing any. `overlayd dev` shows all of it on this machine.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.AddCommand(
		newDevCommand(e),
		newServeCommand(e),
		newMigrateCommand(e),
		newImportCommand(e),
		newFollowCommand(e),
		newReconcileCommand(e),
		newAdminCommand(e),
		newBenchCommand(e),
		newSampleCommand(e),
		newConfigCommand(e),
		newDoctorCommand(e),
		newVersionCommand(e),
	)
	markFailures(root)
	return root
}

// markFailures wraps every RunE of the tree, so that run can tell a command that
// failed from one that was never reached.
func markFailures(c *cobra.Command) {
	if inner := c.RunE; inner != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			if err := inner(c, args); err != nil {
				return failure{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markFailures(sub)
	}
}
