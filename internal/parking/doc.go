// Package parking is what a handler that has nothing to do but wait asks of the server it runs in: to take its connection out of
// net/http until there is an answer. There it holds two buffers of 4 KiB, one of 2 KiB, the request with its headers and a stack
// of 8 KiB or more; parked it holds no goroutine at all, and what its [Sleeper] does.
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
	// Park takes the connection of a request away from net/http and has s sleep, and answer when it is woken. The caller has read
	// the request's body to its end, has written nothing, and returns at once without using w, r or its context again. When s has
	// written a whole answer the connection goes on with the peer's next request; otherwise, or when s panics, it is closed.
	//
	// False means that nothing was done: this connection or this server has no place.
	Park(w http.ResponseWriter, r *http.Request, s Sleeper) bool
}

// Sleeper is what a parked connection waits for. Its methods are called one after the other: Sleep, Wake, and again until it is done.
type Sleeper interface {
	// Sleep has wake called when something has happened, be it before Sleep was called, and returns at once. wake may be
	// called by anybody at any time, as often as he likes and also when it is over; it blocks for nothing.
	Sleep(wake func())
	// Wake is called on a goroutine of its own after wake was, and when the peer has gone or the server gives up: then ctx has
	// ended, and does so if it happens meanwhile. False: it sleeps on. True: it is over, and w has one whole answer, if there was anybody to
	// answer, whose Content-Length was set before its status was written.
	Wake(ctx context.Context, w http.ResponseWriter) (done bool)
}

type key struct{}

// With offers a lot to the requests of a context.
func With(ctx context.Context, lot Lot) context.Context { return context.WithValue(ctx, key{}, lot) }

// From is the lot of a request's context, or nil.
func From(ctx context.Context) Lot {
	lot, _ := ctx.Value(key{}).(Lot)
	return lot
}
