package client_test

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// lie is one way in which an answer is not what it should be.
type lie struct {
	name string
	rule client.Rule
	at   string // endpoint
	n    int    // which of its answers
	bend func(b *wire.Batch)
	raw  func(body []byte) []byte
	http func(w http.ResponseWriter)
}

// refused runs each lie, signed too where it lies in what comes before the schema,
// and checks that it is refused by its rule, that nothing of the answer is recorded
// or shown, and that an honest answer afterwards is taken as if nothing had happened.
func refused(t *testing.T, lies []lie) {
	for _, l := range lies {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			modes(t, func(t *testing.T, f *fake, as func(*run) *run) {
				if r := as(&run{}); l.bend != nil && r.options.Key != nil {
					return // what a signed body says is judged by the same checks
				}
				l.refused(t, f.seed(4), as)
			})
		})
	}
}

func (l lie) refused(t *testing.T, f *fake, as func(*run) *run) {
	s := openState(t, t.TempDir())
	var lying atomic.Bool
	lying.Store(true)
	f.bend = func(endpoint string, n int, b *wire.Batch) {
		if lying.Load() && l.bend != nil && endpoint == l.at && n == l.n {
			l.bend(b)
		}
	}
	f.raw = func(endpoint string, n int, body []byte) []byte {
		if lying.Load() && l.raw != nil && endpoint == l.at && n == l.n {
			return l.raw(body)
		}
		return body
	}
	f.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
		if lying.Load() && l.http != nil && endpoint == l.at && n == l.n {
			l.http(w)
		}
		return false
	}
	// Something to say when live.
	f.before = func(endpoint string, n int, _ []byte) {
		if endpoint == "read" && n == 2 && lying.Load() {
			f.put(8)
			f.put(9)
		}
	}
	r := as(follower(f.serve(), s))
	r.options.Limits.MaxObservations = 2
	violated(t, r.follow(t), l.rule)
	before := len(r.events)
	recorded := 0
	for e, err := range s.Receipts(t.Context(), sources(t, s)[0]) {
		if err != nil {
			t.Fatal(err)
		}
		recorded++
		if strings.HasPrefix(e.ID, "live-") {
			t.Fatal("a group of a refused answer is recorded")
		}
	}
	shown := 0
	for _, e := range r.events {
		if _, ok := e.(client.Group); ok {
			shown++
		}
	}
	if want := map[string]int{"open1": 0, "read1": 2, "read2": 4}[l.at+string(rune('0'+l.n))]; recorded != want || shown != want {
		t.Fatalf("%d groups recorded, %d shown (%d events), want %d", recorded, shown, before, want)
	}
	lying.Store(false)
	if l.at == "open" && l.raw == nil && l.http == nil {
		// The fake repeats its first answer; a new Open gets another one.
		if e := sources(t, s)[0].Ended; e == nil || e.Code != "invalid" {
			t.Fatalf("the spent Open has the ending %+v", e)
		}
	}
	r.must(t)
	if got, want := len(present(rows(t, s, sqlitestate.Current))), len(f.truth()); got != want {
		t.Fatalf("%d rows after an honest answer, want %d", got, want)
	}
}

func TestC1_AnswersAreVerified(t *testing.T) {
	t.Parallel()
	header := func(name, value string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.Header().Set(name, value) }
	}
	refused(t, []lie{
		{name: "echo of the capability missing", rule: client.RuleEcho, at: "open", n: 1, http: func(w http.ResponseWriter) { w.Header().Del(wire.HeaderCapability) }},
		{name: "echo of the capability differs", rule: client.RuleEcho, at: "read", n: 1, http: header(wire.HeaderCapability, strings.Repeat("0", 64))},
		{name: "echo of the profile twice", rule: client.RuleEcho, at: "read", n: 2, http: func(w http.ResponseWriter) { w.Header().Add(wire.HeaderProfile, wire.Profile) }},
		{name: "content encoding", rule: client.RuleEncoding, at: "read", n: 1, http: header("Content-Encoding", "gzip"), raw: func(body []byte) []byte {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(body)
			_ = z.Close()
			return b.Bytes()
		}},
		{name: "too many header bytes", rule: client.RuleHeaders, at: "read", n: 1, http: header("X-Padding", strings.Repeat("x", wire.MaxHeaderBytes))},
		{name: "body above the limit", rule: client.RuleSize, at: "read", n: 1, raw: func(body []byte) []byte { return append(bytes.Repeat([]byte(" "), 1<<20), body...) }},
		{name: "two values", rule: client.RuleSchema, at: "read", n: 1, raw: func(body []byte) []byte { return append(body, "{}"...) }},
		{name: "unknown property", rule: client.RuleSchema, at: "read", n: 2, raw: func(body []byte) []byte { return append([]byte(`{"more":1,`), body[1:]...) }},
		{name: "repeated property", rule: client.RuleSchema, at: "read", n: 2, raw: func(body []byte) []byte { return append([]byte(`{"version":1,`), body[1:]...) }},
		{name: "cut body", rule: client.RuleSchema, at: "read", n: 1, raw: func(body []byte) []byte { return body[:len(body)-1] }},
		{name: "unknown critical extension", rule: client.RuleSchema, at: "read", n: 1, bend: func(b *wire.Batch) {
			b.Extensions, b.Critical = []canon.Member{{Name: "urn:test:x", Value: canon.Num(1)}}, []string{"urn:test:x"}
		}},
		{name: "replayUntil", rule: client.RuleDeadlines, at: "open", n: 1, bend: func(b *wire.Batch) { b.ReplayUntil++ }},
		{name: "session of the future", rule: client.RuleDeadlines, at: "open", n: 1, bend: func(b *wire.Batch) { b.ExpiresAt += 600; b.ReplayUntil += 600 }},
		{name: "limits echoed too high", rule: client.RuleLimits, at: "open", n: 1, bend: func(b *wire.Batch) { b.Limits.MaxObservations++ }},
		{name: "limits echoed too low", rule: client.RuleLimits, at: "read", n: 1, bend: func(b *wire.Batch) { b.Limits.MaxBytes-- }},
		{name: "wait not as asked", rule: client.RuleLimits, at: "read", n: 2, bend: func(b *wire.Batch) { b.Limits.WaitMs++ }},
		{name: "begins live", rule: client.RuleContinuation, at: "open", n: 1, bend: func(b *wire.Batch) { b.Phase, b.SnapshotComplete, b.Groups = wire.PhaseLive, true, nil }},
	})
}

func TestC1_RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(1)
	f.answer = func(w http.ResponseWriter, endpoint string, _ int) bool {
		if endpoint != "open" {
			return false
		}
		w.Header().Set("Location", "/overlay/v1/lookup/read")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return true
	}
	violated(t, follower(f.serve(), openState(t, t.TempDir())).follow(t), client.RuleRedirect)
	if n := len(f.seen("read")); n != 0 {
		t.Fatal("the redirect was followed")
	}
}

// An error body is the provider's word only when shape, status and echo are
// right. A reset that is not leaves the session as it was.
func TestC1_ErrorsAreVerified(t *testing.T) {
	t.Parallel()
	reset := &wire.Error{Code: wire.ResetRequired, Message: "open a new snapshot"}
	for name, answer := range map[string]func(w http.ResponseWriter){
		"other status": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write(reset.AppendCanonical(nil))
		},
		"no echo": func(w http.ResponseWriter) { w.Header().Del(wire.HeaderCapability); refuse(w, reset) },
		"open shape": func(w http.ResponseWriter) {
			w.WriteHeader(409)
			_, _ = w.Write(bytes.Replace(reset.AppendCanonical(nil), []byte(`"version"`), []byte(`"more":1,"version"`), 1))
		},
		"too long": func(w http.ResponseWriter) {
			w.WriteHeader(409)
			_, _ = w.Write(append(bytes.Repeat([]byte(" "), wire.MaxErrorBytes), reset.AppendCanonical(nil)...))
		},
		"a proxy's page": func(w http.ResponseWriter) { w.WriteHeader(404); _, _ = w.Write([]byte("<html>")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).seed(3)
			var lying atomic.Bool
			lying.Store(true)
			f.answer = func(w http.ResponseWriter, endpoint string, n int) bool {
				if lying.Load() && endpoint == "read" {
					answer(w)
					return true
				}
				return false
			}
			s := openState(t, t.TempDir())
			r := follower(f.serve(), s)
			err := r.follow(t)
			if _, ok := errors.AsType[*client.UnverifiedError](err); !ok {
				t.Fatalf("error %v, want an unverified answer", err)
			}
			if e := sources(t, s)[0].Ended; e != nil {
				t.Fatalf("the generation ended: %+v", e)
			}
			lying.Store(false)
			r.must(t)
			if len(f.seen("open")) != 1 {
				t.Fatal("another session was opened")
			}
		})
	}
}

func TestC1_Manifest(t *testing.T) {
	t.Parallel()
	other, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	otherID := hex.EncodeToString(other.PubKey().Compressed())
	for _, c := range []struct {
		name  string
		bend  func(f *fake)
		edit  func(o *client.Options)
		want  string
		after func(f *fake)
	}{
		{name: "another base", bend: func(f *fake) { f.caps.BaseURL = "https://elsewhere.test"; f.sign() }, want: "*client.ManifestError"},
		{name: "expired", bend: func(f *fake) { f.caps.ExpiresAt = f.caps.IssuedAt; f.sign() }, want: "*client.ManifestError"},
		{name: "future", bend: func(f *fake) { f.caps.IssuedAt += 600; f.caps.ExpiresAt += 600; f.sign() }, want: "*client.ManifestError"},
		{name: "old", bend: func(f *fake) { f.caps.IssuedAt -= 7200; f.sign() }, edit: func(o *client.Options) { o.ManifestMaxAge = time.Hour }, want: "*client.ManifestError"},
		{name: "signer is not the identity", bend: func(f *fake) { f.caps.Identity = otherID; f.sign() }, want: "*client.ManifestError"},
		{name: "changed after signing", bend: func(f *fake) { f.packet = bytes.Replace(f.packet, []byte(`"test"`), []byte(`"main"`), 1) }, want: "*client.ManifestError"},
		{name: "too large", bend: func(f *fake) { f.packet = append(bytes.Repeat([]byte(" "), wire.MaxManifestBytes), f.packet...) }, want: "*client.ViolationError"},
		{name: "unexpected identity", edit: func(o *client.Options) { o.Identity = otherID }, want: "*client.PinError"},
		{name: "unexpected chain", edit: func(o *client.Options) {
			o.Chain = &client.Chain{Network: "main", GenesisHash: strings.Repeat("00", 32)}
		}, want: "*client.PinError"},
		{name: "rules digest", bend: func(f *fake) { f.caps.Services[0].RulesDigest = strings.Repeat("0", 64); f.sign() }, want: "*client.ManifestError"},
		{name: "no such service", edit: func(o *client.Options) { o.Service = "ls_other" }, want: "*client.ManifestError"},
		{name: "signed service", edit: func(o *client.Options) { o.Service = signedService }, want: "signed"},
		{name: "public service with a key", bend: func(f *fake) { f.signing() }, edit: func(o *client.Options) { o.Key = newKey(1) }, want: "public"},
		{name: "other profile only", bend: func(f *fake) { f.caps.Services[0].Profiles[0].ID = "urn:test:profile"; f.sign() }, want: "*client.ManifestError"},
		{name: "unknown parameter", bend: func(f *fake) {
			p := &f.caps.Services[0].Profiles[0].Parameters
			*p = canon.Obj(append(slices.Clone(p.Members()), canon.Member{Name: "more", Value: canon.Num(1)})...)
			f.sign()
		}, want: "*client.ManifestError"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t).seed(1)
			r := follower(f.serve(), openState(t, t.TempDir()))
			if c.bend != nil {
				f.edit(func() { c.bend(f) })
			}
			if c.edit != nil {
				c.edit(&r.options)
			}
			err := r.follow(t)
			var got string
			if _, ok := errors.AsType[*client.ManifestError](err); ok {
				got = "*client.ManifestError"
			} else if _, ok := errors.AsType[*client.PinError](err); ok {
				got = "*client.PinError"
			} else if _, ok := errors.AsType[*client.ViolationError](err); ok {
				got = "*client.ViolationError"
			} else if errors.Is(err, client.ErrSigned) {
				got = "signed"
			} else if errors.Is(err, client.ErrPublic) {
				got = "public"
			}
			if got != c.want {
				t.Fatalf("error %v, want %s", err, c.want)
			}
			if n := len(f.seen("open")); n != 0 {
				t.Fatal("an Open was sent")
			}
		})
	}
}

// Chain and identity are pinned at first use.
func TestC1_Pins(t *testing.T) {
	t.Parallel()
	f := newFake(t).seed(2)
	base := f.serve()
	s := openState(t, t.TempDir())
	r := follower(base, s)
	r.options.OnReset = client.Reopen
	r.must(t)

	key, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	f.edit(func() { f.key = key })
	f.issue()
	f.endAll(wire.ResetRequired)
	if e, ok := errors.AsType[*client.PinError](r.follow(t)); !ok || e.What != "identity" {
		t.Fatalf("error %v, want the pinned identity", e)
	}
	r.options.Identity = f.caps.Identity // named by the caller
	r.must(t)
	r.options.Identity = ""
	r.must(t)

	f.edit(func() { f.chain.Network = "other" })
	f.issue()
	f.endAll(wire.ResetRequired)
	if e, ok := errors.AsType[*client.PinError](r.follow(t)); !ok || e.What != "chain" {
		t.Fatalf("error %v, want the pinned chain", e)
	}
}

func TestC1_PlainHTTPIsForThisMachine(t *testing.T) {
	t.Parallel()
	s := openState(t, t.TempDir())
	for base, ok := range map[string]bool{
		"http://127.0.0.1:1": true, "http://[::1]:1": true, "http://localhost:1": true,
		"http://example.com": false, "http://10.0.0.1": false, "ftp://127.0.0.1": false, "https://user@example.com": false,
		"https://example.com/?q": false, "https://example.com/a/../b": false,
	} {
		o := client.Options{BaseURL: base, Service: service, State: s, RetryFor: 1}
		_, gaveUp := errors.AsType[*client.GaveUpError](client.Follow(t.Context(), o))
		if gaveUp != ok {
			t.Errorf("%s: accepted %v, want %v", base, gaveUp, ok)
		}
	}
}
