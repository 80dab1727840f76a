package main

import "testing"

// TestOutOfTime: a finding is a finding, at whatever second it comes.
func TestOutOfTime(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]bool{
		"--- FAIL: FuzzX (60.17s)\n    context deadline exceeded\nFAIL\n":                                                     true,
		"--- FAIL: FuzzX (60.17s)\n    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n": false,
		"--- FAIL: FuzzX (1.20s)\n    x_test.go:7: it broke\nFAIL\n":                                                          false,
		"": false,
	} {
		if outOfTime(output) != want {
			t.Errorf("%q", output)
		}
	}
}
