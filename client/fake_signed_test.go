package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/client/sqlitestate"
	"github.com/overlayd/overlayd/internal/wire"
)

// signing makes the provider serve its signed service too, in its own name.
func (f *fake) signing() *fake {
	f.ring.forget()
	f.speak(f.key)
	return f
}

// speak makes the owner of a key answer signed requests.
func (f *fake) speak(key *ec.PrivateKey) {
	auth, err := brc104.New(brc104.Config{
		Key: secp256k1.PrivKeyFromBytes(key.Serialize()), Sessions: &f.ring, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.auth = auth
}

// ring holds the secrets of the provider's sessions.
type ring struct{ now atomic.Pointer[brc104.Ring] }

func (r *ring) Ring(context.Context) (*brc104.Ring, error) { return r.now.Load(), nil }

// forget ends every session of BRC-104, as a restart without its secrets would.
func (r *ring) forget() {
	secret := make([]byte, brc104.MinSecretBytes)
	_, _ = rand.Read(secret) // never fails
	r.now.Store(&brc104.Ring{Secrets: [][]byte{secret}})
}

// reply is one whole answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (f *fake) authenticate(auth *brc104.Server, w http.ResponseWriter, r *http.Request, endpoint string, n int, body []byte) {
	if f.stand != nil && f.stand(w, r, endpoint, n) {
		return
	}
	if endpoint == "auth" {
		r.Body = io.NopCloser(bytes.NewReader(body))
		auth.Handshake(w, r)
		return
	}
	peer, err := auth.Authenticate(r, body)
	if err != nil {
		auth.Refuse(w, r, err)
		return
	}
	draft := httptest.NewRecorder()
	f.respond(draft, r, endpoint, n, body, hex.EncodeToString(peer.Identity[:]))
	a := &reply{status: draft.Code, header: draft.Header(), body: draft.Body.Bytes()}
	if err := peer.Seal(a.header, a.status, a.body); err != nil {
		f.t.Errorf("seal an answer: %v", err)
	}
	if f.forge != nil {
		f.forge(endpoint, n, a)
		a.header.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	clear(w.Header())
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

func (f *fake) shows(s *session, o wire.Output) bool {
	return f.sees == nil || s.principal == "" || f.sees(s.principal, o)
}

func (f *fake) accessOf(principal string) string {
	if f.access != nil {
		return f.access(principal)
	}
	return "p:" + principal[60:]
}

// newKey is the private key with that number.
func newKey(n byte) *secp256k1.PrivateKey {
	return secp256k1.PrivKeyFromBytes(bytes.Repeat([]byte{n}, 32))
}

func principal(key *secp256k1.PrivateKey) string {
	return hex.EncodeToString(key.PubKey().SerializeCompressed())
}

// as makes a follower of the signed service.
func (r *run) as(key *secp256k1.PrivateKey) *run {
	r.options.Key, r.options.Service = key, signedService
	return r
}

// modes runs a test anonymously and with a key.
func modes(t *testing.T, test func(t *testing.T, f *fake, as func(*run) *run)) {
	t.Run("public", func(t *testing.T) {
		t.Parallel()
		test(t, newFake(t), func(r *run) *run { return r })
	})
	t.Run("signed", func(t *testing.T) {
		t.Parallel()
		test(t, newFake(t).signing(), func(r *run) *run { return r.as(newKey(1)) })
	})
}

// allSigned checks that nothing but handshakes came without a signature.
func (f *fake) allSigned(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.endpoint != "auth" && !r.signed {
			t.Errorf("%s came without a signature", r.endpoint)
		}
	}
}

// signedFollower is a follower of a new signing provider behind a socket.
func signedFollower(t *testing.T, f *fake) (*run, *sqlitestate.Store) {
	s := openState(t, t.TempDir())
	return follower(f.serve(), s).as(newKey(1)), s
}
