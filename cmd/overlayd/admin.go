package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func newAdminCommand(e *env) *cobra.Command {
	var o operatorOptions
	c := &cobra.Command{
		Use:   "admin",
		Short: "Feeds, sessions, grants, prohibitions, epochs and quotas of a running provider",
		Long: "Admin is the operator API on the command line. Answers are one JSON object a line on stdout, a table on a\n" +
			"terminal. What orders something says whether it changed anything, and may be repeated without harm.\n\n" +
			"Without --operator and --token those of `overlayd dev` in --data are used.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("admin needs a command: feeds, sessions, grant, revoke, prohibit, allow, epoch or quotas")
		},
	}
	o.register(c, true)
	c.AddCommand(
		newFeedsCommand(e, &o), newSessionsCommand(e, &o),
		newGrantCommand(e, &o, "grant SERVICE IDENTITY", "Admit an identity to a service with access: list", http.MethodPut),
		newGrantCommand(e, &o, "revoke SERVICE IDENTITY", "End a grant, and the sessions opened under it, for ever", http.MethodDelete),
		newProhibitCommand(e, &o), newAllowCommand(e, &o),
		newEpochCommand(e, &o), newQuotasCommand(e, &o),
	)
	return c
}

func newFeedsCommand(e *env, o *operatorOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "feeds",
		Short: "What every feed holds",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t := newTable(e.stdout, "feed", "epoch", "head", "floor", "rows", "versions", "groups", "sessions", "pins", "waiters", "dueTimers", "oldestPin", "removable")
			return o.list(c.Context(), e, "feeds", "feeds", t)
		},
	}
}

func newSessionsCommand(e *env, o *operatorOptions) *cobra.Command {
	var service, principal, remove string
	c := &cobra.Command{
		Use:   "sessions",
		Short: "Who reads, or the end of a session",
		Long: "Sessions lists the stored sessions by their refs, which let nobody read. --remove ends one for ever: whoever\n" +
			"holds it is unauthorized from then on, and has to open another.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("remove") {
				if service != "" || principal != "" {
					return usagef("--remove names one session; leave --service and --principal out")
				}
				return o.order(c.Context(), e, http.MethodDelete, "sessions/"+url.PathEscape(remove), nil)
			}
			chosen := url.Values{}
			if service != "" {
				chosen.Set("service", service)
			}
			if principal != "" {
				chosen.Set("principal", principal)
			}
			t := newTable(e.stdout, "ref", "service", "principal", "state", "openedAt", "expiresAt")
			return o.list(c.Context(), e, "sessions?"+chosen.Encode(), "sessions", t)
		},
	}
	c.Flags().StringVar(&service, "service", "", "only those of this `service`")
	c.Flags().StringVar(&principal, "principal", "", "only those of this `identity`")
	c.Flags().StringVar(&remove, "remove", "", "end the session of this `ref`")
	return c
}

func newGrantCommand(e *env, o *operatorOptions, use, short, method string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return o.order(c.Context(), e, method, "services/"+url.PathEscape(args[0])+"/grants/"+url.PathEscape(args[1]), nil)
		},
	}
}

func newProhibitCommand(e *env, o *operatorOptions) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "prohibit FEED TXID.INDEX --reason TEXT",
		Short: "Stop a row from being served, by any path",
		Long: "Prohibit withdraws a row from every reader, and keeps it from being served again until it is allowed, also when\n" +
			"an engine puts it anew. The reason is kept for operators and shown to no reader.",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return usagef("say why with --reason TEXT")
			}
			return o.order(c.Context(), e, http.MethodPut, prohibitionPath(args), map[string]string{"reason": reason})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "`text` for operators, 1 to 1024 bytes")
	return c
}

func newAllowCommand(e *env, o *operatorOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "allow FEED TXID.INDEX",
		Short: "Lift a prohibition: a row still listed enters again",
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return o.order(c.Context(), e, http.MethodDelete, prohibitionPath(args), nil)
		},
	}
}

func prohibitionPath(args []string) string {
	return "feeds/" + url.PathEscape(args[0]) + "/prohibitions/" + url.PathEscape(args[1])
}

// maxAnswer bounds an answer that is read whole.
const maxAnswer = 1 << 20

// order sends what changes something and prints the answer.
func (o *operatorOptions) order(ctx context.Context, e *env, method, path string, body any) error {
	return o.answer(ctx, e, method, path, body, func(data []byte) (string, error) {
		var a struct{ Changed *bool }
		if err := json.Unmarshal(data, &a); err != nil || a.Changed == nil {
			return "", errNoAnswer
		}
		if !*a.Changed {
			return "nothing to change: it is so already", nil
		}
		return "done", nil
	})
}

// errNoAnswer says that what answered is no operator API.
var errNoAnswer = errors.New("the operator API gave an answer that is none; check the URL of --operator")

// answer sends a request and prints what it is answered: as it came, or on a
// terminal in the words of say, which also checks it.
func (o *operatorOptions) answer(ctx context.Context, e *env, method, path string, body any, say func(data []byte) (string, error)) error {
	if err := o.resolve(e); err != nil {
		return err
	}
	return o.call(ctx, method, path, body, func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, maxAnswer))
		if err != nil {
			return fmt.Errorf("the operator API's answer was cut off: %w; run the command again, which does no harm", err)
		}
		text, err := say(data)
		if err != nil {
			return err
		}
		if !isTerminal(e.stdout) {
			text = strings.TrimSpace(string(data))
		}
		_, err = fmt.Fprintln(e.stdout, text)
		return err
	})
}

// list prints the elements of the array that an answer holds under name, as they
// arrive.
func (o *operatorOptions) list(ctx context.Context, e *env, path, name string, t *table) error {
	if err := o.resolve(e); err != nil {
		return err
	}
	return o.call(ctx, http.MethodGet, path, nil, func(r io.Reader) error {
		d := json.NewDecoder(r)
		err := tokens(d, json.Delim('{'), name, json.Delim('['))
		for err == nil && d.More() {
			var element json.RawMessage
			if err = d.Decode(&element); err == nil {
				if err := t.row(element); err != nil {
					return err
				}
			}
		}
		if err == nil {
			err = tokens(d, json.Delim(']'), json.Delim('}'))
		}
		if ferr := t.flush(); ferr != nil {
			return ferr
		}
		if err != nil {
			return fmt.Errorf("the operator API's answer was cut off: %w; run the command again", err)
		}
		return nil
	})
}

// tokens reads exactly these.
func tokens(d *json.Decoder, want ...json.Token) error {
	for _, w := range want {
		if got, err := d.Token(); err != nil {
			return err
		} else if got != w {
			return fmt.Errorf("%v where %v belongs", got, w)
		}
	}
	return nil
}

// table prints JSON objects: one a line, or on a terminal as columns.
type table struct {
	out     io.Writer
	columns []string
	tab     *tabwriter.Writer // nil: no terminal
	rows    int
}

func newTable(w io.Writer, columns ...string) *table {
	t := &table{out: w, columns: columns}
	if isTerminal(w) {
		t.tab = tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t.tab, strings.Join(columns, "\t"))
	}
	return t
}

// tableFlush is after how many rows a table is printed, so that its widths may
// change but its memory is bounded.
const tableFlush = 1000

func (t *table) row(object json.RawMessage) error {
	if t.tab == nil {
		_, err := fmt.Fprintf(t.out, "%s\n", object)
		return err
	}
	var fields map[string]any
	d := json.NewDecoder(strings.NewReader(string(object)))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return fmt.Errorf("the operator API's answer holds no objects: %w; check the URL of --operator", err)
	}
	cells := make([]string, len(t.columns))
	for i, name := range t.columns {
		switch v := fields[name]; {
		case v == nil:
			cells[i] = "-"
		case strings.HasSuffix(name, "At"):
			cells[i] = readable(fmt.Sprint(v))
		default:
			cells[i] = strings.Map(printable, fmt.Sprint(v))
		}
	}
	fmt.Fprintln(t.tab, strings.Join(cells, "\t"))
	if t.rows++; t.rows%tableFlush == 0 {
		return t.tab.Flush()
	}
	return nil
}

func (t *table) flush() error {
	if t.tab == nil {
		return nil
	}
	return t.tab.Flush()
}

// readable is a time in Unix seconds as people read it.
func readable(seconds string) string {
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return seconds
	}
	return time.Unix(n, 0).UTC().Format(time.RFC3339)
}

// printable keeps what a name holds from steering the terminal.
func printable(r rune) rune {
	if !strconv.IsPrint(r) {
		return '?'
	}
	return r
}
