// Package operator is the HTTP API for the engines that feed a provider and the
// people who run it. It has a listener of its own and never shares one with the
// public API.
//
// # Endpoints
//
//	POST /operator/v1/feeds/{feed}/groups   append one group
//	POST /operator/v1/feeds/{feed}/import   append NDJSON groups, answered line by line
//	GET  /operator/v1/feeds                 what every feed holds
//	GET  /operator/v1/feeds/{feed}          what one feed holds
//	PUT, DELETE /operator/v1/feeds/{feed}/prohibitions/{txid}.{outputIndex}
//	                                        stop a row from being served, or allow it again
//	POST /operator/v1/feeds/{feed}/epoch    begin a new epoch: retire or break the old one
//	GET  /operator/v1/quotas                what clients hold of what they may
//	GET  /operator/v1/sessions              who reads: ?service= and ?principal= choose
//	DELETE /operator/v1/sessions/{ref}      end a session for ever
//	PUT, DELETE /operator/v1/services/{service}/grants/{identity}
//	                                        admit an identity, or end that and its sessions
//	GET  /metrics                           Prometheus
//	GET  /debug/pprof/{name}                profiles of the process: profile and trace over ?seconds=, heap, goroutine, ...
//	GET  /healthz                           the process lives          (no token)
//	GET  /readyz                            requests can be served now (no token)
//
// Everything else is 404; another method is 405 with Allow. Errors have the
// shape of BRC-193 s6.
//
// # Invariants
//
//	P1. Without the bearer token nothing is disclosed but liveness and readiness,
//	    not even which paths exist. Tokens are compared in constant time.
//	P2. A reply is given after the commit it speaks of, never before.
//	P3. An import answers its lines in their order, exactly one answer a line
//	    that holds anything, and never reads further ahead than its window
//	    (groups and bytes): memory is bounded whatever is sent.
//	P4. A line at fault is answered and skipped. A group that could not be
//	    appended for now is answered and ends the stream: whoever sends the rest
//	    again, beginning with that line, appends nothing twice. What was under way
//	    behind it is not appended either, so that the order is the file's.
//	P5. What a peer reads is fixed public text; causes go to the log.
//	P6. What orders something says whether it changed anything and may be
//	    repeated without harm. A listing is whole or no JSON.
//
// An import runs on the goroutine of its request, which writes, and one that
// reads; both have ended when the handler returns. [API.Drain] makes imports stop
// reading, answer what they have taken and end.
package operator
