//go:build mutant_completion

package failpoint

// MutantCompletion orders transactions by the time at which their verification was done, instead of the time of their receipt.
const MutantCompletion = true
