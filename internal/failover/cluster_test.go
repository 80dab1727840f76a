package failover_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/pgtest/require"
	"github.com/overlayd/overlayd/internal/schema"
	"github.com/overlayd/overlayd/internal/testkit"
)

// cluster is a Postgres cluster of a test's own.
type cluster struct {
	t      *testing.T
	folder string
	server *localpg.Server // nil: stopped
	url    string          // of the database, also while it is stopped: the port stays
	data   string          // the data directory
}

// newCluster makes a cluster with a migrated database and starts it.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, folder: filepath.Join(testkit.OpenFolder(t), "pg")}
	c.start()
	if err := schema.Migrate(t.Context(), c.conn(), nil); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	server, err := localpg.Start(c.t.Context(), localpg.Options{Data: c.folder, Fast: true, MaxConnections: 80})
	if err != nil {
		c.t.Fatal(err)
	}
	if c.url == "" {
		c.url = server.URL()
		c.t.Cleanup(func() {
			c.stop()
			if err := localpg.Remove(context.WithoutCancel(c.t.Context()), c.folder); err != nil {
				c.t.Errorf("clean up: %v", err)
			}
		})
	}
	if server.URL() != c.url {
		c.t.Errorf("the port of the cluster was taken meanwhile: %s, then %s", c.url, server.URL())
	}
	c.server = server
	c.data = c.ask("select current_setting('data_directory')")
}

// stop shuts the cluster down in good order: a standby that streams has everything.
func (c *cluster) stop() {
	c.t.Helper()
	if c.server == nil {
		return
	}
	if err := c.server.Stop(context.WithoutCancel(c.t.Context())); err != nil {
		c.t.Errorf("stop a cluster: %v", err)
	}
	c.server = nil
}

// crash ends the cluster at once.
func (c *cluster) crash() {
	c.t.Helper()
	if err := syscall.Kill(c.server.PID(), syscall.SIGQUIT); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-c.server.Done():
	case <-time.After(testkit.Patience):
		c.t.Fatal("the server does not end")
	}
	c.stop()
}

// conn is a connection until the test ends.
func (c *cluster) conn() *pgx.Conn { return connect(c.t, c.url) }

func connect(t *testing.T, to string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// ask runs one statement on a connection of its own and returns its first value as text.
func (c *cluster) ask(sql string) string {
	c.t.Helper()
	return ask(c.t, c.url, sql)
}

func ask(t *testing.T, to, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing depends on it
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	for _, r := range results {
		if len(r.Rows) > 0 {
			return string(r.Rows[0][0])
		}
	}
	return ""
}

// backup copies the data directory of the cluster, which it stops for that and starts again.
func (c *cluster) backup() string {
	c.t.Helper()
	to := filepath.Join(testkit.OpenFolder(c.t), "backup")
	c.stop()
	copyTree(c.t, c.data, to)
	c.start()
	return to
}

// restore puts a copy of the data directory back.
func (c *cluster) restore(from string) {
	c.t.Helper()
	c.stop()
	if err := os.RemoveAll(c.data); err != nil {
		c.t.Fatal(err)
	}
	copyTree(c.t, from, c.data)
	c.start()
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy a data directory: %v: %s", err, out)
	}
}

// tool finds a program of Postgres, or reports what cannot be shown without it.
func tool(t *testing.T, name, what string) string {
	t.Helper()
	path, err := localpg.Tool(t.Context(), name)
	if errors.Is(err, os.ErrNotExist) {
		require.Missing(t, name, what)
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", filepath.Base(program), err, out)
	}
}

// withDatabase is a URL with another database.
func withDatabase(t *testing.T, to, name string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// standby makes a cluster that streams from this one, and starts it.
func (c *cluster) standby(basebackup string) *cluster {
	c.t.Helper()
	s := &cluster{t: c.t, folder: filepath.Join(testkit.OpenFolder(c.t), "pg")}
	data := filepath.Join(s.folder, "cluster")
	if err := os.Mkdir(s.folder, 0o711); err != nil {
		c.t.Fatal(err)
	}
	run(c.t, basebackup, "-d", withDatabase(c.t, c.url, "postgres"), "-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync")
	// The copy belongs to whom the primary's belongs to, and has its password.
	info, err := os.Stat(c.data)
	if err != nil {
		c.t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := filepath.WalkDir(data, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	}); err != nil {
		c.t.Fatal(err)
	}
	u, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	password, _ := u.User.Password()
	if err := os.WriteFile(filepath.Join(s.folder, "localpg.json"), []byte(`{"password":"`+password+`"}`), 0o600); err != nil {
		c.t.Fatal(err)
	}
	s.start()
	return s
}

// synchronous makes every commit wait until a standby has it. The cluster is started anew: a reload tells nobody when it is
// through.
func (c *cluster) synchronous() {
	c.t.Helper()
	c.ask("alter system set synchronous_standby_names = '*'")
	c.restart()
}

// asynchronous ends that, also for commits that wait.
func (c *cluster) asynchronous() {
	c.t.Helper()
	c.ask("alter system reset synchronous_standby_names")
	c.ask("select pg_reload_conf()")
}

// cutOff ends a standby's streaming: from now on it lags.
func (c *cluster) cutOff() {
	c.t.Helper()
	c.ask("alter system set primary_conninfo = ''")
	c.restart()
}

func (c *cluster) restart() {
	c.t.Helper()
	c.stop()
	c.start()
}

func (c *cluster) promote() {
	c.t.Helper()
	if got := c.ask("select pg_promote(true, 60)"); got != "t" {
		c.t.Fatalf("the standby was not promoted: %s", got)
	}
}

// either is a URL of several clusters, of which the first that answers is used.
func either(t *testing.T, list ...*cluster) string {
	t.Helper()
	u, err := url.Parse(list[0].url)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, c := range list {
		other, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, other.Host)
	}
	u.Host = strings.Join(hosts, ",")
	return u.String()
}
