package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// T is what is needed of a *testing.T or *testing.B.
type T interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	TempDir() string
}

// binaryVariable names a binary that is built already.
const binaryVariable = "OVERLAYD_TEST_BINARY"

// Main builds the binary, runs the tests of a package and returns their exit
// code: `func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }`.
func Main(m interface{ Run() int }) int {
	if variable(binaryVariable) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "overlayd-e2e-")
	if err == nil {
		defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
		var path string
		if path, err = build(dir); err == nil {
			err = os.Setenv(binaryVariable, path)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Binary is the path of an overlayd of this source tree.
func Binary(t T) string {
	t.Helper()
	if path := variable(binaryVariable); path != "" {
		return path
	}
	path, err := build(t.TempDir())
	if err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

func build(dir string) (string, error) {
	path := filepath.Join(dir, "overlayd")
	c := exec.Command("go", "build", "-o", path, "github.com/overlayd/overlayd/cmd/overlayd")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building overlayd: %w\n%s", err, out)
	}
	return path, nil
}

// variable reads the test's environment.
func variable(name string) string {
	for _, pair := range inherited() {
		if key, value, ok := strings.Cut(pair, "="); ok && key == name {
			return value
		}
	}
	return ""
}

// inherited is the environment a child would get.
func inherited() []string { return new(exec.Cmd).Environ() }

// environment is what a process of a test sees (E2).
func environment(more []string) []string {
	var out []string
	for _, pair := range inherited() {
		if !strings.HasPrefix(pair, "OVERLAYD_") {
			out = append(out, pair)
		}
	}
	return append(out, more...)
}
