// Package wire knows the closed shapes of the lookup-live profile (BRC-193) and
// of the manifest that selects it (BRC-194): what may be sent, what may be
// believed, and how each is written.
//
// # What is here
//
//	Open, Read, Close      requests, parsed strictly and encoded
//	Batch, Observation     responses, parsed strictly and encoded
//	Error                  the error body and its HTTP status
//	Packet                 signed packets {body, signature} over BRC-77
//	Capabilities           the manifest, its services and profiles
//	CanonicalBase          the one spelling of a base URL
//
// # Invariants
//
//   - W1. Objects are closed at every depth. The only open places are query,
//     rule and profile parameters, and extension values, and those obey the
//     same depth, element, key and number limits.
//   - W2. A request that does not parse is an [*Error] with a fixed text that
//     quotes nothing of the request: invalid, limited (a depth, element, key or
//     size limit), or unsupported (an unknown critical extension). Invalid is
//     found before unsupported.
//   - W3. Absent and present are different: an absent extensions, critical or
//     requiredRulesDigest stays absent in the canonical form.
//   - W4. What parses encodes to the canonical bytes of what was read.
//   - W5. An error body is at most 4096 bytes whatever it is given.
//   - W6. A packet has one signature spelling: 139 to 141 bytes, strict DER, low
//     S, nothing after it, made for the anyone verifier.
//   - W7. Each body is walked a constant number of times and each base64 text
//     decoded once.
//
// No critical extension is installed: every one is unsupported. The storage
// epoch extension ([EpochExtension]) is never critical.
//
// # Failure
//
// Every error returned by a Parse or Verify function is an [*Error], on both
// sides of the wire. Its cause, where there is one, is for the log.
//
// # Concurrency
//
// Nothing here keeps state, blocks or starts a goroutine.
//
// # Non-goals
//
// Continuity between batches, clocks, trust in an identity, BEEF, and HTTP.
package wire
