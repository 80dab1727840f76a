package brc104

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	serverOne = [33]byte{2, 1}
	clientOne = [33]byte{3, 1}
)

func TestB2_SessionNonces(t *testing.T) {
	t.Parallel()
	ring := newRing(t, 1)
	now := time.UnixMilli(1_700_000_000_123)
	for n := minNonceBytes; n <= maxNonceBytes; n++ {
		client := bytes.Repeat([]byte{byte(n)}, n)
		text := sealNonce(ring, &serverOne, &clientOne, client, now, now.Add(time.Hour))
		if strings.Contains(text, "=") || len(text) > 400 {
			t.Fatalf("%d bytes: %q is padded or long", n, text)
		}
		s, err := openNonce(ring, &serverOne, &clientOne, text, now.Add(time.Hour-1))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if want := base64.StdEncoding.EncodeToString(client); s.client != want || !s.issued.Equal(now) || !s.expires.Equal(now.Add(time.Hour)) {
			t.Fatalf("%d bytes: %+v, want client nonce %s", n, s, want)
		}
	}
}

func TestB2_NoncesAreFresh(t *testing.T) {
	t.Parallel()
	ring, now, seen := newRing(t, 1), time.Unix(1, 0), map[string]bool{}
	for range 1000 {
		text := sealNonce(ring, &serverOne, &clientOne, make([]byte, 32), now, now.Add(1))
		if seen[text] {
			t.Fatal("the same nonce twice")
		}
		seen[text] = true
	}
}

func TestB2_NonceRefusals(t *testing.T) {
	t.Parallel()
	ring := newRing(t, 2)
	now := time.UnixMilli(1_700_000_000_123)
	text := sealNonce(ring, &serverOne, &clientOne, bytes.Repeat([]byte{7}, 48), now, now.Add(time.Hour))
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	altered := func(i int) string {
		b := slices.Clone(raw)
		b[i] ^= 1
		return base64.StdEncoding.EncodeToString(b)
	}
	open := func(r *Ring, server, client [33]byte, text string, at time.Time) error {
		_, err := openNonce(r, &server, &client, text, at)
		return err
	}
	if err := open(ring, serverOne, clientOne, text, now); err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		if err := open(ring, serverOne, clientOne, altered(i), now); !errors.Is(err, errNonceUnknown) {
			t.Errorf("byte %d altered: %v", i, err)
		}
	}
	for name, c := range map[string]struct {
		got, want error
	}{
		"its expiry":          {open(ring, serverOne, clientOne, text, now.Add(time.Hour)), errNonceExpired},
		"another client":      {open(ring, serverOne, [33]byte{3, 2}, text, now), errNonceUnknown},
		"another server":      {open(ring, [33]byte{2, 2}, clientOne, text, now), errNonceUnknown},
		"another epoch":       {open(&Ring{Epoch: 2, Secrets: ring.Secrets}, serverOne, clientOne, text, now), errNonceUnknown},
		"secret dropped":      {open(&Ring{Epoch: 1, Secrets: ring.Secrets[1:]}, serverOne, clientOne, text, now), errNonceUnknown},
		"secret second":       {open(&Ring{Epoch: 1, Secrets: [][]byte{ring.Secrets[1], ring.Secrets[0]}}, serverOne, clientOne, text, now), nil},
		"an official server":  {open(ring, serverOne, clientOne, base64.StdEncoding.EncodeToString(make([]byte, 48)), now), errNonceUnknown},
		"nothing":             {open(ring, serverOne, clientOne, "", now), errNonceUnknown},
		"not base64":          {open(ring, serverOne, clientOne, "?"+text[1:], now), errNonceForm},
		"line break":          {open(ring, serverOne, clientOne, text+"\n", now), errNonceForm},
		"too long":            {open(ring, serverOne, clientOne, strings.Repeat("A", 400), now), errNonceForm},
		"the other alphabet":  {open(ring, serverOne, clientOne, strings.Repeat("-", len(text)), now), errNonceForm},
		"without its padding": {open(ring, serverOne, clientOne, "AA", now), errNonceForm},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

func TestB2_ClientNonceForms(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{0: false, 15: false, 16: true, 31: true, 32: true, 33: true, 48: true, 96: true, 97: false, 4096: false} {
		_, err := decodeNonce(nil, base64.StdEncoding.EncodeToString(make([]byte, n)))
		if (err == nil) != want {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, text := range []string{strings.Repeat("A", 43), strings.Repeat("A", 42) + "B=", strings.Repeat("A", 43) + "=\n", strings.Repeat("_", 44)} {
		if _, err := decodeNonce(nil, text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestB2_Rings(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*Ring{
		"none": {}, "short": {Secrets: [][]byte{make([]byte, 31)}}, "many": {Secrets: slices.Repeat([][]byte{make([]byte, 32)}, MaxRingKeys+1)},
	} {
		if _, err := New(Config{Key: newKey(t), Sessions: r}); err == nil {
			t.Errorf("ring with %s secrets was taken", name)
		}
	}
	if _, err := (*Ring)(nil).Ring(context.Background()); err == nil {
		t.Error("no ring is a ring")
	}
}

// FuzzA1_SessionNonce: nothing opens but what was sealed, byte for byte, for this identity.
func FuzzA1_SessionNonce(f *testing.F) {
	ring := newRing(f, 2)
	now := time.UnixMilli(1_700_000_000_123)
	sealed := map[string]bool{}
	for _, n := range []int{16, 31, 48, 96} {
		text := sealNonce(ring, &serverOne, &clientOne, bytes.Repeat([]byte{1}, n), now, now.Add(time.Hour))
		sealed[text] = true
		f.Add(text)
		f.Add(text + "=")
	}
	f.Add("")
	f.Add(strings.Repeat("AQQA", 40))
	f.Fuzz(func(t *testing.T, text string) {
		s, err := openNonce(ring, &serverOne, &clientOne, text, now)
		if err == nil && !sealed[text] {
			t.Fatalf("opened %q: %+v", text, s)
		}
		raw, err := decodeNonce(nil, text)
		if err == nil && base64.StdEncoding.EncodeToString(raw) != text {
			t.Fatalf("nonce %q has another form", text)
		}
		// Whatever a client may use as a nonce comes back unchanged.
		if err == nil {
			mine := sealNonce(ring, &serverOne, &clientOne, raw, now, now.Add(time.Second))
			if s, err := openNonce(ring, &serverOne, &clientOne, mine, now); err != nil || s.client != text {
				t.Fatalf("client nonce %q came back as %q: %v", text, s.client, err)
			}
		}
	})
}
