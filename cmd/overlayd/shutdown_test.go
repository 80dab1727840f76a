package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

// TestW7_EveryWaitingPollIsAnsweredAtTheEnd stops the real program while many polls, public and signed, wait.
func TestW7_EveryWaitingPollIsAnsweredAtTheEnd(t *testing.T) {
	t.Parallel()
	const each = 20
	data := t.TempDir()
	p, ready := e2e.Dev(t, data, "--sample", "none")
	anybody := e2e.NewCaller(t, ready.BaseURL)
	member := anybody.As(71)
	changes(t, data, true, "grant", devMembers, member.Identity())
	public, signed := anybody.Open(devService).Batch(t), member.Open(devMembers).Batch(t)

	var polls sync.WaitGroup
	answers := make([]e2e.Answer, 2*each)
	failures := make([]error, len(answers))
	for i := range answers {
		polls.Go(func() {
			caller, b := anybody, public
			if i >= each {
				caller, b = member, signed
			}
			answers[i], failures[i] = caller.ReadFrom(t.Context(), b, 25*time.Second)
		})
	}
	testkit.Eventually(t, "all polls wait", func() bool {
		_, body := call(t, ready, http.MethodGet, "/operator/v1/feeds/"+devFeed, "")
		return strings.Contains(body, fmt.Sprintf(`"waiters":%d,`, len(answers)))
	})
	p.Signal(syscall.SIGTERM)
	polls.Wait()
	for i, a := range answers {
		if failures[i] != nil {
			t.Errorf("poll %d was cut: %v", i, failures[i])
			continue
		}
		if b := a.Batch(t); len(b.Groups) != 0 || b.Cursor == "" {
			t.Errorf("poll %d was answered %s", i, a.Body)
		}
	}
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d; stderr\n%s", code, p.Stderr())
	}
}

func TestH12_ServeRefusesAnotherChainOnAnExistingFeed(t *testing.T) {
	t.Parallel()
	with, at := served(t, pgtest.New(t).URL, setup{more: "stateFile: feeds.state"})
	p := e2e.StartWith(t, with, "serve")
	ready(t, at)
	if code := p.Interrupt(); code != 0 {
		t.Fatalf("exit code %d; stderr\n%s", code, p.Stderr())
	}
	for name, setting := range map[string]string{"network": "OVERLAYD_CHAIN_NETWORK=other", "genesis": "OVERLAYD_CHAIN_GENESISHASH=" + strings.Repeat("0", 64)} {
		other := e2e.Options{Dir: with.Dir, Env: append([]string{setting}, with.Env...)}
		if r := e2e.RunWith(t, other, "serve"); r.Code != 1 || !strings.Contains(r.Stderr, "catalogue") || !strings.Contains(r.Stderr, "chain") {
			t.Errorf("another %s: code %d, %s", name, r.Code, r.Stderr)
		}
	}
}
