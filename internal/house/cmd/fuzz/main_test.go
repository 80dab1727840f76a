package main

import (
	"strings"
	"testing"
)

func TestReadTakesTheLastCounts(t *testing.T) {
	t.Parallel()
	var r result
	var other strings.Builder
	err := read(strings.NewReader(`fuzz: elapsed: 0s, gathering baseline coverage: 0/5 completed
fuzz: elapsed: 0s, gathering baseline coverage: 5/5 completed, now fuzzing with 2 workers
fuzz: elapsed: 3s, execs: 102761 (34247/sec), new interesting: 3 (total: 8)
fuzz: elapsed: 6s, execs: 202761 (33333/sec), new interesting: 4 (total: 9)
--- FAIL: FuzzX (6.00s)
`), &r, &other)
	if err != nil {
		t.Fatal(err)
	}
	if r.executions != 202761 || r.interesting != 4 || r.corpus != 9 {
		t.Errorf("got %+v", r)
	}
	if !strings.Contains(other.String(), "--- FAIL: FuzzX") {
		t.Errorf("the other lines were lost: %q", other.String())
	}
}

func TestTableCountsTargets(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printTable(&out, []result{
		{target: target{"a", "FuzzOne"}, executions: 10, resident: 2048, anonymous: 1024},
		{target: target{"b", "FuzzTwo"}, executions: 5, failed: true},
	})
	if !strings.Contains(out.String(), "2 targets, 15 executions, 1 failed\n") || !strings.Contains(out.String(), "YES") {
		t.Errorf("got:\n%s", out.String())
	}
}

func TestFieldReadsKilobytes(t *testing.T) {
	t.Parallel()
	status := []byte("Name:\tx\nVmHWM:\t   12345 kB\nRssAnon:\t 67 kB\n")
	if got := field(status, "VmHWM:"); got != 12345 {
		t.Errorf("VmHWM is %d", got)
	}
	if got := field(status, "VmSwap:"); got != 0 {
		t.Errorf("a missing field is %d", got)
	}
}
