// Command compare puts overlayd and etcd under the same load and prints how long each takes to deliver a change to many readers.
//
//	go run . [-readers 1,100,500] [-rate 50] [-rounds 5] [-time 5s] [-shared N] [-json FILE] [-html FILE] [-overlayd PROGRAM]
//
// It is a module of its own, so that the product does not depend on what it is compared with. etcd is the server of its own Go
// module, one member with its defaults (a put is flushed before it is acknowledged), in a process of its own; overlayd is an
// `overlayd dev` in a process of its own, with a private Postgres that flushes too, built from this tree unless -overlayd names
// one. Each round measures the public service, the signed service and etcd with every number of readers, in turn.
//
// The generator is that of `overlayd bench fanout`, see internal/bench: appends begin at fixed times; a delivery's time is from the
// call that appends or puts to the moment when the reader has the change. Every reader is a client of its own: with overlayd a
// session and a connection, with etcd an etcd client, a connection and a watch of one prefix. With -shared N etcd is also measured
// with N watches on each client, as programs have them that watch much: that spares etcd connections. The row's transaction and etcd's
// value have the same size. What is not the same: an overlayd reader has verified a body of the protocol, with its scope and, at
// the signed service, its signature, and can resume; an etcd reader has decoded an event.
//
// The crypto floor is readers x 2 x (sign + verify) / processors: what the curve alone takes for a change that goes to all readers,
// measured in the same rounds. The generator takes processor time from what it measures, and an etcd client takes more of it than
// this generator's connections do.
//
// Exit codes: 0; 1 when it could not be measured, or a change was lost or came twice; 2 usage.
package main
