// Package canon reads and writes the JSON of the BRC-192 family: strict
// parsing, the one canonical form (RFC 8785), the digests over it, and the
// scalar spellings (Hex32, Identity, Bytes, U64).
//
// Everything that crosses the wire enters through [Parse] and is compared,
// hashed and signed through [Value.AppendCanonical]. Two objects are equal when
// their canonical bytes are equal (BRC-192 section 1), and nothing else decides.
//
// # Numbers
//
// A JSON number is read as the nearest IEEE 754 double, as every ECMAScript
// peer reads it. It is refused when it has no finite double (1e309) and when it
// is written as non-zero but its nearest double is zero. Whether a number is an
// acceptable protocol integer is a second question, answered by [Value.Int] and
// [Value.CheckIntegers]: integral and at most 2^53-1 in size, whatever the
// spelling (-0, 1.0, 1e0 and 100e-2 are integers; 2^53+1 is not, because its
// nearest double is 2^53).
//
// # Invariants
//
//   - J1. AppendCanonical is RFC 8785: UTF-16 key order, ECMAScript numbers and
//     strings. No member name is special.
//   - J2. Parse accepts exactly one JSON value: no byte order mark, malformed
//     UTF-8, raw control characters, lone surrogates (raw or escaped), repeated
//     names (compared after unescaping), or trailing data.
//   - J3. Spelling never matters: -0, 1.0, 1e0, 100e-2.
//   - J4. Each scalar has one spelling; bounds hold at, and fail one past, the
//     limit.
//   - J5. Digests are domain separated: preimage(T, B) = "BRC-OUTPUT/1/" T 0x00 B.
//   - J6. What parses re-encodes to a fixed point, no input panics, and the
//     memory used is bounded by a constant multiple of the input's length.
//
// # Failure
//
// Every refusal is an [*Error]. Running out of a limit is [TooLarge], never
// [Invalid]. Reason is one of a fixed set of texts and may be shown to a peer;
// Path can hold member names of the input and belongs in a log.
//
// # Concurrency
//
// Values are immutable and may be shared. The package starts no goroutine and
// keeps no state.
//
// # Non-goals
//
// Schemas (see internal/wire), arbitrary precision numbers, streaming, and
// keeping the original spelling of what was read.
package canon
