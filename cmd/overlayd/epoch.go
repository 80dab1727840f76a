package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func newEpochCommand(e *env, o *operatorOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "epoch",
		Short: "Turn the epoch of a feed: the life of its continuity",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return usagef("admin epoch needs a command: rotate") },
	}
	c.AddCommand(newRotateCommand(e, o))
	return c
}

const rotateLong = `Rotate begins a new epoch of a feed, once for each key: the same command with the same
--key changes nothing more and gets the same answer. It asks nothing first.

  --mode retire   for planned changes. Sessions of the old epoch go on to their end, and an
                  Open that is asked for again gets its old answer. New sessions are of the
                  new epoch, under a new manifest, which clients fetch by themselves.
  --mode break    for a history that is not what clients were told: a backup was restored, a
                  standby took over that lacked commits. Every session, cursor and manifest
                  of the old epoch is void from the answer on, on every node: waiting polls
                  end at once, and every reader gets reset-required and has to read a whole
                  new snapshot. Nothing brings the old epoch back.

Rows, log and group keys stay as they are in both. A provider that finds out by itself that
history was rewritten breaks the epoch by itself.`

func newRotateCommand(e *env, o *operatorOptions) *cobra.Command {
	var mode, key, reason string
	c := &cobra.Command{
		Use:     "rotate FEED --mode retire|break",
		Short:   "Begin a new epoch: retire the old one, or break what it promised",
		Long:    rotateLong,
		Example: "  overlayd admin epoch rotate catalogue --mode break --reason 'restored the backup of Monday'",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if mode != "retire" && mode != "break" {
				return usagef("say what becomes of old sessions: --mode retire lets them live on, --mode break ends them")
			}
			if !c.Flags().Changed("key") {
				key = rand.Text()
				fmt.Fprintf(e.stderr, "overlayd: if no answer comes, run this again with --key %s: it is then done once\n", key)
			}
			body := map[string]string{"key": key, "mode": mode}
			if reason != "" {
				body["reason"] = reason
			}
			return o.answer(c.Context(), e, http.MethodPost, "feeds/"+url.PathEscape(args[0])+"/epoch", body, sayRotated)
		},
	}
	c.Flags().StringVar(&mode, "mode", "", "what becomes of old sessions: `retire|break`")
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions([]string{"retire", "break"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	c.Flags().StringVar(&key, "key", "", "the rotation's `key`, 16 to 128 of A-Z a-z 0-9 _ - (default: drawn and printed)")
	c.Flags().StringVar(&reason, "reason", "", "`text` for operators, 1 to 1024 bytes, kept in the database")
	return c
}

func sayRotated(data []byte) (string, error) {
	var a struct {
		Feed, Epoch, Mode string
		Replayed          *bool
	}
	if err := json.Unmarshal(data, &a); err != nil || a.Replayed == nil || a.Epoch == "" {
		return "", errNoAnswer
	}
	if *a.Replayed {
		return "nothing to change: this key began epoch " + a.Epoch + " before", nil
	}
	return "done: epoch " + a.Epoch + " has begun", nil
}
