package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestRetentionOfZeroIsNever(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[uint32]time.Duration{0: -1, 1: time.Second, 3600: time.Hour} {
		if got := retentionOf(config.Retention{EverySeconds: seconds}); got.Every != want {
			t.Errorf("%d s is %v", seconds, got.Every)
		}
	}
}

// TestS4_AFeedForgetsWhatNobodyIsPromised lets the real program compact: the floor waits for a session, and follows the head when it is closed.
func TestS4_AFeedForgetsWhatNobodyIsPromised(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	file := filepath.Join(t.TempDir(), "dev.yaml")
	if err := os.WriteFile(file, []byte("retention: {everySeconds: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ready := e2e.Dev(t, data, "--sample", "none", "--config", file)
	lines := rows(t, 81, 6)
	add := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			if status, body := call(t, ready, http.MethodPost, "/operator/v1/feeds/catalogue/groups", line); status != 200 {
				t.Fatal(body)
			}
		}
	}
	type view struct {
		Head, Floor, OldestPin string
		Groups, Removable      int64
	}
	feed := func() (v view) {
		t.Helper()
		status, body := call(t, ready, http.MethodGet, "/operator/v1/feeds/catalogue", "")
		if err := json.Unmarshal([]byte(body), &v); status != 200 || err != nil {
			t.Fatalf("%d %s", status, body)
		}
		return v
	}
	add(lines[:2]...)
	anybody := e2e.NewCaller(t, ready.BaseURL)
	first := anybody.Open(devService).Batch(t)
	add(lines[2:4]...)
	second := anybody.Open(devService).Batch(t)
	add(lines[4:]...)
	want := view{Head: "6", Floor: "2", OldestPin: "2", Groups: 4}
	testkit.Eventually(t, "the floor waits at the oldest session", func() bool { return feed() == want })
	if b := anybody.Read(first, 0).Batch(t); len(b.Groups) != 4 {
		t.Errorf("%d groups behind the oldest session", len(b.Groups))
	}
	anybody.Close(first)
	want = view{Head: "6", Floor: "4", OldestPin: "4", Groups: 2}
	testkit.Eventually(t, "the floor rises to the other one", func() bool { return feed() == want })
	if b := anybody.Read(second, 0).Batch(t); len(b.Groups) != 2 {
		t.Errorf("%d groups behind the other session", len(b.Groups))
	}
	anybody.Close(second)
	want = view{Head: "6", Floor: "6"}
	testkit.Eventually(t, "the floor follows the head", func() bool { return feed() == want })
	// What is there is there, and what is gone is told, never shortened.
	if b := anybody.Open(devService).Batch(t); len(b.Groups) != 6 {
		t.Errorf("%d rows", len(b.Groups))
	}
	anybody.Read(first, 0).Refused(t, wire.Expired)
}
