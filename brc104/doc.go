// Package brc104 authenticates HTTP requests and signs their responses: BRC-103 mutual authentication over the HTTP transport of
// BRC-104, as the official clients speak it. It works on net/http; package echoauth puts it in front of Echo handlers.
//
// It keeps no sessions. A server with the same key and the same ring of secrets goes on where another one stopped.
//
//	client                                                server
//	  | POST /.well-known/auth  identity, nonce C             |
//	  |------------------------------------------------------>|  Handshake: seals N = (C, expiry) for that identity,
//	  |              identity, nonce N, signature over C, N   |  signs, forgets
//	  |<------------------------------------------------------|
//	  | any request  identity, nonce R, your-nonce N, signed  |
//	  |------------------------------------------------------>|  Authenticate: opens N, verifies, asks the replay guard
//	  |              identity, nonce Q, your-nonce C, signed  |
//	  |<------------------------------------------------------|  Seal
//
// # What is signed
//
// A signature is made over the SHA-256 of a payload. VI(n) is the variable-length integer of Bitcoin (1, 3, 5 or 9 bytes, little
// endian), T(s) is VI(length) and the bytes of s, NONE is nine bytes ff.
//
//	request                                     response
//	32  request id                              32  request id, of the request
//	T   method                                  VI  status
//	T   path, escaped, "/" when empty           VI  number of headers
//	T   "?" and query, or NONE                  T,T name and value of each
//	VI  number of headers                       T   body, or NONE when empty
//	T,T name and value of each
//	T   body, or NONE when empty
//
// Headers stand sorted by name, names in lower case. Of a request those are authorization, content-type (what stands before the
// first semicolon, trimmed) and x-bsv-* but not x-bsv-auth*; of a response authorization and the same x-bsv-*. An empty JSON
// body of a POST, PUT, PATCH or DELETE is signed as {}.
//
// Nothing else is covered: not the host, nor any other header of either side, a response's Content-Type and Cache-Control among
// them. What a client must know goes into the body or an x-bsv header.
//
// The key changes with every message (BRC-42, BRC-43). With S the compressed ECDH point of both identities and
//
//	t = HMAC-SHA256(key S, "2-auth message signature-" + nonce of the sender + " " + nonce it answers)
//
// the sender signs with root + t and the other side verifies with the point P + tG. In the handshake the nonces are C and N and
// the payload is the bytes of both; in a request R and N; in a response Q and C. Signatures are ECDSA on secp256k1, RFC 6979,
// DER, low S.
//
// # The session nonce
//
// Nobody but the server reads N. Decoded it is, integers big endian:
//
//	 0   1  version, 1
//	 1   1  length of C, 16 to 96
//	 2   4  epoch of the ring
//	 6   8  when it was issued, Unix milliseconds
//	14   8  when it expires, Unix milliseconds
//	22  12  random; one or two more so that the whole is a multiple of 3 and its base64 has no padding
//	 .   .  C
//	 .  32  HMAC-SHA256 under a secret of the ring over a label, the server's key, the client's key, and all before it
//
// # Invariants
//
//	B1   A request is authenticated only when one signature covers its id, method, path, query, signed headers and body as they
//	     arrived, under the key that its nonce and its session nonce name. Each of those stands in the payload in one way only.
//	B2   A session serves the identity that it was granted to, no other, at no other server key and in no other epoch, and not
//	     at or after its expiry.
//	B3   A response is signed in the session of its own request. Nothing is looked up by identity, so neither another device of
//	     the same identity nor a handshake that anyone sends in its name can disturb it.
//	B4   Whoever has proven nothing leaves nothing: a handshake changes no state, and the peer cache is filled only after a
//	     valid signature. Caches and guard are bounded.
//	B5   A guard lets a request pass once. When it cannot remember any more, it ends sessions and lets no replay through.
//	B6   A signature has one encoding here: strict DER with a low S. The guard names requests by their nonces, so that another
//	     encoding would not make another request.
//	B7   An unsigned answer has a fixed text. Only the one for a stale session carries x-bsv-auth headers: the hint by which the
//	     official clients begin a new session and repeat the request.
//	B8   What Seal signs is what every client reads back: values trimmed and joined, printable ASCII, names that sort alike
//	     everywhere, a body that is not empty.
//	B9   Keys are derived and signatures made and judged as by the official library.
//
// # Threats
//
// Anyone on the path who is not kept out by TLS can read everything, and can change what is not covered. A captured request is
// refused by the node that has seen it; another node that shares the ring, or the same one after a restart, would take it once
// more while its session lives, unless they share a ReplayGuard or the guard begins with the process (NewMemoryGuard). Host and
// scheme are not signed, so the same holds for another origin with the same key and ring: give each origin its own ring.
//
// The counterparty knows t. Whoever learns the private key of one message learns the root key: such keys live inside one call
// and are never handed out or logged. The arithmetic is not constant time.
//
// Handshakes are free for anyone and cost the server a multiplication of a point and a signature, about what a plain signed
// request costs. They wait for one another on half of the processors. Limit their rate by address in front, by delay or by
// closing the connection: the official Go client takes an error status as leave to go on unsigned.
//
// # Goroutines and failure
//
// None are started. When the KeySource or the ReplayGuard fails, requests are refused with an unsigned 503 and handshakes are
// dropped with the connection.
//
// # Non-goals
//
// Certificates (certificateRequest and certificateResponse are refused, none are asked for), payments, WebSockets, and
// authorization: a verified peer is only known, not permitted anything.
package brc104
