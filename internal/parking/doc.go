// Package parking is what a handler that has nothing to do but wait asks of the server it runs in: to take its connection out of
// net/http until there is an answer. There it holds two buffers of 4 KiB, one of 2 KiB, the request with its headers and a stack
// of 8 KiB or more; parked it holds two small stacks and what the waiting function closes over.
//
// A server offers a [Lot] in the context of its requests ([With]); a handler looks for one ([From]) and waits by itself where there
// is none, or where it has no place: the answer is the same, byte for byte but for the order of headers.
//
// No goroutines are started here, nothing is kept.
package parking

import (
	"context"
	"net/http"
)

// Lot has places for connections.
type Lot interface {
	// Park takes the connection of a request away from net/http and calls wait on a goroutine of its own, with a context that
	// ends when the peer has gone or the server gives up, and a writer for one whole answer, whose Content-Length is set
	// before its status is written. The caller has read the request's body to its end, has written nothing, and returns
	// at once without using w, r or its context again. When wait returns after a whole answer the connection goes on with the
	// peer's next request; otherwise, or when wait panics, it is closed.
	//
	// False means that nothing was done: this connection or this server has no place.
	Park(w http.ResponseWriter, r *http.Request, wait func(ctx context.Context, w http.ResponseWriter)) bool
}

type key struct{}

// With offers a lot to the requests of a context.
func With(ctx context.Context, lot Lot) context.Context { return context.WithValue(ctx, key{}, lot) }

// From is the lot of a request's context, or nil.
func From(ctx context.Context) Lot {
	lot, _ := ctx.Value(key{}).(Lot)
	return lot
}
