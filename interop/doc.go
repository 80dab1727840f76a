// Package interop judges the provider by the official clients: Go authhttp of go-sdk, and TypeScript AuthFetch of @bsv/sdk,
// on Node and in Chromium. It holds tests only.
//
//	scenarios_test.go   what each client is put through, written once
//	    |  device.call(...)
//	    +--> authhttp_test.go    the Go client, in this process
//	    +--> driver_test.go      a Node process that is told what to do, line by line:
//	             node/node.mjs       AuthFetch in that process
//	             node/browser.mjs    AuthFetch in a page of another origin, in Chromium
//	kit_test.go         the provider: database, feeds, HTTP server, restarts, and a record of everything it answered
//	demo_test.go        the page that overlayd dev shows, driven in Chromium
//
// The clients check every signature themselves, and refuse or never settle where one does not fit; the record adds what they
// do not tell: that the answers to verified requests were signed, errors among them, and how many handshakes there were.
//
// # Invariants
//
//	I1  A call that does not settle within callTime fails its scenario by name. Nothing waits for a client without a bound.
//	I2  Scenarios share a provider and nothing else: each has its own identities, so that each can be run alone.
//	I3  Every process that a test started is gone when the test is.
//
// # What it needs
//
// Node.js 20 or newer, and the packages that node/package-lock.json names (make interop-deps, or npm ci in that folder);
// for the page Debian's chromium. What is missing is said, and is a failure where OVERLAYD_TEST_REQUIRE names it (node,
// chromium).
package interop
