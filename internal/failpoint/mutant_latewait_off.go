//go:build !mutant_latewait

package failpoint

// MutantLateWait makes a poll look first and register then.
const MutantLateWait = false
