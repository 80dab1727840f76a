//go:build !mutant_bigserial

package failpoint

// MutantBigserial takes sequences from a counter, without the head lock and before the commit, and lets readers trust what is visible: a plain
// bigserial cursor.
const MutantBigserial = false
