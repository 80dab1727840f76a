package main

import (
	"strings"
	"testing"
)

func read(t *testing.T, events string) (*report, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	r := &report{out: &out}
	if err := r.read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	return r, &out
}

const mixed = `{"Action":"start","Package":"m/a"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:3: NOT RUN for lack of \"browser\": that it scrolls\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"--- PASS: TestGood (0.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestTwo/sub","Output":"    a_test.go:9: quiet\n"}
{"Action":"pass","Package":"m/a","Test":"TestTwo/sub"}
{"Action":"pass","Package":"m/a","Test":"TestTwo"}
{"Action":"output","Package":"m/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"m/a","Test":"TestRoot","Output":"    a_test.go:5: needs root\n"}
{"Action":"output","Package":"m/a","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestRoot"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`

func TestReportListsWhatWasNotRun(t *testing.T) {
	t.Parallel()
	r, out := read(t, mixed)
	if !r.finish("") {
		t.Error("a run with a skipped test failed")
	}
	want := "ok  \tm/a\t0.1s\n" +
		"\nNot run (2):\n" +
		"  NOT RUN: TestGood: for lack of \"browser\": that it scrolls\n" +
		"  NOT RUN: TestRoot: needs root\n" +
		"2 passed, 0 failed, 1 skipped\n"
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out, want)
	}
}

func TestAllMayBeRequired(t *testing.T) {
	t.Parallel()
	for require, fine := range map[string]bool{"": true, "root": true, "all": false, "root,all": false} {
		r, out := read(t, mixed)
		if got := r.finish(require); got != fine {
			t.Errorf("OVERLAYD_TEST_REQUIRE=%q: fine is %t, want %t:\n%s", require, got, fine, out)
		}
	}
}

func TestReportShowsFailuresWhole(t *testing.T) {
	t.Parallel()
	r, out := read(t, `not json
{"Action":"build-output","ImportPath":"m/b","Output":"b.go:1: broken\n"}
{"Action":"output","Package":"m/a","Test":"TestBad/sub","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad/sub"}
{"Action":"fail","Package":"m/a","Test":"TestBad"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestPanics","Output":"panic: oh\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`)
	if r.finish("") {
		t.Error("a run with a failed test was fine")
	}
	for _, want := range []string{"not json\n", "b.go:1: broken\n", "a_test.go:7: wrong\n", "panic: oh\n", "FAIL\tm/a\t0.1s\n", "1 passed, 1 failed, 0 skipped\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestNoTestIsAFailure(t *testing.T) {
	t.Parallel()
	r, _ := read(t, `{"Action":"output","Package":"m/a","Output":"?   \tm/a\t[no test files]\n"}`+"\n")
	if r.finish("") {
		t.Error("a run of no test was fine")
	}
}

func TestReportKnowsWhatWasRun(t *testing.T) {
	t.Parallel()
	r, _ := read(t, mixed)
	if got, want := r.names(), "m/a TestGood\nm/a TestRoot\nm/a TestTwo\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
