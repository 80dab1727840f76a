// Package httpserve is the one place that runs an http.Server: which limits of
// net/http hold, and how a server stops.
//
// # What is set and why
//
//   - MaxHeaderBytes 64 KiB. Protocol limits (16384 bytes of header names and
//     values) are counted by the handler, which can answer in the protocol's
//     shape; net/http's own bound only has to lie well above and answers with
//     bare text.
//   - ReadHeaderTimeout and ReadTimeout end a peer that trickles its request. A
//     long poll is not cut by them: they end with the request's body. A handler
//     that reads a long body moves its own deadline with
//     http.ResponseController.
//   - IdleTimeout ends idle keep-alive connections, parked ones too.
//   - No WriteTimeout: it would count the wait of a long poll. Handlers that
//     write for long set a rolling write deadline.
//   - OPTIONS * is handed to the handler like anything else.
//   - With certificate files: TLS 1.2 or newer, and HTTP/2 for those who ask for
//     it, each of whose requests has the same bounds.
//
// # Invariants
//
//	V1. A listener is bound before Listen returns: its address is final, port 0
//	    included, and a connection made from then on is answered once Serve runs.
//	V2. Serve returns only when nothing of the server runs any more: every
//	    request answered, or cut because the bound was over.
//	V3. While it drains, no new connection is taken, but no request's context is
//	    cancelled: whoever waits is woken by the owner of the wait, so that its
//	    answer is whole. When the bound is over every context is cancelled and
//	    every connection closed.
//	V4. Handshakes look at the files of the certificate, at most once a second,
//	    and what changed is in force from that handshake on, for new connections;
//	    files that cannot be used are told once and the certificate before them
//	    stays. A server never starts without one it was told to have.
//	V5. A handler that only waits may have its connection parked (package
//	    parking): HTTP/1.1 without TLS leaves net/http, and what it held there is
//	    let go. The peer cannot tell: its answer is whole or the connection ends,
//	    what it sends meanwhile is its next request, and that it goes is noticed.
//	    No wake-up is lost: who is woken while he is awake is woken again. V2 and
//	    V3 hold for it: who waits is let wait until the bound, an answer given
//	    meanwhile says that the connection ends, and a parked connection without a
//	    request is closed at once. So is, where connections are heard together, a
//	    new one before its first request: net/http gets it only then, and lets
//	    none begin a request during a drain either.
//
// # A parked connection
//
//	          Park            whole answer       the next request begins
//	net/http ------> waiting -------------> idle -------------------------> net/http
//	                    |                    | ^
//	                    |                    | +-- new, where connections are heard together
//	                    +--------------------+--> closed: half an answer, a panic, the peer's
//	                                              end, IdleTimeout (ReadHeaderTimeout of a
//	                                              new one), a drain, the bound
//
// No goroutine belongs to it while nothing happens: one begins when its sleeper
// is woken and ends when that sleeps again or is done. Meanwhile the server's ears
// hear whether the peer begins its next request or goes: on Linux one goroutine
// with an epoll instance for all of them, which leaves what was sent where it is;
// elsewhere a goroutine each, in a read of one byte. Who is done last, the one that
// answers or the one that hears, gives the connection back. A request may begin
// before the answer to the one before: then the connection goes back with that.
//
// # Goroutines
//
// Serve owns one that takes connections, one that hears, and those of parked
// connections; all have ended when it returns. Certificates are looked at by
// handshakes: nothing runs for them.
package httpserve
