//go:build !failpoint

package failpoint

import "testing"

func TestX1_NothingHappensWithoutTheTag(t *testing.T) {
	if MutantBigserial || MutantLateWait || MutantNoLock || MutantCompletion {
		t.Error("a mutant is compiled in")
	}
	if n := testing.AllocsPerRun(100, func() { Hit(CommitSent) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}
