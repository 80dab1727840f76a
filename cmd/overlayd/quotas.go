package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newQuotasCommand(e *env, o *operatorOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "quotas",
		Short: "What clients hold of what the quotas let them, and who was refused",
		Long: "Quotas shows what the sessions of each service keep, of the whole deployment; and of the one process that\n" +
			"answers, what goes on there, what may, and how often each quota refused somebody since its start.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.answer(c.Context(), e, http.MethodGet, "quotas", nil, sayQuotas)
		},
	}
}

// sayQuotas lays the answer out as two tables.
func sayQuotas(data []byte) (string, error) {
	var a struct {
		Services []struct {
			Service, Feed                                          string
			Sessions, MaxSessions, RetainedBytes, MaxRetainedBytes json.Number
		}
		Unavailable []string
		Node        *struct {
			Waiters, Requests, RequestsWaiting, Clients json.Number
			Quotas                                      map[string]json.Number
			Refusals                                    map[string]json.Number
		}
	}
	if err := json.Unmarshal(data, &a); err != nil || a.Services == nil || a.Node == nil {
		return "", errNoAnswer
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	clean := func(text string) string { return strings.Map(printable, text) }
	fmt.Fprintln(t, "service\tfeed\tsessions\tof\tretainedBytes\tof")
	for _, s := range a.Services {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", clean(s.Service), clean(s.Feed), s.Sessions, s.MaxSessions, s.RetainedBytes, s.MaxRetainedBytes)
	}
	if err := t.Flush(); err != nil {
		return "", err
	}
	for _, feed := range a.Unavailable {
		fmt.Fprintf(&b, "the database of feed %s does not answer: its services are not shown\n", clean(feed))
	}
	now := map[string]json.Number{
		"waiters": a.Node.Waiters, "requests": a.Node.Requests, "requestsWaiting": a.Node.RequestsWaiting, "clients": a.Node.Clients,
	}
	fmt.Fprintln(t, "\nquota\tlimit\tnow\trefused")
	for _, name := range slices.Sorted(maps.Keys(a.Node.Quotas)) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", clean(name), a.Node.Quotas[name], orDash(now[name]), orDash(a.Node.Refusals[name]))
	}
	err := t.Flush()
	return strings.TrimSuffix(b.String(), "\n"), err
}

func orDash(n json.Number) string {
	if n == "" {
		return "-"
	}
	return n.String()
}
