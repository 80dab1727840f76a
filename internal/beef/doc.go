// Package beef is the one place where transaction evidence (BEEF) is read.
//
// Three encodings are accepted: BEEF V1 (BRC-62), BEEF V2 (BRC-96) and Atomic
// BEEF (BRC-95) around either. Every door of the product, the client's
// included, comes through here; nothing else may hand BEEF bytes to go-sdk.
//
// # How bytes become a bundle
//
//	bytes -> counting scan -> normal form (V2) -> go-sdk -> Bundle
//
// The scan walks the bytes by hand and believes no count or size until the
// bytes that remain could hold it. Only what passes is handed on, rewritten as
// V2: go-sdk's V1 reader hashes a whole transaction once for every Merkle leaf,
// which turns one small upload into minutes of work, and its V2 reader does not.
// A recover stands behind the scan as a second line, never as the first: running
// out of memory cannot be recovered from.
//
// # Invariants
//
//   - J1: no input makes this package panic, and what it allocates is bounded by
//     a small multiple of the length of the input, whatever the input claims.
//   - J2: a transaction is named by its txid and found by it. The txid is the
//     double SHA-256 of the raw bytes in the bundle. "The last transaction" is
//     never taken, and the order of the bundle means nothing here.
//   - J3: the target's raw bytes are present. Ancestors may be txid-only, the
//     target may not.
//   - J4: one bundle has one reading. Trailing bytes, sizes not written in their
//     shortest form, extended-format transactions, a transaction listed twice and
//     unknown flags are refused.
//   - J5: an Atomic BEEF proves its own subject and nothing else.
//   - J6: what parses re-encodes ([Bundle.V2]) to a fixed point.
//
// # What is promised
//
// [CheckOutput] and [CheckSpend] promise structure and the named target, as
// ingest does: no scripts are run and no Merkle path is followed. [Bundle.Verify]
// does both, against a chain tracker of the caller's.
//
// # Non-goals
//
// Fees, double spends, BRC-95's demand that an Atomic bundle hold nothing but
// ancestors of its subject, and a bound on the whole size, which is the caller's.
// The package starts no goroutines and keeps no state.
package beef
