// Package packet judges the reconciliation by published cases: those of the BRC packet, and this project's own
// (testvectors/reconcile). It holds tests only.
//
//	world_test.go      transactions by name, a tree of headers, views, evidence
//	packet_test.go     the published files, read into worlds
//	player_test.go     plays the steps of one case against a store, through the doors that everybody has
//	value_test.go      what a case may ask of a snapshot, and a text of the whole of it
//	stores_test.go     memory, SQLite, Postgres: opened, and opened again
//
// Every step that takes a position in the published rules is one mutation of the store, so positions are comparable
// number for number. Evidence is planned, scripts are run and paths are followed by reconcile/verify, as in production.
//
// # What stands on trust
//
// The published cases name four anchors. root and P are proved first, by their Merkle paths against the view base.
// brc197Parent and brc197Funding are pre-verified: their own parents lie outside the packet. Everything else is verified,
// the covenant input of brc197Retire too.
//
// # Invariants
//
//	V1  A shortened packet fails: scenarios, checkpoints, restarts, rows and inputs are counted.
//	V2  After every restart the whole snapshot is what it was, and an audit finds nothing.
//	V3  The order in which results come changes nothing that a case compares.
//
// # Where the packet is
//
// The published files are not part of this repository. OVERLAYD_BRC_PACKET is the absolute path of their folder; without
// it the tests of them say that they were left out.
package packet
