package vectors

import "github.com/overlayd/overlayd/testvectors"

// order is one entry of "orders".
type order struct {
	ReadyAt  uint64 `json:"readyAt"`
	Depth    uint32 `json:"depth"`
	FirstRaw uint64 `json:"firstRaw"`
	Context  string `json:"context"`
}

// spendingCases are about which spend is selected (R3 to R6).
func spendingCases() []*scene {
	s := begin("child-before-parent", "A child is ready when its parent is received; it takes its place in the order from that, not from its own arrival.", "R3", "R4")
	a := s.pay("a", s.fund.out(0))
	s.pay("b", a.out(0))
	s.chain(2)
	s.Watch = []string{"a:0", "b:0"}
	s.take("b")
	s.expect(value{"states": []string{"b:unresolved"}, "current": []string{}})
	s.take("a")
	s.expect(value{
		"states": []string{"a:selected-final", "b:selected-final"}, "current": []string{"b:0"}, "spent": []string{"a:0->b"},
		"orders": map[string]order{"a": {2, 0, 2, "base"}, "b": {2, 1, 1, "base"}},
	})
	s.restart()
	child := s

	s = begin("first-seen", "Of two spends that exclude each other the one that was ready first is selected, whichever is verified first.", "R3")
	s.pay("a", s.fund.out(0))
	s.pay("b", s.fund.out(0), s.fund.out(1))
	s.chain(2)
	s.Watch = []string{"fund:0", "fund:1", "a:0", "b:0"}
	s.receive("a")
	s.receive("b")
	s.verify("b")
	s.expect(value{"states": []string{"a:pending", "b:pending"}, "current": []string{}})
	s.restart()
	s.verify("a")
	s.expect(value{"states": []string{"a:selected-final", "b:conflicting"}, "current": []string{"a:0", "fund:1"}, "spent": []string{"fund:0->a"}})
	first := s

	s = begin("group-is-ready-whole", "A transaction is not ready before its group is; another group that carries it makes it so, with the position of its first receipt.", "R4")
	s.pay("a", s.fund.out(0))
	x := s.pay("x", s.fund.out(1))
	s.pay("c", x.out(0))
	s.chain(2)
	s.receive("a", "c")
	s.verify("a", "c")
	s.states("a:unresolved", "c:unresolved")
	s.receive("a")
	s.expect(value{"states": []string{"a:selected-final", "c:unresolved"}, "orders": map[string]order{"a": {2, 0, 1, "base"}}})
	group := s

	s = begin("incomplete-reserves-nothing", "What waits for a parent does not keep others from an output, however early it came.", "R4")
	x = s.pay("x", s.fund.out(1))
	s.pay("early", s.fund.out(0), x.out(0))
	s.pay("late", s.fund.out(0))
	s.chain(2)
	s.take("early", "late")
	s.states("early:unresolved", "late:selected-final")
	s.take("x")
	s.states("early:conflicting", "late:selected-final", "x:selected-final")
	incomplete := s

	s = begin("depth-before-txid", "Of what becomes ready at once, what stands on more new transactions comes later, whatever the txids are.", "R3")
	p := s.pay("p", s.fund.out(0))
	deep := s.above("deep", p, p.out(0), s.fund.out(1))
	s.above("flat", deep, s.fund.out(1))
	s.chain(2)
	s.receive("deep", "flat", "p")
	s.verify("deep", "flat", "p")
	s.expect(value{
		"states": []string{"deep:conflicting", "flat:selected-final", "p:selected-final"},
		"orders": map[string]order{"deep": {1, 1, 1, "base"}, "flat": {1, 0, 1, "base"}, "p": {1, 0, 1, "base"}},
	})
	s.restart()
	depth := s

	s = begin("txid-within-a-batch", "Of two that came in one batch the one with the smaller txid came first, in whatever order they were listed and verified.", "R3")
	low := s.pay("low", s.fund.out(0))
	s.above("high", low, s.fund.out(0))
	s.chain(2)
	s.receive("high", "low")
	s.verify("high")
	s.verify("low")
	s.states("high:conflicting", "low:selected-final")
	batch := s

	list := []*scene{child, first, group, incomplete, depth, batch}
	list = append(list, includedCases()...)
	return append(list, finalityCases()...)
}

// includedCases are about what the selected chain holds.
func includedCases() []*scene {
	s := begin("included-beats-first-seen", "What the chain includes is selected, whoever came first; a reorganisation brings the first back.", "R5")
	a := s.pay("a", s.fund.out(0))
	s.pay("ac", a.out(0))
	b := s.pay("b", s.fund.out(0), s.fund.out(1))
	s.chain(2)
	next := s.block(s.tip, "main", b)
	s.view("next", next)
	s.proved("b", b, next)
	s.Watch = []string{"fund:0", "fund:1", "a:0", "ac:0", "b:0"}
	s.take("a", "ac", "b")
	before := value{
		"states": []string{"a:selected-final", "ac:selected-final", "b:conflicting"}, "current": []string{"ac:0", "fund:1"},
		"spent": []string{"a:0->ac", "fund:0->a"},
	}
	s.expect(before)
	s.turn("next")
	s.expect(value{
		"states": []string{"a:conflicting", "ac:dependent-conflict", "b:included"}, "current": []string{"b:0"},
		"spent": []string{"fund:0->b", "fund:1->b"},
	})
	s.restart()
	s.turn("base")
	s.expect(before)
	beats := s

	s = begin("included-with-its-ancestors", "An included transaction brings its ancestors in, though no path shows them.", "R5")
	s.pay("a", s.fund.out(0))
	b = s.pay("b", s.fund.out(0), s.fund.out(1))
	c := s.pay("c", b.out(0))
	s.chain(2)
	next = s.block(s.tip, "main", b, c)
	s.view("next", next)
	s.proved("c", c, next)
	s.take("a", "b", "c")
	s.states("a:selected-final", "b:conflicting", "c:dependent-conflict")
	s.turn("next")
	s.states("a:conflicting", "b:included", "c:included")
	ancestors := s

	s = begin("contradictory-inclusions", "Where the view includes transactions that exclude each other, their component stops as it was.", "R5")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", s.fund.out(0), s.fund.out(1))
	s.pay("q", s.fund.out(2))
	s.chain(2)
	next = s.block(s.tip, "main", a, b)
	s.view("next", next)
	s.proved("a", a, next)
	s.proved("b", b, next)
	s.take("a", "b")
	s.states("a:selected-final", "b:conflicting")
	s.turn("next")
	s.expect(value{"states": []string{"a:pending", "b:pending"}, "stale": []string{"a:selected-final", "b:conflicting"}})
	s.take("q")
	s.expect(value{"states": []string{"a:pending", "b:pending", "q:selected-final"}, "stale": []string{"a:selected-final", "b:conflicting"}})
	s.restart()
	s.turn("base")
	s.states("a:selected-final", "b:conflicting", "q:selected-final")
	contradiction := s

	return []*scene{beats, ancestors, contradiction}
}

// finalityCases are about transactions that are not final, and their versions.
func finalityCases() []*scene {
	version := func(s *scene, name string, sequence, lockTime uint32) {
		s.tx(name, spending{inputs: []from{s.fund.at(0, sequence)}, outputs: []uint64{4000}, lockTime: lockTime})
	}
	s := begin("three-versions", "Each version with a higher sequence replaces the one before, for ever.", "R6")
	version(s, "v1", 1, 3)
	version(s, "v2", 2, 3)
	version(s, "v3", 3, 3)
	s.chain(2)
	s.view("next", s.block(s.tip, "main"))
	s.Watch = []string{"fund:0", "v3:0"}
	s.take("v1", "v2", "v3")
	s.expect(value{"states": []string{"v1:conflicting", "v2:conflicting", "v3:selected-non-final"}, "current": []string{"fund:0"}, "spent": []string{}})
	s.turn("next")
	s.expect(value{"states": []string{"v1:conflicting", "v2:conflicting", "v3:selected-final"}, "current": []string{"v3:0"}, "spent": []string{"fund:0->v3"}})
	s.turn("base")
	s.expect(value{"states": []string{"v1:conflicting", "v2:conflicting", "v3:selected-non-final"}, "current": []string{"fund:0"}, "spent": []string{}})
	s.restart()
	versions := s

	s = begin("versions-the-other-way", "A lower sequence replaces nothing, however late it is verified.", "R3", "R6")
	version(s, "v1", 1, 3)
	version(s, "v2", 2, 3)
	s.chain(2)
	s.receive("v2")
	s.receive("v1")
	s.verify("v1")
	s.verify("v2")
	s.states("v1:conflicting", "v2:selected-non-final")
	lower := s

	s = begin("versions-switched-off", "Without nonFinal what is not final is kept, selects nothing and keeps no place: the first that becomes final is selected.", "R6")
	s.NonFinal = false
	version(s, "v1", 1, 3)
	version(s, "v2", 2, 4)
	s.chain(2)
	next := s.block(s.tip, "main")
	s.view("next", next)
	s.view("later", s.block(next, "main"))
	s.take("v2", "v1")
	s.states("v1:unsupported", "v2:unsupported")
	s.turn("next")
	s.states("v1:selected-final", "v2:unsupported")
	s.turn("later")
	s.states("v1:selected-final", "v2:conflicting")
	s.restart()
	off := s

	s = begin("final-at-a-height", "A lock time is met when it is below the height of the next block, not when it equals it.", "R6")
	version(s, "v", 0, 3)
	s.chain(2) // the next block is the third
	s.view("next", s.block(s.tip, "main"))
	s.take("v")
	s.states("v:selected-non-final")
	s.turn("next")
	s.states("v:selected-final")
	height := s

	s = begin("final-at-a-time", "A lock time is met when it is below the median time of the tip and up to ten blocks before it, not when it equals it.", "R6")
	version(s, "v", 0, genesisTime+blockSeconds)
	s.chain(2) // times of heights 0, 1, 2: the middle one is that of height 1
	next = s.block(s.tip, "main")
	s.view("next", next)
	s.take("v")
	s.states("v:selected-non-final")
	s.turn("next") // four times: the third
	s.states("v:selected-final")
	median := s

	s = begin("final-sequences", "With all sequences final a lock time means nothing.", "R6")
	version(s, "v", sequenceFinal, 1_999_999_999)
	s.chain(2)
	s.take("v")
	s.states("v:selected-final")
	sequences := s

	s = begin("child-of-a-version", "A version that is not final makes no coin: its child is selected when it is final.", "R6")
	v := s.tx("v", spending{inputs: []from{s.fund.at(0, 0)}, outputs: []uint64{4000}, lockTime: 3})
	s.pay("child", v.out(0))
	s.chain(2)
	s.view("next", s.block(s.tip, "main"))
	s.take("v", "child")
	s.states("child:dependent-conflict", "v:selected-non-final")
	s.turn("next")
	s.states("child:selected-final", "v:selected-final")
	of := s

	s = begin("late-verification", "What was verified under a view that is over is not published.", "R3")
	s.pay("a", s.fund.out(0))
	s.chain(1)
	side := s.block(s.tip, "side")
	s.tip = s.block(s.tip, "main")
	s.view("base", s.tip)
	s.view("side", side)
	s.receive("a")
	s.turn("side")
	s.step(testvectors.Step{Op: "verify", Names: []string{"a"}, Context: "base"})
	s.states("a:pending")
	s.verify("a")
	s.states("a:selected-final")
	late := s

	return []*scene{versions, lower, off, height, median, sequences, of, late}
}
