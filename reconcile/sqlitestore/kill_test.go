package sqlitestore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/sqlitestore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// childVariable holds the orders of a writer that is a process of its own.
const childVariable = "OVERLAYD_SQLITESTORE_TEST_CHILD"

// orders are what a child is to do.
type orders struct {
	Dir, Moment string
	At          int
	Full        bool // let the disk be full instead
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	b, err := sqlitestore.Open(ctx, o.Dir, sqlitestore.Options{})
	if err != nil {
		return err
	}
	defer b.Close()
	if o.Full {
		return full(ctx, b, o.Dir)
	}
	die := func(moment string) func() {
		n := 0
		return func() {
			if n++; moment == o.Moment && n == o.At {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	b.AtCommit(die(storetest.BeforeCommit), die(storetest.AfterCommit))
	return storetest.CountOn(ctx, b, os.Stdout)
}

func command(t *testing.T, o orders) *exec.Cmd {
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	return cmd
}

func TestR7_KilledAroundCommit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	storetest.KilledAroundCommit(t, 18,
		func(moment string, at int) *exec.Cmd { return command(t, orders{Dir: dir, Moment: moment, At: at}) },
		func(t *testing.T) reconcile.Backend {
			b, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
}

// TestQ2_AnotherProcess has the lock, and no longer when it is killed.
func TestQ2_AnotherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := command(t, orders{Dir: dir})
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has committed something
		t.Fatal(err)
	}
	if _, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{}); !errors.Is(err, sqlitestore.ErrLocked) {
		t.Errorf("beside another process: %v", err)
	}
	looker, err := sqlitestore.Inspect(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer looker.Close()
	if got := get(t, looker, "counter"); len(got) != 8 {
		t.Errorf("the counter beside its writer is %x", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	put(t, open(t, dir), "a", "1")
}

// full makes every file of this process end where the WAL is now.
func full(ctx context.Context, b *sqlitestore.Backend, dir string) error {
	write := func(n int) error {
		return b.Update(ctx, func(reconcile.Reader) (reconcile.Writes, error) {
			return reconcile.Writes{Put: []reconcile.Entry{{Key: []byte("a"), Value: bytes.Repeat([]byte{1}, n)}}}, nil
		})
	}
	if err := write(10); err != nil {
		return err
	}
	wal, err := os.Stat(filepath.Join(dir, sqlitestore.File+"-wal"))
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	low := limit
	low.Cur = uint64(wal.Size())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &low); err != nil {
		return err
	}
	failed := write(100_000)
	if !errors.Is(failed, reconcile.ErrUnknown) {
		return fmt.Errorf("with a full disk: %w", failed)
	}
	size := func() (n int, err error) {
		err = b.View(ctx, func(r reconcile.Reader) error {
			got, err := r.Get(ctx, []byte("a"))
			n = len(got[0])
			return err
		})
		return n, err
	}
	if n, err := size(); err != nil || n != 10 {
		return fmt.Errorf("with a full disk a has %d bytes: %w", n, err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := write(200_000); err != nil {
		return err
	}
	if n, err := size(); err != nil || n != 200_000 {
		return fmt.Errorf("a has %d bytes: %w", n, err)
	}
	return nil
}

// TestQ1_AFullDisk fails the COMMIT, whose outcome is then open, and the store
// goes on when there is room.
func TestQ1_AFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if out, err := command(t, orders{Dir: dir, Full: true}).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := get(t, open(t, dir), "a"); len(got) != 200_000 {
		t.Errorf("a has %d bytes", len(got))
	}
}
