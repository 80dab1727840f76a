package fleet_test

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/testkit"
)

// database is a Postgres of a test's own, which may go away and come back at its place.
type database struct {
	t      *testing.T
	folder string
	server *localpg.Server // nil: stopped
	url    string
}

// newDatabase starts one with the migrated schema. It ends with the test.
func newDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{t: t, folder: filepath.Join(testkit.OpenFolder(t), "pg")}
	t.Cleanup(func() {
		d.stop()
		if err := localpg.Remove(context.WithoutCancel(t.Context()), d.folder); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	d.start()
	conn, err := pgx.Connect(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing depends on it
	if err := schema.Migrate(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) start() {
	d.t.Helper()
	server, err := localpg.Start(d.t.Context(), localpg.Options{Data: d.folder, Fast: true, MaxConnections: 80})
	if err != nil {
		d.t.Fatal(err)
	}
	if d.url != "" && d.url != server.URL() {
		d.t.Fatalf("the port of the database was taken meanwhile: %s, then %s", d.url, server.URL())
	}
	d.server, d.url = server, server.URL()
}

// stop shuts it down in good order.
func (d *database) stop() {
	d.t.Helper()
	if d.server == nil {
		return
	}
	if err := d.server.Stop(context.WithoutCancel(d.t.Context())); err != nil {
		d.t.Errorf("stop the database: %v", err)
	}
	d.server = nil
}

// crash ends it at once.
func (d *database) crash() {
	d.t.Helper()
	if err := syscall.Kill(d.server.PID(), syscall.SIGQUIT); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.server.Done():
	case <-time.After(testkit.Patience):
		d.t.Fatal("the database does not end")
	}
	d.stop()
}
