package storetest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"testing"

	"github.com/overlayd/overlayd/reconcile"
)

// Moments around a commit at which a child of [KilledAroundCommit] dies.
const (
	BeforeCommit = "before the commit"
	AfterCommit  = "after the commit"
	AnyTime      = "any time" // the parent kills it
)

var counter = []byte("counter")

// CountOn is what a child does: it adds one to a counter in each update, beside a
// row of some size for each step, and writes the number to out once the update has
// returned. It ends with ctx or a failure.
func CountOn(ctx context.Context, b reconcile.Backend, out io.Writer) error {
	for {
		var n uint64
		err := b.Update(ctx, func(r reconcile.Reader) (reconcile.Writes, error) {
			got, err := r.Get(ctx, counter)
			if err != nil {
				return reconcile.Writes{}, err
			}
			n = 1
			if got[0] != nil {
				n += binary.BigEndian.Uint64(got[0])
			}
			return reconcile.Writes{Put: []reconcile.Entry{{Key: counter, Value: binary.BigEndian.AppendUint64(nil, n)}, step(n)}}, nil
		})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, n); err != nil {
			return err
		}
	}
}

// step is the row of one number: sometimes short, sometimes longer than a page.
func step(n uint64) reconcile.Entry {
	value := make([]byte, 10+n%5*3000)
	binary.BigEndian.PutUint64(value, n)
	return reconcile.Entry{Key: binary.BigEndian.AppendUint64([]byte("step"), n), Value: value}
}

// KilledAroundCommit runs a child process again and again that counts ([CountOn])
// and dies as by kill -9 at a moment around its at-th commit, and looks each time
// at what is left: what was acknowledged is there, an update is there whole or not
// at all, and the store goes on.
//
// Child gives the command; with AnyTime the child lives until it is killed. Open
// opens the store after a child has died; the caller closes it.
func KilledAroundCommit(t *testing.T, rounds int, child func(moment string, at int) *exec.Cmd, open func(t *testing.T) reconcile.Backend) {
	random := rand.New(rand.NewPCG(3, 9))
	var count uint64
	for round := range rounds {
		moment, at := []string{BeforeCommit, AfterCommit, AnyTime}[round%3], 1+random.IntN(5)
		acknowledged := runChild(t, child(moment, at), moment == AnyTime, at)
		b := open(t)
		got := Counted(t, b)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		low, high := count+uint64(at)-1, count+uint64(at)-1
		switch moment {
		case AfterCommit: // committed, and nobody was told
			low, high = low+1, high+1
		case AnyTime: // at most one more than was acknowledged
			low, high = acknowledged, acknowledged+1
		}
		if got < low || got > high || got < acknowledged {
			t.Fatalf("round %d, killed %s of update %d after %d: %d updates are there, want %d to %d; acknowledged up to %d",
				round, moment, at, count, got, low, high, acknowledged)
		}
		count = got
	}
}

// runChild returns the last number that the child wrote.
func runChild(t *testing.T, cmd *exec.Cmd, kill bool, at int) (acknowledged uint64) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for seen := 1; lines.Scan(); seen++ {
		if acknowledged, err = strconv.ParseUint(lines.Text(), 10, 64); err != nil {
			t.Errorf("the child says %q", lines.Text())
		}
		if kill && seen == at {
			_ = cmd.Process.Kill()
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 { // -1: by a signal
		t.Fatalf("the child was not killed: %v", err)
	}
	return acknowledged
}

// Counted checks that the steps of [CountOn] are those up to the counter, and
// returns it.
func Counted(t *testing.T, b reconcile.Backend) (n uint64) {
	t.Helper()
	view(t, b, func(r reconcile.Reader) {
		got, err := r.Get(t.Context(), counter)
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != nil {
			n = binary.BigEndian.Uint64(got[0])
		}
		at := uint64(0)
		for e, err := range r.Scan(t.Context(), []byte("step"), []byte("stes"), 0) {
			at++
			want := step(at)
			if err != nil || string(e.Key) != string(want.Key) || string(e.Value) != string(want.Value) {
				t.Fatalf("step %d: %x, %d bytes, %v", at, e.Key, len(e.Value), err)
			}
		}
		if at != n {
			t.Fatalf("the counter is %d and there are %d steps", n, at)
		}
	})
	return n
}
