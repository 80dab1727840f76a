//go:build mutant_nolock

package failpoint

// MutantNoLock makes the compactor ask its horizon before it moves the floor, without the advisory lock that keeps Opens away.
const MutantNoLock = true
