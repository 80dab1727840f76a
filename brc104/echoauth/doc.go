// Package echoauth puts BRC-104 authentication (package brc104) in front of Echo handlers.
//
//	request -> headers -> session -> whole body -> signature -> replay -> handler -> gate -> sign -> gate -> response
//
// A handler's response is kept until it is whole, so what leaves is signed and complete or does not leave. Echo's error handler
// and a recover stand inside: whatever goes wrong after the request has proven who it is from is answered with a signature too.
//
// # Invariants
//
//	M1  After a valid signature every response is signed: errors, panics and refusals of a gate included. Before it there are
//	    only unsigned errors that hold nothing private.
//	M2  A response of an authenticated request has a body, unless it answers a HEAD: clients cannot verify an empty one.
//	M3  The gate is asked before signing and again after signing, right before writing. What it refuses never leaves: neither
//	    its body, nor its status, nor a header that the handler set. The refusal itself is signed and not put to the gate.
//	M4  No handler sees more than MaxRequest bytes of body, and no response is longer than MaxResponse.
//	M5  A request with any part of an authentication is never treated as anonymous.
//	M6  A body handed over by Blob is neither copied nor changed.
//
// # Gate
//
// Two questions narrow the window between judging a body and sending it; they do not close it. To close it, the gate and
// whatever withdraws permission must read and write the same record in one order, and a body counts as sent when the last
// question was answered.
//
// # Goroutines
//
// None are started. Everything happens on the goroutine of the request.
//
// # Non-goals
//
// Streaming, upgrades, and certificates. CORS and limits of rate stand in front.
package echoauth
