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
//   - X1: [Bundle.Closure] gives every transaction of the bundle that the target
//     descends from, parents first, and nothing else; a path counts only when it
//     is whole and agrees with itself.
//   - X2: running a script takes bounded time and memory, whatever the script
//     says: its cost is followed before it runs ([ErrLimit]).
//   - X3: an unlocking script that does more than push unlocks nothing.
//
// # What is promised
//
// [CheckOutput] and [CheckSpend] promise structure and the named target, as
// ingest does: no scripts are run and no Merkle path is followed. [Bundle.Verify]
// does both, against a chain tracker of the caller's. [Bundle.Closure], [Prepare]
// and [Prepared.Execute] are the same two as separate steps, for callers that
// look headers up themselves and have outputs from elsewhere.
//
// # Before a script runs
//
// go-sdk's interpreter has no bounds after Genesis: a few bytes of script can ask
// it for gigabytes or for hours. Scripts that are more than a signature and some
// hashes are therefore followed first by a meter that does what they do, except
// that it checks no signature, and adds up what that takes. The meter never says
// that a script fails; that stays with go-sdk.
//
// # Non-goals
//
// Fees, double spends, BRC-95's demand that an Atomic bundle hold nothing but
// ancestors of its subject, and a bound on the whole size, which is the caller's.
// The package starts no goroutines and keeps no state.
package beef
