package vectors

import "slices"

// evidenceCases are about what counts as proof, and what a bad proof may spoil (R9).
func evidenceCases() []*scene {
	return slices.Concat(namedCases(), brokenCases(), scriptCases(), placeCases())
}

// namedCases are about which transaction evidence is about.
func namedCases() []*scene {
	s := begin("proved-output", "An output is shown by its transaction and a Merkle path to a header of the selected chain.", "R9")
	a := s.pay("a", s.fund.out(0))
	s.chain(2, a)
	s.beef("a", bundle{subject: a, entries: []entry{{tx: a, in: s.tip}}})
	s.Watch = []string{"a:0", "fund:0"}
	s.output("a", "a", 0, "")
	s.expect(value{"states": []string{"a:included"}, "current": []string{"a:0"}, "spent": []string{"fund:0->a"}})
	proved := s

	s = begin("target-is-not-last", "The target is found by its txid, wherever it stands in the bundle; what is not its ancestor is not taken from it.", "R9")
	a = s.pay("a", s.fund.out(0))
	b := s.pay("b", s.fund.out(1))
	s.chain(2, a, b)
	s.beef("both", bundle{entries: []entry{{tx: a, in: s.tip}, {tx: b, in: s.tip}}})
	s.output("both", "a", 0, "")
	s.states("a:included")
	first := s

	s = begin("spend-shown", "A spend is shown when its transaction consumes exactly the outpoint.", "R9")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", s.fund.out(1), a.out(0))
	s.chain(2, a)
	s.beef("b", bundle{entries: []entry{{tx: a, in: s.tip}, {tx: b}}})
	s.Watch = []string{"a:0", "b:0"}
	s.spends("b", "b", "a:0", "")
	s.expect(value{"states": []string{"a:included", "b:selected-final"}, "current": []string{"b:0"}, "spent": []string{"a:0->b"}})
	spend := s

	s = begin("spends-something-else", "A transaction that does not consume the outpoint shows no spend of it; the transaction itself is as good as before.", "R1", "R9")
	s.pay("a", s.fund.out(0))
	s.chain(2)
	s.beef("a", bundle{entries: []entry{{tx: s.named("a")}}})
	s.spends("a", "a", "fund:1", "invalid")
	s.states("a:unresolved")
	s.take("a")
	s.states("a:selected-final")
	other := s

	s = begin("no-such-output", "An index that the transaction does not have shows no output.", "R1", "R9")
	a = s.pay("a", s.fund.out(0))
	s.chain(2, a)
	s.proved("a", a, s.tip)
	s.output("a", "a", 1, "")
	noOutput := s.fails("invalid")

	s = begin("atomic-about-another", "An Atomic BEEF shows its own subject and nothing else.", "R9")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", s.fund.out(1))
	s.chain(2, a, b)
	s.beef("b", bundle{subject: b, entries: []entry{{tx: a, in: s.tip}, {tx: b, in: s.tip}}})
	s.output("b", "a", 0, "")
	atomic := s.fails("invalid")

	s = begin("target-absent", "A bundle without the target shows nothing of it.", "R9")
	s.pay("a", s.fund.out(0))
	b = s.pay("b", s.fund.out(1))
	s.chain(2, b)
	s.proved("b", b, s.tip)
	s.output("b", "a", 0, "")
	absent := s.fails("invalid")

	s = begin("target-by-txid-alone", "A target that is only named is not shown, and not refuted.", "R9")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", a.out(0))
	s.chain(2)
	s.beef("b", bundle{entries: []entry{{tx: a, idOnly: true}, {tx: b}}})
	s.output("b", "a", 0, "")
	idOnly := s.fails("unresolved")

	s = begin("ancestor-by-txid-alone", "An ancestor that is only named is waited for; when another source brings it, everything stands.", "R4", "R9")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", a.out(0))
	s.chain(2)
	s.beef("b", bundle{entries: []entry{{tx: a, idOnly: true}, {tx: b}}})
	s.receive("b")
	s.verify("b")
	s.states("b:unresolved")
	s.take("a")
	s.states("a:selected-final", "b:selected-final")
	ancestor := s

	s = begin("mined-parent-in-v1", "A BEEF V1 brings the mined parent of a transaction that is not mined.", "R9")
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", a.out(0))
	s.chain(2, a)
	s.beef("b", bundle{v1: true, entries: []entry{{tx: a, in: s.tip}, {tx: b}}})
	s.output("b", "b", 0, "")
	s.states("a:included", "b:selected-final")
	v1 := s

	s = begin("too-many-ancestors", "Evidence that leads to more transactions than the bound is limited: no verdict, and no coin.", "R9")
	s.MaxTransactions = 2
	a = s.pay("a", s.fund.out(0))
	b = s.pay("b", a.out(0))
	c := s.pay("c", b.out(0))
	s.chain(2)
	s.beef("c", bundle{entries: []entry{{tx: a}, {tx: b}, {tx: c}}})
	s.output("c", "c", 0, "")
	limited := s.fails("limited")

	return []*scene{proved, first, spend, other, noOutput, atomic, absent, idOnly, ancestor, v1, limited}
}

// brokenCases have evidence that no reader may take.
func brokenCases() []*scene {
	one := func(name, about string, broken func(s *scene, whole []byte) []byte) *scene {
		s := begin(name, about, "R1", "R9")
		a := s.pay("a", s.fund.out(0))
		s.chain(2, a)
		whole := bundle{entries: []entry{{tx: a, in: s.tip}}}
		s.proved("a", a, s.tip)
		s.broken("broken", broken(s, whole.write()))
		s.output("broken", "a", 0, "")
		return s.fails("invalid")
	}
	list := []*scene{
		one("cut-short", "Evidence that ends early is no evidence.", func(_ *scene, b []byte) []byte { return b[:len(b)-1] }),
		one("byte-too-many", "Evidence with a byte after it is no evidence.", func(_ *scene, b []byte) []byte { return append(b, 0) }),
		one("count-that-lies", "A count is believed no further than the bytes go.", func(*scene, []byte) []byte {
			return append([]byte{2, 0, 0xbe, 0xef, 0}, 0xfe, 0xff, 0xff, 0xff, 0xff)
		}),
		one("long-count", "Counts are written in their shortest form.", func(s *scene, b []byte) []byte {
			return append([]byte{2, 0, 0xbe, 0xef, 0, 0xfd, 1, 0, 0}, s.named("a").raw...)
		}),
		one("listed-twice", "No transaction stands in a bundle twice.", func(s *scene, b []byte) []byte {
			return bundle{entries: []entry{{tx: s.named("a")}, {tx: s.named("a")}}}.write()
		}),
		one("path-with-a-hole", "A Merkle path without one of its siblings leads nowhere.", func(s *scene, b []byte) []byte {
			return bundle{entries: []entry{{tx: s.named("a"), in: s.tip, hole: true}}}.write()
		}),
	}
	s := begin("bad-variant-does-not-poison", "What one source spoils, another shows: each variant of the evidence stands for itself.", "R1", "R9")
	a := s.pay("a", s.fund.out(0))
	s.chain(2, a)
	s.proved("a", a, s.tip)
	s.broken("cut", bundle{entries: []entry{{tx: a, in: s.tip}}}.write()[:200])
	s.output("cut", "a", 0, "invalid")
	s.states()
	s.output("a", "a", 0, "")
	s.states("a:included")
	return append(list, s)
}

// scriptCases have transactions that no chain may hold.
func scriptCases() []*scene {
	one := func(name, about, fault string, wrong func(s *scene) spending) *scene {
		s := begin(name, about, "R1", "R9")
		bad := s.bad("bad", fault, wrong(s))
		s.pay("a", s.fund.out(0))
		s.chain(2)
		s.beef("bad", bundle{entries: []entry{{tx: bad}}})
		s.spends("bad", "bad", "fund:0", "invalid")
		s.take("a")
		s.expect(value{"states": []string{"a:selected-final", "bad:invalid"}})
		s.restart()
		return s
	}
	return []*scene{
		one("bad-signature", "A script that fails makes its transaction invalid, and it reserves nothing.", "script", func(s *scene) spending {
			return spending{inputs: []from{s.fund.out(0)}, outputs: []uint64{3000}, spoil: true}
		}),
		one("second-input-fails", "Every input counts, not only the one that was asked for.", "script", func(s *scene) spending {
			in := s.fund.out(1)
			in.unlock = []byte{0x51}
			return spending{inputs: []from{s.fund.out(0), in}, outputs: []uint64{3000}}
		}),
		one("code-before-the-signature", "An unlocking script pushes data and does nothing else.", "script", func(s *scene) spending {
			in := s.fund.out(0)
			in.before = []byte{0x61} // OP_NOP
			return spending{inputs: []from{in}, outputs: []uint64{3000}}
		}),
		one("makes-more-than-it-takes", "Outputs are worth no more than inputs.", "values", func(s *scene) spending {
			return spending{inputs: []from{s.fund.out(0)}, outputs: []uint64{5001}}
		}),
		one("takes-twice", "An output is consumed once, in one transaction too.", "inputs", func(s *scene) spending {
			return spending{inputs: []from{s.fund.out(0), s.fund.out(0)}, outputs: []uint64{9000}}
		}),
	}
}

// placeCases are about which chain a Merkle path leads to.
func placeCases() []*scene {
	s := begin("forged-path", "A path to a root that no known block has, at a height that the chain has, is a forgery; the transaction is not to blame.", "R1", "R9")
	a := s.pay("a", s.fund.out(0))
	s.chain(2)
	s.beef("a", bundle{entries: []entry{{tx: a, in: mine(mine(nil, "nowhere"), "nowhere", a)}}})
	s.output("a", "a", 0, "invalid")
	s.beef("alone", bundle{entries: []entry{{tx: a}}})
	s.receiveAs("a", "alone")
	s.verify("a")
	s.states("a:selected-final")
	forged := s

	s = begin("other-branch", "A path to another branch shows no inclusion; with its parents known the transaction stands by its scripts.", "R5", "R9")
	a = s.pay("a", s.fund.out(0))
	s.chain(1)
	side := s.block(s.tip, "side", a)
	s.tip = s.block(s.tip, "main")
	s.view("base", s.tip)
	s.view("side", side)
	s.proved("a", a, side)
	s.output("a", "a", 0, "")
	s.states("a:selected-final")
	s.turn("side")
	s.states("a:included")
	s.turn("base")
	s.states("a:selected-final")
	s.restart()
	branch := s

	s = begin("other-branch-alone", "A path to another branch waits for its branch when nothing else shows the transaction.", "R5", "R9")
	x := s.pay("x", s.fund.out(0))
	a = s.pay("a", x.out(0))
	s.chain(1)
	side = s.block(s.tip, "side", a)
	s.tip = s.block(s.tip, "main")
	s.view("base", s.tip)
	s.view("side", side)
	s.proved("a", a, side)
	s.receive("a")
	s.verify("a")
	s.states("a:unresolved")
	s.turn("side")
	s.states("a:included")
	waits := s

	s = begin("next-block", "A path to a block above the tip is neither believed nor held against its source.", "R9")
	x = s.pay("x", s.fund.out(0))
	a = s.pay("a", x.out(0))
	s.chain(2)
	next := s.block(s.tip, "main", a)
	s.view("next", next)
	s.proved("a", a, next)
	s.receive("a")
	s.verify("a")
	s.states("a:unresolved")
	s.turn("next")
	s.states("a:included")
	above := s

	s = begin("young-coinbase", "The first transaction of a block counts when the chain is 100 blocks further, not before.", "R9")
	s.chain(2)
	s.enter("reward", s.tip.txs[0], "")
	s.proved("reward", s.tip.txs[0], s.tip)
	s.output("reward", "reward", 0, "")
	young := s.fails("unresolved")

	s = begin("ripe-coinbase", "A coinbase at height 2 counts at height 102.", "R9")
	s.chain(2)
	in := s.tip
	s.enter("reward", in.txs[0], "")
	s.proved("reward", in.txs[0], in)
	for s.tip.height < 101 {
		s.tip = s.block(s.tip, "main")
	}
	s.view("base", s.tip)
	s.view("ripe", s.block(s.tip, "main"))
	s.Watch = []string{"reward:0"}
	s.receive("reward")
	s.verify("reward")
	s.expect(value{"states": []string{"reward:unresolved"}, "current": []string{}})
	s.turn("ripe")
	s.expect(value{"states": []string{"reward:included"}, "current": []string{"reward:0"}})
	ripe := s

	s = begin("anchor-lost", "What only a path has shown is not resolved any more when a reorganisation takes the path away.", "R5")
	x = s.pay("x", s.fund.out(0))
	a = s.pay("a", x.out(0))
	s.chain(1)
	side = s.block(s.tip, "side")
	s.tip = s.block(s.tip, "main", a)
	s.view("base", s.tip)
	s.view("side", side)
	s.proved("a", a, s.tip)
	s.Watch = []string{"a:0"}
	s.output("a", "a", 0, "")
	s.expect(value{"states": []string{"a:included"}, "current": []string{"a:0"}})
	s.turn("side")
	s.expect(value{"states": []string{"a:unresolved"}, "current": []string{}})
	s.restart()
	s.turn("base")
	s.expect(value{"states": []string{"a:included"}, "current": []string{"a:0"}})
	lost := s

	return []*scene{forged, branch, waits, above, young, ripe, lost}
}

// named is the transaction of a name.
func (s *scene) named(name string) *tx {
	for t, n := range s.names {
		if n == name {
			return t
		}
	}
	panic("no transaction " + name)
}
