package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/bsv-blockchain/go-sdk/message"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/internal/canon"
)

func testKey(n byte) *ec.PrivateKey {
	key, _ := ec.PrivateKeyFromBytes(append(make([]byte, 31), n))
	return key
}

func identityOf(key *ec.PrivateKey) string { return hex.EncodeToString(key.PubKey().Compressed()) }

func packetText(body string, sig []byte) []byte {
	return []byte(`{"body":` + body + `,"signature":"` + base64.StdEncoding.EncodeToString(sig) + `"}`)
}

// A packet of testKey(7) made once: signatures hold a random key id, so this is
// the only one that is the same in every process.
const fixedPacket = `{"body":{"a":1},"signature":"QkIzAQJcvfBkbl206qOY82Xy6noOPUGbfgMw45zpK93tysT5vADI4lT39GcfLDENSnBFLyqQTQa1TEfCgLyDYMtg4hX//zBFAiEAjxqQtZVjx7p+wckI3+LxrZ0beeRH/FpHUWm5AfSYsdoCIEckHufLpti9a3GKlFjDx/WjsaCHoIqIDaaLjWY/waDA"}`

func TestJ5_FixedPacket(t *testing.T) {
	t.Parallel()
	body, signer, err := VerifyPacket("capabilities", []byte(fixedPacket), 0)
	if err != nil || string(body.AppendCanonical(nil)) != `{"a":1}` || hex.EncodeToString(signer[:]) != identityOf(testKey(7)) {
		t.Errorf("%s, %x, %v", body.AppendCanonical(nil), signer, err)
	}
}

func TestJ5_PacketRoundTrip(t *testing.T) {
	t.Parallel()
	key := testKey(7)
	body := canon.Obj(
		canon.Member{Name: "b", Value: canon.Str("😀")},
		canon.Member{Name: "a", Value: canon.Num(1)},
	)
	for range 50 {
		packet, err := SignPacket("capabilities", body, key)
		if err != nil {
			t.Fatal(err)
		}
		if form, err := canon.Canonicalize(packet); err != nil || !bytes.Equal(form, packet) {
			t.Fatalf("not canonical: %s, %v", packet, err)
		}
		got, signer, err := VerifyPacket("capabilities", packet, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(body) || hex.EncodeToString(signer[:]) != identityOf(key) {
			t.Fatalf("body %s, signer %x", got.AppendCanonical(nil), signer)
		}
	}
	// The signature covers the canonical form, not the spelling.
	packet, err := SignPacket("capabilities", body, key)
	if err != nil {
		t.Fatal(err)
	}
	spelled := strings.Replace(string(packet), `"a":1`, `"\u0061" : 1.0`, 1)
	if _, _, err := VerifyPacket("capabilities", []byte(spelled), 0); err != nil {
		t.Error(err)
	}
	if _, err := SignPacket("capabilities", canon.Arr(), key); err == nil {
		t.Error("signed a body that is not an object")
	}
}

func TestJ5_PacketRefused(t *testing.T) {
	t.Parallel()
	const body = `{"a":1}`
	key := testKey(7)
	sign := func(domain string, body string) []byte {
		t.Helper()
		for {
			sig, err := message.Sign(canon.Preimage(domain, []byte(body)), key, nil)
			if err != nil {
				t.Fatal(err)
			}
			if checkSignature(sig) == nil {
				return sig
			}
		}
	}
	good := sign("capabilities", body)
	if _, _, err := VerifyPacket("capabilities", packetText(body, good), 0); err != nil {
		t.Fatal(err)
	}
	change := func(at int, b ...byte) []byte {
		c := slices.Clone(good)
		copy(c[at:], b)
		return c
	}
	personal, err := message.Sign(canon.Preimage("capabilities", []byte(body)), key, testKey(9).PubKey())
	if err != nil {
		t.Fatal(err)
	}
	rlen := int(good[73])
	for name, packet := range map[string][]byte{
		"another body":            packetText(`{"a":2}`, good),
		"an empty body":           packetText(`{}`, good),
		"another domain":          packetText(body, sign("lookup-query", body)),
		"another signer":          packetText(body, change(4, testKey(8).PubKey().Compressed()...)),
		"signer not on the curve": packetText(body, change(5, append(make([]byte, 31), 5)...)),
		"uncompressed signer":     packetText(body, change(4, 4)),
		"version":                 packetText(body, change(0, 0x43)),
		"version 2":               packetText(body, change(3, 2)),
		"key id":                  packetText(body, change(40, good[40]^1)),
		"for one verifier":        packetText(body, personal),
		"verifier byte":           packetText(body, change(37, 2)),
		"r changed":               packetText(body, change(80, good[80]^1)),
		"one trailing byte":       packetText(body, append(slices.Clone(good), 0)),
		"many trailing bytes":     packetText(body, append(slices.Clone(good), good...)),
		"inner trailing byte":     packetText(body, append(change(71, good[71]+1), 0)),
		"third integer":           packetText(body, append(change(71, good[71]+3), 2, 1, 1)),
		"cut by one":              packetText(body, good[:len(good)-1]),
		"only the header":         packetText(body, good[:70]),
		"header and less":         packetText(body, good[:69]),
		"four bytes":              packetText(body, good[:4]),
		"one byte":                packetText(body, good[:1]),
		"empty":                   packetText(body, nil),
		"DER only":                packetText(body, good[70:]),
		"DER tag":                 packetText(body, change(70, 0x31)),
		"DER long form length":    packetText(body, slices.Concat(good[:71], []byte{0x81}, good[71:])),
		"r of length zero":        packetText(body, change(73, 0)),
		"r beyond the end":        packetText(body, change(73, 0x7f)),
		"padded r":                packetText(body, slices.Concat(good[:71], []byte{good[71] + 1, 2, byte(rlen + 1), 0}, good[74:])),
		"high S":                  packetText(body, highS(t, good)),
		"zeros":                   packetText(body, make([]byte, 140)),
		"signature missing":       []byte(`{"body":{}}`),
		"signature null":          []byte(`{"body":{},"signature":null}`),
		"signature array":         []byte(`{"body":{},"signature":[1]}`),
		"signature not canonical": []byte(strings.TrimSuffix(string(packetText(body, good)), `"}`) + `\n"}`),
		"body missing":            []byte(`{"signature":"AAAA"}`),
		"body null":               packetText(`null`, good),
		"body array":              packetText(`[]`, good),
		"body string":             packetText(`"x"`, good),
		"body with a fraction":    packetText(`{"a":1.5}`, good),
		"body with a duplicate":   packetText(`{"a":1,"\u0061":1}`, good),
		"unknown key":             []byte(also(string(packetText(body, good)), `"x":1`)),
		"trailing data":           append(packetText(body, good), '1'),
		"not an object":           []byte(`[]`),
		"no input":                nil,
	} {
		_, signer, err := VerifyPacket("capabilities", packet, 0)
		wantCode(t, name, err, Invalid)
		if signer != [33]byte{} {
			t.Errorf("%s: a signer comes with the error", name)
		}
	}
	_, _, err = VerifyPacket("capabilities", packetText(body, good), 100)
	wantCode(t, "over the bound", err, Limited)
}

func TestJ5_EveryByteOfTheSignatureCounts(t *testing.T) {
	t.Parallel()
	p, err := ParsePacket([]byte(fixedPacket), 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Signature {
		sig := slices.Clone(p.Signature)
		sig[i] ^= 1
		if _, err := (&Packet{Body: p.Body, Signature: sig}).Verify("capabilities"); err == nil {
			t.Errorf("byte %d may be changed", i)
		}
		if _, err := (&Packet{Body: p.Body, Signature: p.Signature[:i]}).Verify("capabilities"); err == nil {
			t.Errorf("accepted when cut to %d bytes", i)
		}
	}
}

// highS returns the other signature of the same message: s replaced by n-s,
// which the library's verifier accepts too.
func highS(t testing.TB, sig []byte) []byte {
	t.Helper()
	der := sig[70:]
	r := der[4 : 4+der[3]]
	sBytes := der[4+int(der[3])+2:]
	var s secp256k1.ModNScalar
	if s.SetByteSlice(sBytes) {
		t.Fatal("s overflows")
	}
	s.Negate()
	out := s.Bytes()
	high := append([]byte{0}, out[:]...) // n-s is above half the order: a sign byte is needed
	b := slices.Concat([]byte{2, byte(len(r))}, r, []byte{2, byte(len(high))}, high)
	twin := slices.Concat(sig[:70], []byte{0x30, byte(len(b))}, b)
	if ok, err := message.Verify(canon.Preimage("capabilities", []byte(`{"a":1}`)), twin, nil); err != nil || !ok {
		t.Fatalf("the twin is not a signature to the library (%v); the test proves nothing", err)
	}
	return twin
}
