package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	// A terminal sends its interrupt to go test as well, which then reports;
	// only a signal meant for this process alone has to be handed on.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Getenv("OVERLAYD_TEST_REQUIRE"), os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, require string, stdout, stderr io.Writer) int {
	report := &report{out: stdout}
	ran := ""
	if len(args) >= 2 && args[0] == "-ran" {
		ran, args = args[1], args[2:]
	}
	args = report.withoutRace(ctx, args)
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintf(stderr, "gotest: %v\n", err)
		return 1
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(stderr, "gotest: start go test: %v\n", err)
		return 1
	}
	readErr := report.read(pipe)
	testErr := cmd.Wait()
	if readErr != nil {
		fmt.Fprintf(stderr, "gotest: read the output of go test: %v\n", readErr)
	}
	fine := report.finish(require)
	if ran != "" {
		if err := os.WriteFile(ran, []byte(report.names()), 0o644); err != nil {
			fmt.Fprintf(stderr, "gotest: write which tests were run: %v\n", err)
			return 1
		}
	}
	if testErr != nil || readErr != nil || !fine {
		return 1
	}
	return 0
}

// withoutRace drops -race where the race detector cannot be built.
func (r *report) withoutRace(ctx context.Context, args []string) []string {
	if !slices.Contains(args, "-race") {
		return args
	}
	out, err := exec.CommandContext(ctx, "go", "env", "CC", "CGO_ENABLED").Output()
	if err != nil {
		return args // go test will say what is wrong with go
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	why := "CGO_ENABLED is 0"
	if len(lines) == 2 && lines[1] == "1" {
		compiler := strings.Fields(lines[0])
		if len(compiler) > 0 {
			if _, err := exec.LookPath(compiler[0]); err == nil {
				return args
			}
		}
		why = "there is no C compiler (install gcc)"
	} else if len(lines) == 2 {
		if _, err := exec.LookPath("gcc"); err != nil {
			why = "there is no C compiler (install gcc)"
		}
	}
	r.notRun = append(r.notRun, "the race detector: "+why)
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-race" })
}

// event is one line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// report turns the events of go test into what a person reads.
type report struct {
	out                     io.Writer
	outputs                 map[string]*strings.Builder // of tests not yet ended, by package and top-level test
	passed, failed, skipped int
	notRun                  []string // what was not run, one line each
	ran                     []string // the top-level tests that ended: "package Name"
}

// names are the tests that ended, a line each.
func (r *report) names() string {
	slices.Sort(r.ran)
	return strings.Join(append(slices.Compact(r.ran), ""), "\n")
}

// notRunMark is what a test logs before what it did not do on this machine.
var notRunMark = regexp.MustCompile(`\bNOT RUN[: ]+(.+)`)

func (r *report) read(from io.Reader) error {
	r.outputs = map[string]*strings.Builder{}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				fmt.Fprint(r.out, line)
			} else {
				r.event(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) event(e event) {
	top, _, sub := strings.Cut(e.Test, "/")
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output(e, top)
	case "pass", "fail", "skip":
		if e.Test != "" && !sub {
			r.ran = append(r.ran, e.Package+" "+e.Test)
		}
		switch {
		case e.Test == "":
			r.packageEnds(e)
		case e.Action == "skip":
			r.notRun = append(r.notRun, r.why(e, top))
			if !sub {
				r.skipped++
				r.take(e.Package, top)
			}
		case sub:
		case e.Action == "pass":
			r.passed++
			r.take(e.Package, top)
		default:
			r.failed++
			fmt.Fprint(r.out, r.take(e.Package, top))
		}
	}
}

func (r *report) output(e event, top string) {
	if e.Test == "" {
		// "PASS" stands before each "ok" line and says no more.
		if e.Output != "PASS\n" {
			fmt.Fprint(r.out, e.Output)
		}
		return
	}
	if m := notRunMark.FindStringSubmatch(e.Output); m != nil {
		r.notRun = append(r.notRun, e.Test+": "+strings.TrimSpace(m[1]))
	}
	key := e.Package + " " + top
	if r.outputs[key] == nil {
		r.outputs[key] = &strings.Builder{}
	}
	r.outputs[key].WriteString(e.Output)
}

// take returns what a top-level test has printed and forgets it.
func (r *report) take(pkg, top string) string {
	key := pkg + " " + top
	b := r.outputs[key]
	delete(r.outputs, key)
	if b == nil {
		return ""
	}
	return b.String()
}

// why finds the reason of a skip: the last line that the test logged.
func (r *report) why(e event, top string) string {
	reason := "no reason given"
	if b := r.outputs[e.Package+" "+top]; b != nil {
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
				reason = line
			}
		}
	}
	// "file_test.go:12: reason"
	if parts := strings.SplitN(reason, ": ", 2); len(parts) == 2 && strings.Contains(parts[0], ".go:") {
		reason = parts[1]
	}
	return e.Test + ": " + reason
}

// packageEnds prints what tests of a failed package left unfinished: a panic,
// a time-out, an exit.
func (r *report) packageEnds(e event) {
	var keys []string
	for key := range r.outputs {
		if strings.HasPrefix(key, e.Package+" ") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if e.Action == "fail" {
			fmt.Fprint(r.out, r.outputs[key].String())
		}
		delete(r.outputs, key)
	}
}

// finish prints the end of the report and reports whether all is well.
func (r *report) finish(require string) bool {
	fine := r.failed == 0
	if len(r.notRun) > 0 {
		fmt.Fprintf(r.out, "\nNot run (%d):\n", len(r.notRun))
		for _, line := range r.notRun {
			fmt.Fprintf(r.out, "  NOT RUN: %s\n", line)
		}
	} else {
		fmt.Fprintln(r.out, "\nNothing was left out.")
	}
	if len(r.notRun) > 0 && slices.Contains(strings.Split(require, ","), "all") {
		fmt.Fprintln(r.out, "OVERLAYD_TEST_REQUIRE=all wants all of it run.")
		fine = false
	}
	if r.passed == 0 {
		fmt.Fprintln(r.out, "No test passed.")
		fine = false
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return fine
}
