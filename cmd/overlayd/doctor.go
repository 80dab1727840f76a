package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/internal/doctor"
)

func newDoctorCommand(e *env) *cobra.Command {
	var s settings
	var d doctorOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything a provider stands on, and say what to do",
		Long: "Doctor looks at the settings, the keys, the database, the clocks, the certificate, the public URL and the disk of\n" +
			"the provider that `serve` would run with the same settings, and says of each whether it is well and what to do. It\n" +
			"changes nothing and may be run beside a provider. It fails when a check did; warnings are for you to judge.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c.Context(), e, c, &s) },
	}
	s.register(c, flagBaseURL, flagListen, flagOperator, flagDatabase)
	c.Flags().BoolVar(&d.json, "json", false, "print one JSON object a line, as without a terminal")
	c.Flags().BoolVar(&d.offline, "offline", false, "do not ask the public URL")
	c.Flags().IntVar(&d.nodes, "nodes", 1, "how `many` processes share the database")
	c.Flags().DurationVar(&d.timeout, "timeout", 10*time.Second, "how `long` each check may take")
	return c
}

type doctorOptions struct {
	json, offline bool
	nodes         int
	timeout       time.Duration
}

func (d *doctorOptions) run(ctx context.Context, e *env, c *cobra.Command, s *settings) error {
	if d.nodes < 1 {
		return usagef("--nodes is %d; give 1 or more", d.nodes)
	}
	if d.timeout <= 0 {
		return usagef("--timeout is %s; give 10s, say", d.timeout)
	}
	l, err := s.load(e, c, nil)
	if err != nil {
		return err
	}
	findings := doctor.Examine(ctx, doctor.Options{
		Config: &l.Config,
		Identity: func() (string, error) {
			key, err := identityOf(&l.Config)
			if err != nil {
				return "", err
			}
			return hex.EncodeToString(key.PubKey().Compressed()), nil
		},
		Token: func() error {
			_, err := loadToken(l.Operator.TokenFile)
			return err
		},
		Unreachable: unreachable,
		Nodes:       d.nodes, Timeout: d.timeout, Offline: d.offline,
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.print(e, findings); err != nil {
		return err
	}
	failed := 0
	for _, f := range findings {
		if f.Verdict == doctor.Failure {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed; each says what to do", failed, len(findings))
	}
	return nil
}

// print writes the findings: on a terminal as a table, with what is to be done below each that is not well.
func (d *doctorOptions) print(e *env, findings []doctor.Finding) error {
	if d.json || !isTerminal(e.stdout) {
		out := json.NewEncoder(e.stdout)
		out.SetEscapeHTML(false)
		for _, f := range findings {
			if err := out.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	_, err := fmt.Fprint(e.stdout, findingsTable(findings))
	return err
}

func findingsTable(findings []doctor.Finding) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	clean := func(text string) string { return strings.Map(printable, text) }
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Verdict, f.Check, clean(f.Found))
		if f.Do != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", clean(f.Do))
		}
	}
	_ = t.Flush() // a Builder takes everything
	return b.String()
}
