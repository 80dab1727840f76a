// Package openfence is the permanent, compact memory of every lookup session that was ever opened.
//
// A client that never saw the answer to its Open asks again with the same request id, perhaps much later, perhaps at
// another node, perhaps after the session was closed, expired and compacted. It must get the first answer or a refusal,
// never a second snapshot (BRC-193 s8). The fence is what makes that true:
//
//	          Claim                    the session row says
//	absent ----------> open ----------> closed / expired / reset
//	                    |                        |
//	                    +--- same parameters ----+--> first body, or expired
//	                    +--- other parameters -------> conflict
//	                    +--- other capability -------> context-changed
//
// A fence is inserted once and never updated or deleted, so it costs about 130 bytes for ever, index included, and leaves nothing for
// vacuum. What became of the session is told by the session; a fence whose session is gone means expired.
//
// # Invariants
//
//   - O2: one key maps to one parameter digest for ever; Compare answers Conflict for any other.
//   - O3: the key holds no epoch and no manifest; another selection under the same parameters is OtherSelection.
//   - O5: of any number of concurrent Claims of one key exactly one reports true; the others block until it commits or
//     rolls back (an exclusion constraint, READ COMMITTED, ON CONFLICT DO NOTHING: no deadlock, whatever the order).
//   - O6: a claim that is rolled back, or whose connection dies, leaves its key free; one that is committed is found by the next
//     statement of whoever waited.
//   - O11: nothing here is ever deleted, and what Find and Claim touch does not grow with the number of fences (a hash index with room
//     in its buckets).
//   - O15: rows hold keyed digests only. Without the database's fence secret nobody can tell which request id, principal or
//     service a row stands for.
//
// # Transactions
//
// Every method works inside the transaction or on the connection the caller hands in. The package opens none, starts no
// goroutine and holds no state but the secret.
package openfence
