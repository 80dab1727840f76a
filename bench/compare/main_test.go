package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/bench"
)

// TestEtcd_EveryWatchGetsEveryPut puts a small load on an etcd of this process.
func TestEtcd_EveryWatchGetsEveryPut(t *testing.T) {
	t.Parallel()
	stay, leave := io.Pipe()
	said, say := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serveEtcd(context.WithoutCancel(t.Context()), t.TempDir(), stay, say)
		_ = say.Close()
		served <- err
	}()
	defer func() {
		_ = leave.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	url, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Error("etcd did not say where it is:", err)
		return
	}
	for _, shared := range []int{1, 4} {
		e := &etcd{url: strings.TrimSpace(url), bytes: 100, shared: shared}
		load := bench.Load{Readers: 5, Rate: 200, WarmUp: 20 * time.Millisecond, Time: 100 * time.Millisecond}
		tally, err := bench.Pour(t.Context(), e, load, bench.NewRecorder(time.Now()))
		if err != nil || tally.Appended != 24 || tally.Delivered != 5*24 || tally.Lost != 0 || tally.Doubled != 0 {
			t.Errorf("%s: appended %d, delivered %d, lost %d, doubled %d, %v", e.Name(), tally.Appended, tally.Delivered, tally.Lost, tally.Doubled, err)
		}
	}
}

func TestParse_RefusesWithASentence(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-readers", "0"}, {"-readers", ""}, {"-rate", "0"}, {"-bytes", "1"}, {"-shared", "-1"}, {"-rounds", "0"}, {"-time", "0s"}, {"more"},
	} {
		if _, err := parse(args); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if o, err := parse(nil); err != nil || len(o.readers) != 3 || o.plan.Rounds != 5 {
		t.Errorf("%+v, %v", o, err)
	}
}
