package client_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// newIdentity draws another provider's key.
func newIdentity(t testing.TB) (*ec.PrivateKey, string) {
	t.Helper()
	key, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, hex.EncodeToString(key.PubKey().Compressed())
}

// What is not signed as it stands is refused for that, whatever else is wrong
// with it, and nothing of it is recorded or shown.
func TestC1_SignatureComesFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		bend func(a *reply, before *reply)
	}{
		{"body", func(a, _ *reply) { a.body = append(a.body, ' ') }},
		{"body that is no JSON", func(a, _ *reply) { a.body = []byte("<html>") }},
		{"empty body", func(a, _ *reply) { a.body = nil }},
		{"echo", func(a, _ *reply) { a.header.Set(wire.HeaderProfile, "urn:test:other") }},
		{"more headers than allowed", func(a, _ *reply) {
			a.header.Set("X-Padding", strings.Repeat("x", wire.MaxHeaderBytes))
			a.header.Set("X-Bsv-More", "1")
		}},
		{"content encoding", func(a, _ *reply) { a.header.Set("Content-Encoding", "gzip"); a.body = append(a.body, ' ') }},
		{"no signature", func(a, _ *reply) { a.header.Del(brc104.HeaderSignature) }},
		{"no authentication", func(a, _ *reply) {
			for name := range a.header {
				if brc104.Authentication(name) {
					delete(a.header, name)
				}
			}
		}},
		{"two signatures", func(a, _ *reply) { a.header.Add(brc104.HeaderSignature, a.header.Get(brc104.HeaderSignature)) }},
		{"another identity", func(a, _ *reply) { a.header.Set(brc104.HeaderIdentityKey, principal(newKey(9))) }},
		{"the answer to another request", func(a, before *reply) { *a = *before }},
	} {
		for at, endpoint := range []string{"capabilities", "open", "read"} {
			if at < 2 && c.name != "body" && c.name != "no authentication" {
				continue // the one way of all requests
			}
			t.Run(c.name+" at "+endpoint, func(t *testing.T) {
				t.Parallel()
				f := newFake(t).signing().seed(2)
				var forging atomic.Bool
				forging.Store(true)
				var before *reply
				f.forge = func(e string, n int, a *reply) {
					if e == endpoint && n == 1 && forging.Load() {
						if before == nil {
							before = &reply{status: a.status, header: a.header.Clone(), body: a.body}
							before.header.Set(brc104.HeaderRequestID, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
						}
						c.bend(a, before)
						return
					}
					before = &reply{status: a.status, header: a.header.Clone(), body: a.body}
				}
				r, s := signedFollower(t, f)
				violated(t, r.follow(t), client.RuleSignature)
				if want := []int{0, 0, 4}[at]; len(r.events) != want { // a snapshot of two rows in one page
					t.Fatalf("events %v", r.kinds())
				}
				if src := sources(t, s)[0]; src.Ended != nil {
					t.Fatalf("the generation ended: %+v", src.Ended)
				}
				forging.Store(false)
				r.must(t)
				if got := present(rows(t, s, sqlitestate.Current)); !maps.Equal(got, f.truth()) {
					t.Fatalf("state has %v", got)
				}
				f.allSigned(t)
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(f.sessions) != 1 {
					t.Fatalf("%d sessions", len(f.sessions))
				}
			})
		}
	}
}

// What comes without a signature ends nothing, pays nothing, moves nothing and
// is not waited for: at most it is a reason to try again.
func TestC1_UnsignedAnswerIsNotBelieved(t *testing.T) {
	t.Parallel()
	hour := uint32(3600_000)
	for _, c := range []struct {
		name    string
		answer  func(w http.ResponseWriter)
		retried bool
	}{
		{"reset-required", func(w http.ResponseWriter) { refuse(w, &wire.Error{Code: wire.ResetRequired, Message: "open again"}) }, false},
		{"expired", func(w http.ResponseWriter) { refuse(w, &wire.Error{Code: wire.Expired, Message: "over"}) }, false},
		{"context-changed", func(w http.ResponseWriter) { refuse(w, &wire.Error{Code: wire.ContextChanged, Message: "changed"}) }, false},
		{"unauthorized", func(w http.ResponseWriter) { refuse(w, &wire.Error{Code: wire.Unauthorized, Message: "you are out"}) }, true},
		{"unavailable for an hour", func(w http.ResponseWriter) { refuse(w, unavailable(hour)) }, true},
		{"payment", func(w http.ResponseWriter) { w.WriteHeader(http.StatusPaymentRequired); _, _ = w.Write([]byte("{}")) }, false},
		{"redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", "/overlay/v1/lookup/open")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, false},
		{"gateway", func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway); _, _ = w.Write([]byte("<html>")) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, f *fake, r *run) {
				f.signing()
				r.as(newKey(1))
				standing := true
				f.stand = func(w http.ResponseWriter, q *http.Request, endpoint string, n int) bool {
					if endpoint != "read" || !standing || c.retried && n > 2 {
						return false
					}
					for _, name := range []string{wire.HeaderCapability, wire.HeaderProfile} {
						w.Header().Set(name, q.Header.Get(name)) // in the protocol's own shape
					}
					c.answer(w)
					return true
				}
				start := time.Now()
				err := r.follow(t)
				if c.retried {
					if err != nil {
						t.Fatal(err)
					}
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("waited %v because nobody asked for it", took)
					}
				} else if e, ok := errors.AsType[*client.UnverifiedError](err); !ok {
					t.Fatalf("error %v, want an unverified answer", err)
				} else {
					violated(t, e.Err, client.RuleSignature)
				}
				for _, kind := range r.kinds() {
					if strings.HasPrefix(kind, "ended") {
						t.Errorf("events %v", r.kinds())
					}
				}
				standing = false
				r.must(t)
				if n := len(f.seen("open")); n != 1 || len(f.sessions) != 1 {
					t.Errorf("%d opens, %d sessions", n, len(f.sessions))
				}
				f.allSigned(t)
			})
		})
	}
}

// A handshake that fails, in whatever way, is tried again; nothing is ever sent
// without a signature instead.
func TestC1_HandshakeThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"not found":    func(w http.ResponseWriter) { w.WriteHeader(404) },
		"unauthorized": func(w http.ResponseWriter) { refuse(w, &wire.Error{Code: wire.Unauthorized, Message: "no"}) },
		"payment":      func(w http.ResponseWriter) { w.WriteHeader(402) },
		"busy":         func(w http.ResponseWriter) { w.WriteHeader(429) },
		"redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusPermanentRedirect)
		},
		"no JSON":  func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) },
		"too long": func(w http.ResponseWriter) { _, _ = w.Write(bytes.Repeat([]byte(" "), brc104.MaxHandshakeBytes+1)) },
		"no session": func(w http.ResponseWriter) {
			_, _ = fmt.Fprintf(w, `{"version":"0.1","messageType":"initialResponse","identityKey":%q,"initialNonce":"AAAA","yourNonce":"AAAA","signature":[]}`, principal(newKey(9)))
		},
		"cut": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timed(t, func(t *testing.T, f *fake, r *run) {
				f.signing()
				r.as(newKey(1))
				f.stand = func(w http.ResponseWriter, _ *http.Request, endpoint string, n int) bool {
					if endpoint != "auth" || n > 3 {
						return false
					}
					answer(w)
					return true
				}
				r.must(t)
				want := []string{"Waiting", "Waiting", "Waiting", "Opened", "group@2 output", "group@2 output", "SnapshotComplete", "Live"}
				if got := r.kinds(); !slices.Equal(got, want) {
					t.Errorf("events %v, want %v", got, want)
				}
				f.allSigned(t)
			})
		})
	}
}

// Whoever answers is whom the caller names, or who signed the first manifest, and
// nobody else.
func TestC1_PinnedPeer(t *testing.T) {
	t.Parallel()
	pinned := func(t *testing.T, err error, want, got string) {
		t.Helper()
		if e, ok := errors.AsType[*client.PinError](err); !ok || e.What != "identity" || e.Want != want || e.Got != got {
			t.Fatalf("error %v, want %s instead of %s", err, got, want)
		}
	}
	t.Run("named by the caller", func(t *testing.T) {
		t.Parallel()
		f := newFake(t).signing().seed(2)
		r, _ := signedFollower(t, f)
		_, other := newIdentity(t)
		r.options.Identity = other
		pinned(t, r.follow(t), other, f.caps.Identity)
		if n := len(f.seen("capabilities")); n != 0 {
			t.Errorf("%d requests were signed for somebody else", n)
		}
		r.options.Identity = f.caps.Identity
		r.must(t)
	})
	t.Run("manifest of another", func(t *testing.T) {
		t.Parallel()
		f := newFake(t).signing().seed(2)
		r, _ := signedFollower(t, f)
		key, other := newIdentity(t)
		f.edit(func() { f.speak(key) })
		pinned(t, r.follow(t), other, f.caps.Identity)
		if n := len(f.seen("open")); n != 0 {
			t.Error("an Open was sent")
		}
	})
	t.Run("first one seen", func(t *testing.T) {
		t.Parallel()
		f := newFake(t).signing().seed(2)
		r, s := signedFollower(t, f)
		r.must(t)
		f.put(5)
		key, other := newIdentity(t)
		f.edit(func() { f.speak(key) }) // whoever has the address now
		reads := len(f.seen("read"))
		pinned(t, r.follow(t), f.caps.Identity, other)
		if len(f.seen("read")) != reads || sources(t, s)[0].Ended != nil {
			t.Error("somebody else was asked, or believed")
		}
		f.edit(func() { f.speak(f.key) })
		r.must(t)
		if got := r.kinds(); !slices.Equal(got, []string{"Resumed", "group@3 output"}) {
			t.Errorf("events %v", got)
		}
	})
	t.Run("changes in the middle", func(t *testing.T) {
		t.Parallel()
		f := newFake(t).signing().seed(4)
		r, s := signedFollower(t, f)
		r.options.Limits.MaxObservations = 2
		key, other := newIdentity(t)
		f.before = func(endpoint string, n int, _ []byte) {
			if endpoint == "open" && n == 1 { // whoever answers the next one
				f.edit(func() { f.speak(key) })
			}
		}
		err := r.follow(t)
		pinned(t, err, f.caps.Identity, other)
		if got := len(rows(t, s, sqlitestate.Partial)); got != 2 {
			t.Errorf("%d rows, want the 2 of the first page", got)
		}
	})
}

// A signed scope is the identity's, and the access of the first batch stays that
// of the generation.
func TestC2_SignedScope(t *testing.T) {
	t.Parallel()
	rescope := func(b *wire.Batch, edit func(*wire.Scope)) {
		edit(&b.Scope)
		for i := range b.Groups {
			for j := range b.Groups[i].Observations {
				b.Groups[i].Observations[j].Scope = b.Scope
			}
		}
	}
	for name, c := range map[string]struct {
		at   string
		edit func(f *fake, s *wire.Scope)
	}{
		"spoken by the origin":  {"open", func(f *fake, s *wire.Scope) { s.Provider = wire.Origin(f.base) }},
		"spoken by another":     {"open", func(_ *fake, s *wire.Scope) { s.Provider = principal(newKey(9)) }},
		"another access later":  {"read", func(_ *fake, s *wire.Scope) { s.Access = "p:other" }},
		"everybody's later":     {"read", func(_ *fake, s *wire.Scope) { s.Access = "public" }},
		"another epoch later":   {"read", func(_ *fake, s *wire.Scope) { s.Epoch = "epoch-2" }},
		"another speaker later": {"read", func(_ *fake, s *wire.Scope) { s.Provider = principal(newKey(9)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).signing().seed(2)
			var lying atomic.Bool
			lying.Store(true)
			f.bend = func(endpoint string, n int, b *wire.Batch) {
				if endpoint == c.at && lying.Load() {
					rescope(b, func(s *wire.Scope) { c.edit(f, s) })
				}
			}
			r, s := signedFollower(t, f)
			violated(t, r.follow(t), client.RuleScope)
			lying.Store(false)
			r.must(t)
			if got := len(rows(t, s, sqlitestate.Current)); got != 2 {
				t.Fatalf("%d rows", got)
			}
		})
	}
	t.Run("a generation of its own", func(t *testing.T) {
		t.Parallel()
		f := newFake(t).signing().seed(2)
		r, s := signedFollower(t, f)
		r.options.OnReset = client.Reopen
		r.must(t)
		f.edit(func() { f.access = func(string) string { return "p:moved" } })
		f.endAll(wire.ResetRequired) // which is how a provider says it
		r.must(t)
		if src := sources(t, s)[0]; src.Published != 2 || r.kinds()[1] != "ended reset-required" {
			t.Fatalf("source %+v, events %v", src, r.kinds())
		}
	})
}

// A session that the provider does not know any more is begun again, once for a
// request, which is repeated as it was.
func TestC4_StaleSessionIsBegunOnce(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"open", "read"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).signing().seed(4)
			r, _ := signedFollower(t, f)
			r.options.Limits.MaxObservations = 2
			f.before = func(e string, n int, _ []byte) {
				if e == endpoint && n == 1 {
					f.ring.forget()
				}
			}
			r.must(t)
			got := f.seen(endpoint)
			if len(got) < 2 || string(got[0].body) != string(got[1].body) || got[0].digest != got[1].digest {
				t.Errorf("%s was not repeated as it was", endpoint)
			}
			if n := len(f.seen("auth")); n != 2 || len(f.sessions) != 1 {
				t.Errorf("%d handshakes, %d sessions", n, len(f.sessions))
			}
			if kinds := r.kinds(); slices.Contains(kinds, "Waiting") {
				t.Errorf("events %v", kinds)
			}
		})
	}
	t.Run("never twice in a row", func(t *testing.T) {
		t.Parallel()
		timed(t, func(t *testing.T, f *fake, r *run) {
			f.signing()
			r.as(newKey(1))
			f.before = func(endpoint string, n int, _ []byte) {
				if endpoint == "read" && n <= 6 {
					f.ring.forget()
				}
			}
			r.must(t)
			waits := 0
			for _, e := range r.events {
				if _, ok := e.(client.Waiting); ok {
					waits++
				}
			}
			// Two tries, and a wait, three times over; the next one finds the session begun last.
			if reads, hellos := len(f.seen("read")), len(f.seen("auth")); waits != 3 || reads != 7 || hellos != 7 {
				t.Errorf("%d waits, %d reads, %d handshakes", waits, reads, hellos)
			}
			if len(f.sessions) != 1 {
				t.Errorf("%d sessions", len(f.sessions))
			}
		})
	})
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		timed(t, func(t *testing.T, f *fake, r *run) {
			f.signing()
			r.as(newKey(1)).options.RetryFor = time.Minute
			f.before = func(endpoint string, _ int, _ []byte) {
				if endpoint == "read" {
					f.ring.forget()
				}
			}
			if err := r.follow(t); !isGaveUp(err) {
				t.Fatalf("error %v", err)
			}
		})
	})
}

func isGaveUp(err error) bool {
	_, ok := errors.AsType[*client.GaveUpError](err)
	return ok
}

// What the provider signs is believed: each ending is recorded, told once, and
// its rows stay, stale.
func TestC5_SignedEndingsAreBelieved(t *testing.T) {
	t.Parallel()
	for _, code := range []wire.Code{wire.ResetRequired, wire.Expired, wire.Unauthorized, wire.ContextChanged} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			f := newFake(t).signing().seed(3)
			r, s := signedFollower(t, f)
			r.must(t)
			f.endAll(code)
			e, ok := errors.AsType[*client.EndedError](r.follow(t))
			if !ok || e.Ending.Code != code {
				t.Fatalf("error %v", e)
			}
			if got := r.kinds(); !slices.Equal(got, []string{"Resumed", "ended " + string(code)}) {
				t.Fatalf("events %v", got)
			}
			if len(rows(t, s, sqlitestate.Stale)) != 3 || len(f.seen("open")) != 1 {
				t.Fatal("the rows are not stale, or something was opened")
			}
			r.options.OnReset = client.Reopen
			r.must(t)
			if len(rows(t, s, sqlitestate.Current)) != 3 {
				t.Fatal("nothing took their place")
			}
		})
	}
}

// A 402, signed or not, pays nothing; only a signed one is the provider's word.
func TestC6_SignedNeverPays(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"auth", "capabilities", "open", "read"} {
		for _, signed := range []bool{true, false} {
			if endpoint == "auth" && signed {
				continue // nobody signs the refusal of a handshake
			}
			t.Run(fmt.Sprintf("%s signed %v", endpoint, signed), func(t *testing.T) {
				t.Parallel()
				timed(t, func(t *testing.T, f *fake, r *run) {
					f.signing()
					r.as(newKey(1)).options.RetryFor = time.Minute
					ask := func(w http.ResponseWriter, e string) bool {
						if e != endpoint {
							return false
						}
						w.Header().Set("x-bsv-payment-version", "1.0")
						w.Header().Set("x-bsv-payment-satoshis-required", "1")
						w.WriteHeader(http.StatusPaymentRequired)
						_, _ = w.Write([]byte("{}"))
						return true
					}
					if signed {
						f.answer = func(w http.ResponseWriter, e string, _ int) bool { return ask(w, e) }
					} else {
						f.stand = func(w http.ResponseWriter, _ *http.Request, e string, _ int) bool { return ask(w, e) }
					}
					err := r.follow(t)
					_, payment := errors.AsType[*client.PaymentError](err)
					_, unverified := errors.AsType[*client.UnverifiedError](err)
					if payment != signed || unverified != (!signed && endpoint != "auth") || endpoint == "auth" && !isGaveUp(err) {
						t.Fatalf("error %v", err)
					}
					if n := len(f.seen(endpoint)); n != 1 && endpoint != "auth" {
						t.Errorf("%d requests", n)
					}
					f.allSigned(t)
					f.mu.Lock()
					defer f.mu.Unlock()
					for _, q := range f.requests {
						if bytes.Contains(q.body, []byte("payment")) {
							t.Errorf("%s says %s", q.endpoint, q.body)
						}
					}
				})
			})
		}
	}
}

// What is said to one identity, to another and to everybody are three sources in
// one state, at once, and none disturbs another.
func TestC7_PrincipalsAreSources(t *testing.T) {
	t.Parallel()
	f := newFake(t).signing().seed(6)
	first, second := newKey(1), newKey(2)
	f.sees = func(who string, o wire.Output) bool {
		return (who == principal(first)) == (o.Evidence.OutputIndex == 0)
	}
	base := f.serve()
	s := openState(t, t.TempDir())
	runs := []*run{follower(base, s), follower(base, s).as(first), follower(base, s).as(second)}
	var wg sync.WaitGroup
	for i, r := range runs {
		r.options.Limits.MaxObservations = 1
		wg.Go(func() {
			if err := client.Follow(t.Context(), r.options); err != nil {
				t.Errorf("run %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	got := make(map[string]int)
	for _, src := range sources(t, s) {
		for row, err := range s.Rows(t.Context(), src) {
			if err != nil {
				t.Fatal(err)
			}
			if row.Freshness == sqlitestate.Current {
				got[src.Principal]++
			}
		}
	}
	if want := map[string]int{"": 6, principal(first): 2, principal(second): 4}; !maps.Equal(got, want) {
		t.Fatalf("rows by principal %v, want %v", got, want)
	}
	f.endAll(wire.Unauthorized)
	r := runs[1]
	if _, ok := errors.AsType[*client.EndedError](r.follow(t)); !ok {
		t.Fatal("went on")
	}
	for _, src := range sources(t, s) {
		if (src.Ended != nil) != (src.Principal == principal(first)) {
			t.Errorf("the source of %q has the ending %+v", src.Principal, src.Ended)
		}
	}
}

// Neither the key nor a session of BRC-104 shows in a log, an event or an error.
func TestA8_NoKeysAreShown(t *testing.T) {
	t.Parallel()
	f := newFake(t).signing().seed(2)
	r, _ := signedFollower(t, f)
	var nonces []string
	f.lose = func(endpoint string, n int) bool { return n == 1 && endpoint == "open" }
	f.forge = func(endpoint string, n int, a *reply) {
		nonces = append(nonces, a.header.Get(brc104.HeaderYourNonce), a.header.Get(brc104.HeaderNonce), a.header.Get(brc104.HeaderSignature))
		if endpoint == "read" && n == 1 {
			a.body = append(a.body, ' ')
		}
	}
	var log bytes.Buffer
	r.options.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	err := r.follow(t)
	violated(t, err, client.RuleSignature)
	shown := fmt.Sprint(r.events) + err.Error() + log.String()
	for _, secret := range append(nonces, hex.EncodeToString(newKey(1).Serialize())) {
		if secret != "" && strings.Contains(shown, secret) {
			t.Errorf("%q is shown", secret)
		}
	}
	if log.Len() == 0 || len(nonces) == 0 {
		t.Error("nothing was logged or signed")
	}
}

// A context that ends in the middle of a handshake ends the run with its cause.
func TestFollow_StopsInTheHandshake(t *testing.T) {
	t.Parallel()
	f := newFake(t).signing().seed(1)
	stopped := errors.New("asked to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	f.stand = func(_ http.ResponseWriter, q *http.Request, endpoint string, _ int) bool {
		cancel(stopped)
		<-q.Context().Done()
		panic(http.ErrAbortHandler)
	}
	r, _ := signedFollower(t, f)
	if err := client.Follow(ctx, r.options); !errors.Is(err, stopped) {
		t.Fatalf("error %v", err)
	}
}
