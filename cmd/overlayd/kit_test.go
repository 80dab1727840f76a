package main

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
)

// setup is what the configuration of a provider says that not every one does.
type setup struct {
	base     string // of its public address, which stands for %s; empty: "http://%s"
	key      string // of its identity; empty: any
	services string // empty: one that is open to everybody
	more     string // further lines
}

// served is a folder with what serve needs, and where it then answers.
func served(t *testing.T, databaseURL string, s setup) (e2e.Options, e2e.Ready) {
	t.Helper()
	dir := t.TempDir()
	public, private := testkit.FreeAddress(t), testkit.FreeAddress(t)
	base := fmt.Sprintf(cmp.Or(s.base, "http://%s"), public)
	for name, text := range map[string]string{
		"identity.key":   cmp.Or(s.key, strings.Repeat("0", 63)+"1") + "\n",
		"operator.token": "0123456789abcdef\n",
		"overlayd.yaml": fmt.Sprintf(`
baseURL: %s
localDevelopment: %t
listen: %s
operator: {listen: %s, tokenFile: operator.token}
identity: {keyFile: identity.key}
chain: {network: main, genesisHash: "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"}
services:
%s
%s
`, base, strings.HasPrefix(base, "http:"), public, private, cmp.Or(s.services, service("ls_catalogue")), s.more),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return e2e.Options{Dir: dir, Env: []string{"OVERLAYD_CONFIG=overlayd.yaml", "OVERLAYD_DATABASE_URL=" + databaseURL}},
		e2e.Ready{OperatorURL: "http://" + private, OperatorToken: "0123456789abcdef", BaseURL: base}
}

// service is the line of a service of the one feed; with is what it says beyond that, as "access: list".
func service(name string, with ...string) string {
	with = append([]string{"name: " + name, "feed: catalogue"}, with...)
	return "  - {" + strings.Join(with, ", ") + `, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist]}}}`
}

// ready waits until a provider answers.
func ready(t *testing.T, at e2e.Ready) {
	t.Helper()
	testkit.Eventually(t, "the provider is ready", func() bool {
		response, err := http.Get(at.OperatorURL + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}
