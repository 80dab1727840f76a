package brc104

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// loop runs a benchmark and reports its CPU time.
func loop(b *testing.B, f func()) {
	b.Helper()
	b.ReportAllocs()
	before, n := cpuTime(), 0
	for b.Loop() {
		f()
		n++
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(n), "cpu-ns/op")
}

// BenchmarkFloor is what no server can go below without knowing its peers: one plain ECDSA verification and one signature.
func BenchmarkFloor(b *testing.B) {
	key := newKey(b)
	public := key.PubKey()
	digest := [32]byte{1}
	loop(b, func() {
		sig := ecdsa.Sign(key, digest[:])
		if !sig.Verify(digest[:], public) {
			b.Fatal("not verified")
		}
	})
}

func BenchmarkCurve(b *testing.B) {
	me, they := mustIdentity(b, newKey(b)), mustIdentity(b, newKey(b))
	toThem, toMe := mustMeet(b, me, they.public), mustMeet(b, they, me.public)
	digest := [32]byte{1}
	der := they.sign(toMe, randomNonce(), randomNonce(), &digest)
	r, s, err := parseSignature(der)
	if err != nil {
		b.Fatal(err)
	}
	nonce := randomNonce()
	b.Run("meet", func(b *testing.B) {
		loop(b, func() {
			mustMeet(b, me, they.public)
		})
	})
	b.Run("sign", func(b *testing.B) {
		loop(b, func() {
			me.sign(toThem, nonce, nonce, &digest)
		})
	})
	b.Run("verify", func(b *testing.B) {
		loop(b, func() {
			toThem.verify(nonce, nonce, &digest, &r, &s)
		})
	})
	toThem.hurry()
	b.Run("verify-table", func(b *testing.B) {
		loop(b, func() {
			toThem.verify(nonce, nonce, &digest, &r, &s)
		})
	})
	b.Run("table", func(b *testing.B) {
		loop(b, func() {
			toThem.hurry()
		})
	})
	b.Run("inverse", func(b *testing.B) {
		var w secp256k1.ModNScalar
		loop(b, func() {
			w.InverseValNonConst(&s)
		})
	})
	b.Run("base", func(b *testing.B) {
		var w secp256k1.JacobianPoint
		loop(b, func() {
			secp256k1.ScalarBaseMultNonConst(&s, &w)
		})
	})
	b.Run("tweak", func(b *testing.B) {
		loop(b, func() {
			toThem.tweak(nonce, nonce)
		})
	})
}

// countingGuard asks a real guard, each time about another request, so that a benchmark can send one request many times.
type countingGuard struct {
	n     atomic.Uint64
	guard *MemoryGuard
}

func (g *countingGuard) Use(ctx context.Context, u Use) (Verdict, error) {
	binary.BigEndian.PutUint64(u.Key[:], g.n.Add(1))
	return g.guard.Use(ctx, u)
}

// BenchmarkMessage is everything the server does for a request of a known peer: authenticate and seal.
func BenchmarkMessage(b *testing.B) {
	s := newServer(b, Config{Replay: &countingGuard{guard: NewMemoryGuard(0, time.Time{})}})
	session := begin(b, s, newKey(b))
	r, _ := signed(b, session, "/overlay/v1/lookup/read", `{"version":1,"session":"x"}`)
	r.Header.Set("X-Bsv-Overlay-Profile", "p")
	body, reply := []byte(`{"version":1,"session":"x"}`), bytes.Repeat([]byte("x"), 300)
	h := http.Header{}
	loop(b, func() {
		p, err := s.Authenticate(r, body)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Seal(h, 200, reply); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkSeal4MiB: a large body is hashed where it lies.
func BenchmarkSeal4MiB(b *testing.B) {
	s := newServer(b, Config{})
	session := begin(b, s, newKey(b))
	r, _ := signed(b, session, "/x", "{}")
	p, err := s.Authenticate(r, []byte("{}"))
	if err != nil {
		b.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 4<<20)
	h := http.Header{}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	loop(b, func() {
		if err := p.Seal(h, 200, body); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkHandshake(b *testing.B) {
	s := newServer(b, Config{})
	c, err := NewClient(newKey(b))
	if err != nil {
		b.Fatal(err)
	}
	hello := c.Hello()
	loop(b, func() {
		if _, err := s.Greet(b.Context(), hello.Body); err != nil {
			b.Fatal(err)
		}
	})
}
