package brc104

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
)

// Sizes of a nonce of the other side, decoded.
const (
	minNonceBytes = 16
	maxNonceBytes = 96
)

// Layout of a session nonce (see the package comment).
const (
	nonceVersion   = 1
	offVersion     = 0
	offLength      = 1
	offEpoch       = 2
	offIssued      = 6
	offExpires     = 14
	offRandom      = 22
	minRandom      = 12
	macBytes       = 32
	minSealedBytes = offRandom + minRandom + minNonceBytes + macBytes
	maxSealedBytes = offRandom + minRandom + 2 + maxNonceBytes + macBytes
	nonceLabel     = "brc104 session nonce\x01"
)

// strict64 is base64 of which every text has one form.
var strict64 = base64.StdEncoding.Strict()

// session is what a session nonce says. There is no other record of a session anywhere.
type session struct {
	issued, expires time.Time // whole milliseconds
	client          string    // the client's initial nonce, base64
}

var (
	errNonceForm    = errors.New("the nonce is not one that a peer may use")
	errNonceUnknown = errors.New("the session nonce was not issued for this identity under a key in force")
	errNonceExpired = errors.New("the session nonce has expired")
)

// decodeNonce reads a nonce of the other side: strict base64 of 16 to 96 bytes.
func decodeNonce(dst []byte, text string) ([]byte, error) {
	if len(text) > base64.StdEncoding.EncodedLen(maxNonceBytes) {
		return nil, errNonceForm
	}
	raw, err := strict64.AppendDecode(dst, []byte(text))
	if err != nil || len(raw)-len(dst) < minNonceBytes || len(raw)-len(dst) > maxNonceBytes || hasBreak(text) {
		return nil, errNonceForm
	}
	return raw, nil
}

// hasBreak reports the two characters that encoding/base64 passes over even when it is strict.
func hasBreak(text string) bool {
	for i := range len(text) {
		if text[i] == '\n' || text[i] == '\r' {
			return true
		}
	}
	return false
}

// nonceMAC authenticates what stands before it, for one server identity and one client identity.
func nonceMAC(secret []byte, server, client *[33]byte, head []byte) (sum [macBytes]byte) {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(nonceLabel))
	mac.Write(server[:])
	mac.Write(client[:])
	mac.Write(head)
	mac.Sum(sum[:0])
	return sum
}

// sealNonce makes a session nonce for the identity that asked with the decoded client nonce. Its text has no padding, since one
// of the official clients decodes the texts of both nonces as one.
func sealNonce(ring *Ring, server, client *[33]byte, clientNonce []byte, issued, expires time.Time) string {
	random := minRandom + (3-(offRandom+minRandom+len(clientNonce)+macBytes)%3)%3
	raw := make([]byte, offRandom+random, maxSealedBytes)
	raw[offVersion] = nonceVersion
	raw[offLength] = byte(len(clientNonce))
	binary.BigEndian.PutUint32(raw[offEpoch:], ring.Epoch)
	binary.BigEndian.PutUint64(raw[offIssued:], uint64(issued.UnixMilli()))
	binary.BigEndian.PutUint64(raw[offExpires:], uint64(expires.UnixMilli()))
	_, _ = rand.Read(raw[offRandom:]) // never fails: it ends the process instead
	raw = append(raw, clientNonce...)
	sum := nonceMAC(ring.Secrets[0], server, client, raw)
	return base64.StdEncoding.EncodeToString(append(raw, sum[:]...))
}

// openNonce reads a session nonce that this deployment sealed for the identity. Anything else that is base64 is unknown: the
// nonce of another server, of a secret now dropped, or of another identity.
func openNonce(ring *Ring, server, client *[33]byte, text string, now time.Time) (session, error) {
	if len(text) > base64.StdEncoding.EncodedLen(maxSealedBytes) {
		return session{}, errNonceForm
	}
	var room [maxSealedBytes + 3]byte
	raw, err := strict64.AppendDecode(room[:0], []byte(text))
	if err != nil || hasBreak(text) {
		return session{}, errNonceForm
	}
	if len(raw) < minSealedBytes || raw[offVersion] != nonceVersion {
		return session{}, errNonceUnknown
	}
	head, sum := raw[:len(raw)-macBytes], raw[len(raw)-macBytes:]
	sealed := false
	for _, secret := range ring.Secrets {
		want := nonceMAC(secret, server, client, head)
		if hmac.Equal(want[:], sum) {
			sealed = true
			break
		}
	}
	// What follows was written by sealNonce; only the epoch and the time can have changed since.
	if !sealed || binary.BigEndian.Uint32(raw[offEpoch:]) != ring.Epoch {
		return session{}, errNonceUnknown
	}
	s := session{
		issued:  time.UnixMilli(int64(binary.BigEndian.Uint64(raw[offIssued:]))),
		expires: time.UnixMilli(int64(binary.BigEndian.Uint64(raw[offExpires:]))),
		client:  base64.StdEncoding.EncodeToString(head[len(head)-int(raw[offLength]):]),
	}
	if !now.Before(s.expires) {
		return session{}, errNonceExpired
	}
	return s, nil
}
