package testkit

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// verdict is a test that is told to fail.
type verdict struct {
	testing.TB
	said string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatalf(format string, args ...any) {
	v.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge runs do to its end and returns what it failed with.
func judge(do func(t testing.TB)) string {
	v := &verdict{}
	var done sync.WaitGroup
	done.Go(func() { do(v) })
	done.Wait()
	return v.said
}

func TestK1_WhatDoesNotComeIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if said := judge(func(t testing.TB) { Eventually(t, "the tide", func() bool { return false }) }); !strings.Contains(said, "the tide") {
			t.Errorf("said %q", said)
		}
		var log Log
		fmt.Fprint(&log, "ebb, ebb")
		if said := judge(func(t testing.TB) { log.Await(t, "ebb", 3) }); !strings.Contains(said, `"ebb" 2 times, not 3`) {
			t.Errorf("said %q", said)
		}
		if took := time.Since(began); took != 2*Patience {
			t.Errorf("took %v", took)
		}
	})
}

func TestK2_AWaitEndsWithTheEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log Log
		var waiting sync.WaitGroup
		began := time.Now()
		for times := range 4 {
			waiting.Go(func() {
				if said := judge(func(t testing.TB) { log.Await(t, "tick", times) }); said != "" {
					t.Error(said)
				}
				if took := time.Since(began); took != time.Duration(times)*time.Second {
					t.Errorf("%d times after %v", times, took)
				}
			})
		}
		for range 3 {
			time.Sleep(time.Second)
			fmt.Fprint(&log, "tick")
			fmt.Fprint(&log, "tock")
		}
		waiting.Wait()
		if log.String() != strings.Repeat("ticktock", 3) || log.Count("tock") != 3 {
			t.Errorf("%q", log.String())
		}
		due := time.Now().Add(time.Second)
		if said := judge(func(t testing.TB) { Eventually(t, "a second", func() bool { return !time.Now().Before(due) }) }); said != "" || time.Since(due) > 10*time.Millisecond {
			t.Errorf("%s, %v late", said, time.Since(due))
		}
	})
}

func TestOpenFolder(t *testing.T) {
	t.Parallel()
	var path string
	t.Run("a test", func(t *testing.T) {
		path = OpenFolder(t)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%v, %v", info, err)
		}
	})
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}
