package storetest

import "testing"

// Case is one behaviour of a store of knowledge.
type Case struct {
	Name string // begins with the row or the invariant that it shows
	Run  func(t *testing.T, k *Kit)
}

// Roots are the trusted transactions of the suite.
var Roots = []Tx{Root(1001), Root(1002), Root(1003), Root(1004)}

// Cases are the behaviours, in the order of the rows.
func Cases() []Case {
	return []Case{
		{Name: "R1_WholeGroupsOnly", Run: wholeGroupsOnly},
		{Name: "R1_InvalidQuarantinesTheGroup", Run: invalidQuarantines},
		{Name: "R1_UnresolvedKeepsItPending", Run: unresolvedStays},
		{Name: "R2_MembershipTable", Run: membershipTable},
		{Name: "R2_StaleReplayIsANoOp", Run: staleReplay},
		{Name: "R2_RetiredGenerationIsFenced", Run: retiredIsFenced},
		{Name: "R3_CompletionOrderDoesNotCount", Run: completionOrder},
		{Name: "R4_IncompleteReservesNothing", Run: incompleteReservesNothing},
		{Name: "R5_InclusionAndReorg", Run: inclusionAndReorg},
		{Name: "R5_ALostAnchorIsRunAgain", Run: lostAnchor},
		{Name: "R6_FinalityFollowsTheView", Run: finalityFollows},
		{Name: "R7_TheSameAfterEveryReopening", Run: reopening},
		{Name: "R8_LostReplyIsSettledByTheKey", Run: lostReply},
		{Name: "R8_ReplayConflictAndContext", Run: replayAndConflict},
		{Name: "R8_EquivocationIsBounded", Run: equivocationIsBounded},
		{Name: "R10_FailedProjectionShowsItsLag", Run: failedProjection},
		{Name: "R11_PendingGroupBlocksMembershipNotReceipt", Run: pendingBlocksMembership},
		{Name: "R11_AbsentRowsKeepTheirSequence", Run: absentRowsKeep},
		{Name: "R11_ASwapIsOneRevision", Run: swapIsOne},
		{Name: "R12_FiniteGenerations", Run: finiteGenerations},
		{Name: "K3_TheContextIsCheckedTwice", Run: contextIsChecked},
		{Name: "K3_WorkIsListedInPages", Run: workIsListed},
		{Name: "K4_AnInvalidMemberLiftsTheBarrier", Run: barrierLifts},
		{Name: "K6_OutputsAreNeverCurrentByWord", Run: neverByWord},
		{Name: "K6_WatchIsContiguous", Run: watchIsContiguous},
		{Name: "K8_PendingBudgets", Run: pendingBudgets},
		{Name: "K8_LimitedHoldsNothing", Run: limitedHoldsNothing},
		{Name: "K8_AStuckGroupIsNoBarrier", Run: stuckIsNoBarrier},
		{Name: "K8_EvidenceBudgets", Run: evidenceBudgets},
		{Name: "K8_PlacementsAreNotCrowdedOut", Run: crowded},
	}
}

// Run holds a store to everything: its keys, and the knowledge kept in them.
func Run(t *testing.T, open func(t *testing.T) Instance) {
	RunBackend(t, open)
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			RunCase(t, c.Name, open)
		})
	}
}

// RunCase runs one case and audits what it left.
func RunCase(t *testing.T, name string, open func(t *testing.T) Instance) {
	t.Helper()
	for _, c := range Cases() {
		if c.Name == name {
			k := NewKit(t, open(t), Trust(Roots...))
			defer func() {
				if err := k.Store.Close(); err != nil {
					t.Error(err)
				}
			}()
			c.Run(t, k)
			if !t.Failed() {
				k.Audit()
			}
			return
		}
	}
	t.Fatalf("there is no case %s", name)
}
