package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// What a provider of our own has.
const (
	ownFeed      = "bench"
	ownPublic    = "ls_bench"
	ownSigned    = "ls_bench_signed"
	ownAttribute = "bench"
)

// ownSettings lift the quotas: all readers of a run come from one address.
const ownSettings = `manifestSeconds: 604800
quotas:
  {opensPerSecond: 1000000, openBurst: 1000000, serviceOpensPerSecond: 1000000, serviceOpenBurst: 1000000,
   waiters: 1000000, waitersPerClient: 1000000, sessionsPerClient: 1000000, sessions: 1000000, requestsWaiting: 100000, requestWaitMs: 60000}
services:
  - {name: ls_bench, feed: bench, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [bench]}}}
  - {name: ls_bench_signed, feed: bench, authentication: brc103, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [bench]}}}
`

// Provider is an `overlayd dev` in a process of its own, with a private Postgres, an empty feed and a public and a signed service
// that show it. Its quotas are out of the way.
type Provider struct {
	child *Child
	dir   string
	ready readyLine
}

type readyLine struct {
	Ready                                            bool
	BaseURL, OperatorURL, OperatorToken, DatabaseURL string
}

// ProviderOptions say how a provider is started.
type ProviderOptions struct {
	// Program is the path of an overlayd.
	Program string
	// Environ is the environment of its process, without its OVERLAYD_ variables: settings of another provider are not for it.
	Environ []string
	// DatabaseURL is a Postgres to use instead of a private one, with a database for this run alone.
	DatabaseURL string
}

// StartProvider starts a provider; [Provider.Stop] ends it.
func StartProvider(ctx context.Context, o ProviderOptions) (_ *Provider, err error) {
	dir, err := os.MkdirTemp("", "overlayd-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	p := &Provider{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	settings := filepath.Join(dir, "bench.yaml")
	if err := os.WriteFile(settings, []byte(ownSettings), 0o600); err != nil {
		return nil, fmt.Errorf("write the provider's settings: %w", err)
	}
	env := cleanEnvironment(o.Environ)
	if o.DatabaseURL != "" {
		env = append(env, "OVERLAYD_DATABASE_URL="+o.DatabaseURL)
	}
	p.child, err = StartChild(ctx, o.Program, []string{
		"dev", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0",
		"--sample", "none", "--config", settings, "--log-level", "warn",
	}, env)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(p.child.Line), &p.ready); err != nil || !p.ready.Ready {
		return nil, errors.Join(fmt.Errorf("the provider's first line %q does not say that it is ready", p.child.Line), p.child.Stop())
	}
	return p, nil
}

func cleanEnvironment(environ []string) []string {
	env := []string{}
	for _, pair := range environ {
		if !strings.HasPrefix(pair, "OVERLAYD_") {
			env = append(env, pair)
		}
	}
	return env
}

// Stop ends the provider and its Postgres and removes what they kept.
func (p *Provider) Stop() error {
	return errors.Join(p.child.Stop(), os.RemoveAll(p.dir))
}

// PID is the process of the provider.
func (p *Provider) PID() int { return p.child.cmd.Process.Pid }

// Target is the provider's public service, or its signed one.
func (p *Provider) Target(signed bool) *Target {
	t := &Target{
		BaseURL: p.ready.BaseURL, OperatorURL: p.ready.OperatorURL, Token: p.ready.OperatorToken, DatabaseURL: p.ready.DatabaseURL,
		Feed: ownFeed, Service: ownPublic, Attribute: ownAttribute, Signed: signed, provider: p,
	}
	if signed {
		t.Service = ownSigned
	}
	return t
}
