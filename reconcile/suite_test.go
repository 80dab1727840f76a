package reconcile_test

import (
	"testing"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/memstore"
	"github.com/overlayd/overlayd/reconcile/storetest"
)

// one runs a case of the common suite in memory, with the same entries for a store
// that is opened again.
func one(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	storetest.RunCase(t, name, func(*testing.T) storetest.Instance {
		b := memstore.New()
		return storetest.Instance{Backend: b, Volatile: true, Reopen: func(*testing.T) reconcile.Backend { return b }}
	})
}

func TestR1_WholeGroupsOnly(t *testing.T)              { one(t, "R1_WholeGroupsOnly") }
func TestR1_InvalidQuarantinesTheGroup(t *testing.T)   { one(t, "R1_InvalidQuarantinesTheGroup") }
func TestR1_UnresolvedKeepsItPending(t *testing.T)     { one(t, "R1_UnresolvedKeepsItPending") }
func TestR2_MembershipTable(t *testing.T)              { one(t, "R2_MembershipTable") }
func TestR2_StaleReplayIsANoOp(t *testing.T)           { one(t, "R2_StaleReplayIsANoOp") }
func TestR2_RetiredGenerationIsFenced(t *testing.T)    { one(t, "R2_RetiredGenerationIsFenced") }
func TestR3_CompletionOrderDoesNotCount(t *testing.T)  { one(t, "R3_CompletionOrderDoesNotCount") }
func TestR4_IncompleteReservesNothing(t *testing.T)    { one(t, "R4_IncompleteReservesNothing") }
func TestR5_InclusionAndReorg(t *testing.T)            { one(t, "R5_InclusionAndReorg") }
func TestR5_ALostAnchorIsRunAgain(t *testing.T)        { one(t, "R5_ALostAnchorIsRunAgain") }
func TestR6_FinalityFollowsTheView(t *testing.T)       { one(t, "R6_FinalityFollowsTheView") }
func TestR7_TheSameAfterEveryReopening(t *testing.T)   { one(t, "R7_TheSameAfterEveryReopening") }
func TestR8_LostReplyIsSettledByTheKey(t *testing.T)   { one(t, "R8_LostReplyIsSettledByTheKey") }
func TestR8_ReplayConflictAndContext(t *testing.T)     { one(t, "R8_ReplayConflictAndContext") }
func TestR8_EquivocationIsBounded(t *testing.T)        { one(t, "R8_EquivocationIsBounded") }
func TestR10_FailedProjectionShowsItsLag(t *testing.T) { one(t, "R10_FailedProjectionShowsItsLag") }
func TestR11_PendingGroupBlocksMembershipNotReceipt(t *testing.T) {
	one(t, "R11_PendingGroupBlocksMembershipNotReceipt")
}
func TestR11_AbsentRowsKeepTheirSequence(t *testing.T)   { one(t, "R11_AbsentRowsKeepTheirSequence") }
func TestR11_ASwapIsOneRevision(t *testing.T)            { one(t, "R11_ASwapIsOneRevision") }
func TestR12_FiniteGenerations(t *testing.T)             { one(t, "R12_FiniteGenerations") }
func TestK3_TheContextIsCheckedTwice(t *testing.T)       { one(t, "K3_TheContextIsCheckedTwice") }
func TestK4_AnInvalidMemberLiftsTheBarrier(t *testing.T) { one(t, "K4_AnInvalidMemberLiftsTheBarrier") }
func TestK6_OutputsAreNeverCurrentByWord(t *testing.T)   { one(t, "K6_OutputsAreNeverCurrentByWord") }
func TestK6_WatchIsContiguous(t *testing.T)              { one(t, "K6_WatchIsContiguous") }
func TestK8_PendingBudgets(t *testing.T)                 { one(t, "K8_PendingBudgets") }
func TestK8_LimitedHoldsNothing(t *testing.T)            { one(t, "K8_LimitedHoldsNothing") }
func TestK8_AStuckGroupIsNoBarrier(t *testing.T)         { one(t, "K8_AStuckGroupIsNoBarrier") }
func TestK8_PlacementsAreNotCrowdedOut(t *testing.T)     { one(t, "K8_PlacementsAreNotCrowdedOut") }
func TestK8_EvidenceBudgets(t *testing.T)                { one(t, "K8_EvidenceBudgets") }
func TestK3_WorkIsListedInPages(t *testing.T)            { one(t, "K3_WorkIsListedInPages") }
