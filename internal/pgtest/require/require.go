package require

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Env names the variable with the needs whose absence is a failure.
const Env = "OVERLAYD_TEST_REQUIRE"

// Missing reports that what a test would have shown was not run, for lack of need. The caller returns afterwards.
func Missing(t testing.TB, need, what string) {
	t.Helper()
	if slices.ContainsFunc(strings.Split(os.Getenv(Env), ","), func(n string) bool { return strings.TrimSpace(n) == need }) {
		t.Fatalf("%s demands %q, which this machine does not offer: cannot show that %s", Env, need, what)
	}
	t.Logf("NOT RUN for lack of %q: that %s", need, what)
}

// Root tells whether the test may go on as root; if not it has been reported as Missing.
func Root(t testing.TB, what string) bool {
	t.Helper()
	if os.Geteuid() == 0 {
		return true
	}
	Missing(t, "root", what)
	return false
}
