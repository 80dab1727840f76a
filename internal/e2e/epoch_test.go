package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
)

// rotate runs `overlayd admin epoch rotate` and returns the epoch that began.
func rotate(t *testing.T, data, mode, key string) string {
	t.Helper()
	r := Run(t, "admin", "epoch", "rotate", "catalogue", "--mode", mode, "--key", key, "--data", data)
	var a struct {
		Epoch    string
		Replayed bool
	}
	if err := json.Unmarshal([]byte(r.Stdout), &a); r.Code != 0 || err != nil || a.Epoch == "" || a.Replayed {
		t.Fatalf("rotate --mode %s: code %d, %s%s", mode, r.Code, r.Stdout, r.Stderr)
	}
	return a.Epoch
}

// opened is the next line that says a generation begins.
func opened(t *testing.T, p *Process) (generation int, epoch string) {
	t.Helper()
	for {
		text, ok := p.Line()
		if !ok {
			t.Fatalf("the follower ended (%d):\n%s", p.Wait(), p.Stderr())
		}
		var e struct {
			Event, Epoch string
			Generation   int
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if e.Event == "opened" {
			return e.Generation, e.Epoch
		}
	}
}

// TestO12_FollowersLiveThroughRotations turns epochs under followers of the real program: a retirement is not felt, a break
// begins a new generation for who asked for that, and ends the others.
func TestO12_FollowersLiveThroughRotations(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, ready := Dev(t, data, "--sample", "none")
	change(t, ready, "before-everything")
	follower := Start(t, "follow", ready.BaseURL, "ls_catalogue", "--state", t.TempDir())
	stopping := Start(t, "follow", ready.BaseURL, "ls_catalogue", "--state", t.TempDir(), "--on-reset", "stop")
	generation, first := opened(t, follower)
	if generation != 1 {
		t.Fatalf("generation %d", generation)
	}
	next(t, follower, "live")
	next(t, stopping, "live")

	retired := rotate(t, data, "retire", "a-retirement-of-this-test")
	change(t, ready, "after-the-retirement")
	for _, p := range []*Process{follower, stopping} {
		if e := next(t, p, "invalidated"); e.ContextID != "after-the-retirement" {
			t.Fatalf("%+v came", e)
		}
	}

	broken := rotate(t, data, "break", "a-break-of-this-test")
	next(t, follower, "reset")
	generation, last := opened(t, follower)
	if generation != 2 || last != broken || first == retired || retired == broken {
		t.Errorf("generation %d of epoch %s after %s, %s and %s", generation, last, first, retired, broken)
	}
	next(t, follower, "live")
	change(t, ready, "after-the-break")
	if e := next(t, follower, "invalidated"); e.ContextID != "after-the-break" {
		t.Errorf("%+v came", e)
	}
	next(t, stopping, "reset")
	if code := stopping.Wait(); code != 1 {
		t.Errorf("a follower that stops ended with %d:\n%s", code, stopping.Stderr())
	}
}

// TestO12_ADataDirectoryCopiedBackIsFoundOutAtStart restores the private Postgres of dev from a copy of its files while nothing
// runs: the state file beside it tells.
func TestO12_ADataDirectoryCopiedBackIsFoundOutAtStart(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	cluster, backup := filepath.Join(data, "postgres"), filepath.Join(t.TempDir(), "backup")
	start := func() (*Process, Ready) { return Dev(t, data, "--sample", "none") }
	stop := func(p *Process) string {
		t.Helper()
		if code := p.Interrupt(); code != 0 {
			t.Fatalf("dev ended with %d:\n%s", code, p.Stderr())
		}
		return p.Stderr()
	}
	files := func(command string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), command, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", command, args, err, out)
		}
	}
	const lost = "the database lost history"

	provider, ready := start()
	change(t, ready, "in-the-backup")
	anybody := NewCaller(t, ready.BaseURL)
	kept := anybody.Open("ls_catalogue").Batch(t)
	if log := stop(provider); strings.Contains(log, lost) {
		t.Fatalf("a first start lost something:\n%s", log)
	}
	files("cp", "-a", cluster, backup)

	// A start on the same files finds nothing.
	provider, ready = start()
	kept = anybody.Read(kept, 0).Batch(t)
	change(t, ready, "not-in-the-backup")
	kept = anybody.Read(kept, 0).Batch(t)
	if log := stop(provider); strings.Contains(log, lost) {
		t.Fatalf("a second start lost something:\n%s", log)
	}

	if err := os.RemoveAll(cluster); err != nil {
		t.Fatal(err)
	}
	files("cp", "-a", backup, cluster)
	provider, ready = start()
	if log := provider.Stderr(); strings.Count(log, lost) != 1 || !strings.Contains(log, "catalogue") {
		t.Errorf("a restored backup is not told in the log:\n%s", log)
	}
	anybody.Read(kept, 0).Refused(t, wire.ResetRequired)
	fresh := NewCaller(t, ready.BaseURL).Open("ls_catalogue").Batch(t)
	if fresh.Scope.Epoch == kept.Scope.Epoch {
		t.Error("the epoch is the one from before the restore")
	}
	// The lost group is no duplicate: it is appended again.
	change(t, ready, "not-in-the-backup")
	if a := NewCaller(t, ready.BaseURL).Open("ls_catalogue"); a.Status != http.StatusOK {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	stop(provider)

	// It is told once: what was found is in the database and in the state file.
	provider, _ = start()
	if log := stop(provider); strings.Contains(log, lost) {
		t.Errorf("the start after that lost something again:\n%s", log)
	}
}
