// Package spendtest is help for tests of spend reconciliation: histories made at random, and the state that they must lead to,
// computed in the slowest and plainest way.
//
// [Generate] makes a [History]: transactions with real bytes and ids, groups that carry them, and a sequence of receives and
// views. It says nothing of verification: what each transaction turns out to be is in [Tx].Result, and a test reveals it
// when and in which order it likes. The same number gives the same history for ever.
//
// [World] is the oracle. It is told the same facts as the code under test and computes every state from the whole history,
// each time from nothing: all positions, all transactions, no components, no increments. It shares no code with what
// it judges. With Literal set it follows the published reducer word by word, which has neither groups nor anchors.
//
// # Invariants
//
//	M1  Ids are the double hashes of the bytes; no transaction descends from itself; a view holds one root a height.
//	M2  Generate is a function of its arguments.
package spendtest
