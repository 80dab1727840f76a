// Command brc104 compares package brc104 with the official Go middleware, github.com/bsv-blockchain/go-bsv-middleware, in one
// interleaved run on one machine, and says whether the product's targets are met.
//
//	go run . [-rounds 5] [-requests 400] [-handshakes 20000] [-check]
//
// It is a module of its own, so that the product does not depend on what it is compared with.
//
// Both servers are Echo with one small JSON route, each in a process of its own, started by this one; requests are signed
// beforehand and sent over connections that stay open, and every answer is verified after the measurement. What a request costs
// is the processor time of the server's process, which other work on the machine hardly changes; throughput is by the clock, with
// the load generator on the same processors. Each round measures both servers one after the other, and figures are medians over
// the rounds.
//
// With -check the exit code is 1 when a target is missed.
package main
