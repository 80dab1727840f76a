package vectors

import "github.com/overlayd/overlayd/testvectors"

// group is a membership step of source a, or of another.
type group struct {
	source     string
	generation uint64
	sequence   uint64
	id         string
	snapshot   bool
	complete   bool
	unverified bool
	changes    []testvectors.Change
}

func (s *scene) group(g group) {
	step := testvectors.Step{
		Op: "membership", Source: g.source, Generation: g.generation, Sequence: g.sequence, ID: g.id, Complete: g.complete, Changes: g.changes,
	}
	if step.Source == "" {
		step.Source = "a"
	}
	if g.snapshot {
		step.Phase = "snapshot"
	}
	if g.unverified {
		no := false
		step.Verified = &no
	}
	s.step(step)
}

// checked lets a group be checked that was received with unverified.
func (s *scene) checked(generation uint64, id string) {
	s.step(testvectors.Step{Op: "membershipVerified", Source: "a", Generation: generation, ID: id})
}

func listed(outpoints ...string) []testvectors.Change {
	var list []testvectors.Change
	for _, o := range outpoints {
		list = append(list, testvectors.Change{Outpoint: o, Present: true})
	}
	return list
}

func withdrawn(outpoint string) []testvectors.Change {
	return []testvectors.Change{{Outpoint: outpoint}}
}

func (s *scene) memberships(list ...string) {
	if list == nil {
		list = []string{}
	}
	s.expect(value{"memberships": list})
}

// listing begins a case with the mined transaction p, which has three outputs.
func listing(name, about string, rows ...string) *scene {
	s := begin(name, about, rows...)
	p := s.tx("p", spending{inputs: []from{s.fund.out(0)}, outputs: []uint64{1000, 1000, 1000}})
	s.chain(2, p)
	s.proved("p", p, s.tip)
	return s
}

// sourceCases are about what sources say (R1, R2, R8, R11).
func sourceCases() []*scene {
	s := listing("withdrawal-leaves-a-mark", "A withdrawn row keeps its sequence; what is listed again is present again.", "R2", "R11")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0", "p:1")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:0")})
	s.memberships("a/0/p:0/absent/6", "a/0/p:1/present/5")
	s.group(group{sequence: 7, id: "g7", changes: listed("p:0")})
	s.memberships("a/0/p:0/present/7", "a/0/p:1/present/5")
	s.restart()
	mark := s

	s = listing("swap", "The rows of a new generation take the place of the old ones in one revision, when its whole snapshot is accepted; marks of absence go with the old ones.", "R2", "R11")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0", "p:1")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:1")})
	s.group(group{generation: 1, sequence: 8, id: "page1", snapshot: true, changes: listed("p:0"), unverified: true})
	s.group(group{generation: 1, sequence: 8, id: "page2", snapshot: true, complete: true, changes: listed("p:2")})
	s.memberships("a/0/p:0/present/5", "a/0/p:1/absent/6")
	s.restart()
	s.checked(1, "page1")
	s.memberships("a/1/p:0/present/8", "a/1/p:2/present/8")
	swap := s

	s = listing("live-waits-for-the-snapshot", "Nothing live is published before every group of the snapshot is accepted.", "R11")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0"), unverified: true})
	s.group(group{sequence: 6, id: "g6", changes: listed("p:1")})
	s.memberships()
	s.checked(0, "page")
	s.memberships("a/0/p:0/present/5", "a/0/p:1/present/6")
	live := s

	s = listing("withdrawal-waits-its-turn", "A group without evidence waits behind one that is being checked, in its own source only.", "R1", "R11")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: listed("p:1"), unverified: true})
	s.group(group{sequence: 7, id: "g7", changes: withdrawn("p:0")})
	s.group(group{source: "b", sequence: 1, id: "page", snapshot: true, complete: true, changes: listed("p:2")})
	s.memberships("a/0/p:0/present/5", "b/0/p:2/present/1")
	s.restart()
	s.checked(0, "g6")
	s.memberships("a/0/p:0/absent/7", "a/0/p:1/present/6", "b/0/p:2/present/1")
	turn := s

	s = listing("listing-is-no-coin", "A spent output that is listed again is listed, and spent.", "R2")
	s.pay("q", s.named("p").out(0))
	s.Watch = []string{"p:0", "q:0"}
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.take("q")
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:0")})
	s.group(group{sequence: 7, id: "g7", changes: listed("p:0")})
	s.expect(value{
		"states": []string{"p:included", "q:selected-final"}, "current": []string{"q:0"}, "spent": []string{"p:0->q"},
		"memberships": []string{"a/0/p:0/present/7"},
	})
	coin := s

	s = listing("two-sources", "What one source withdraws another still lists.", "R2")
	s.Watch = []string{"p:0"}
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{source: "b", sequence: 9, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:0")})
	s.expect(value{"current": []string{"p:0"}, "memberships": []string{"a/0/p:0/absent/6", "b/0/p:0/present/9"}})
	two := s

	s = listing("other-content", "A group that comes again with other content ends its generation.", "R8")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: listed("p:1")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:1")})
	content := s.fails("equivocation")

	s = listing("same-content", "A group that comes again as it was changes nothing.", "R2")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:0")})
	s.group(group{sequence: 7, id: "g7", changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: withdrawn("p:0")})
	s.memberships("a/0/p:0/present/7")
	same := s

	s = listing("retired-generation", "A generation that was replaced is over for ever.", "R2")
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{generation: 1, sequence: 8, id: "page-1", snapshot: true, complete: true, changes: listed("p:1")})
	s.memberships("a/1/p:1/present/8")
	s.group(group{sequence: 9, id: "g9", changes: listed("p:2")})
	retired := s.fails("context-changed")

	// The purchase is what the published traces of knowledge are played with.
	s = listing("purchase", "A purchase leaves one listing and makes another, in one group.", "R1")
	s.pay("bought", s.fund.out(1), s.named("p").out(0))
	s.view("next", s.block(s.tip, "main"))
	s.Watch = []string{"p:0", "bought:0"}
	s.group(group{sequence: 5, id: "page", snapshot: true, complete: true, changes: listed("p:0")})
	s.group(group{sequence: 6, id: "g6", changes: append(withdrawn("p:0"), listed("bought:0")...)})
	s.expect(value{
		"states": []string{"bought:selected-final", "p:included"}, "current": []string{"bought:0"}, "spent": []string{"p:0->bought"},
		"memberships": []string{"a/0/bought:0/present/6", "a/0/p:0/absent/6"},
	})
	purchase := s

	return []*scene{mark, swap, live, turn, coin, two, content, same, retired, purchase}
}
