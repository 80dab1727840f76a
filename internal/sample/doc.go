// Package sample makes feed content to start from, load and test with: NDJSON,
// one group body a line, in the shape that an operator posts to a feed.
//
// There are two sources.
//
//   - [Small] tells the story of 36 real transactions of the main chain, with
//     their real BEEF: every output is listed, and listed outputs that another
//     of these transactions spends are spent.
//   - [Generate] makes as many groups as wanted on a chain of its own,
//     [SyntheticNetwork], whose blocks, Merkle paths, scripts and signatures are
//     as valid as real ones. [Options.Headers] gives the headers to check it
//     against.
//
// # Invariants
//
//   - N1: every line is one JSON object that a feed accepts: its evidence passes
//     internal/beef, its key is unique in the stream and within 16..128 of
//     [A-Za-z0-9_-].
//   - N2: the same options give the same bytes, on every machine. Signatures are
//     deterministic (RFC 6979), and no library's random stream is relied on.
//   - N3: an edit meets the row it is about: nothing is spent, withdrawn or
//     changed that is not listed at that point of the stream. Rows with an
//     expiry are left alone, because only the feed's clock knows when they go.
//   - N4: attributes of real transactions are facts about them. Those of
//     generated ones are neutral labels: no people, no works.
//   - N5: memory is proportional to the rows that are listed, not to the length
//     of the stream.
//
// # Failure and ownership
//
// Both functions write until done, until the writer fails, or until the context
// ends, and start no goroutines. A stream that was cut short can be made again
// from its options, and imported again: the keys make that harmless.
//
// # Non-goals
//
// A realistic market, proof of work worth the name (the synthetic headers meet
// the easiest target), or secrecy: anyone can derive the synthetic keys.
package sample
