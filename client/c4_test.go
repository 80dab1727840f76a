package client_test

import (
	"database/sql"
	"path/filepath"
	"slices"
	"testing"

	_ "modernc.org/sqlite" // looks into the file from outside

	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// saved reads the latest intent straight from the file.
func saved(t testing.TB, dir string) (requestID string, open, packet []byte, digest string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, sqlitestate.File)+"?_pragma=query_only(1)&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.QueryRow(`SELECT request_id, open, packet, manifest FROM generations JOIN manifests ON digest = manifest ORDER BY generation DESC LIMIT 1`).
		Scan(&requestID, &open, &packet, &digest)
	if err != nil {
		t.Fatal(err)
	}
	return requestID, open, packet, digest
}

// Everything an Open needs is on disk when the Open arrives at the provider.
func TestC4_SavedBeforeSent(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	dir := t.TempDir()
	checked := false
	f.before = func(endpoint string, _ int, body []byte) {
		if endpoint != "open" {
			return
		}
		checked = true
		id, open, packet, digest := saved(t, dir)
		if len(id) < 22 || !wire.ValidRequestID(id) { // 128 bits in base64
			t.Errorf("request id has %d characters", len(id))
		}
		q, err := wire.ParseOpen(body)
		if err != nil || q.RequestID != id || string(open) != string(body) {
			t.Error("the saved open is not the one that was sent")
		}
		if string(packet) != string(f.packet) || digest != f.caps.Digest() {
			t.Error("the saved manifest is not the one that was chosen")
		}
	}
	follower(f.serve(), openState(t, dir)).must(t)
	if !checked {
		t.Fatal("no open came")
	}
}

// A lost answer is asked for again: the same bytes under the same digest, even
// when the provider's manifest has changed meanwhile.
func TestC4_DroppedResponse(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(2)
	f.lose = func(endpoint string, n int) bool {
		if endpoint == "open" && n == 1 {
			f.mu.Lock()
			f.caps.ExpiresAt++
			f.sign()
			f.mu.Unlock()
			return true
		}
		return endpoint == "read" && n == 1
	}
	s := openState(t, t.TempDir())
	r := follower(f.serve(), s)
	r.must(t)
	for _, endpoint := range []string{"open", "read"} {
		got := f.seen(endpoint)
		if len(got) < 2 || string(got[0].body) != string(got[1].body) || got[0].digest != got[1].digest {
			t.Errorf("%s was not repeated as it was", endpoint)
		}
	}
	if len(f.sessions) != 1 || len(f.seen("capabilities")) != 1 {
		t.Errorf("%d sessions, %d discoveries", len(f.sessions), len(f.seen("capabilities")))
	}
	if got := r.kinds(); !slices.Equal(got, []string{"Waiting", "Opened", "group@2 output", "group@2 output", "SnapshotComplete", "Waiting", "Live"}) {
		t.Errorf("events %v", got)
	}
}

// Request ids are never used for another open.
func TestC4_FreshRequestIDs(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	ids := make(map[string]bool)
	base := f.serve()
	for range 3 {
		dir := t.TempDir()
		follower(base, openState(t, dir)).must(t)
		id, _, _, _ := saved(t, dir)
		ids[id] = true
	}
	if len(ids) != 3 {
		t.Fatalf("%d request ids, want 3", len(ids))
	}
}
