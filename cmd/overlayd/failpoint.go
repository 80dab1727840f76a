//go:build failpoint

package main

import (
	"fmt"
	"os"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// A build for the crash lab arms what OVERLAYD_FAILPOINTS says, before anything starts. The variable is then gone: it is no
// setting of a provider.
func init() {
	const variable = "OVERLAYD_FAILPOINTS"
	if err := failpoint.Arm(os.Getenv(variable)); err != nil {
		fmt.Fprintln(os.Stderr, "overlayd:", variable+":", err)
		os.Exit(exitUsage)
	}
	_ = os.Unsetenv(variable)
}
