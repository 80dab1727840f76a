package brc104

import (
	"crypto/sha256"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/bsv-blockchain/go-sdk/wallet"
	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// random is a reproducible source.
func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 104)) }

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func randomKey(r *rand.Rand) *secp256k1.PrivateKey {
	return secp256k1.PrivKeyFromBytes(randomBytes(r, 32))
}

func mustIdentity(t testing.TB, key *secp256k1.PrivateKey) *identity {
	t.Helper()
	id, err := newIdentity(key)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func mustMeet(t testing.TB, id *identity, public [33]byte) *peerKey {
	t.Helper()
	p, err := id.meet(&public)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sdkKey(key *secp256k1.PrivateKey) *ec.PrivateKey {
	priv, _ := ec.PrivateKeyFromBytes(key.Serialize())
	return priv
}

// iterations is n, or fewer under the race detector.
func iterations(n int) int {
	if raceEnabled {
		return n / 20
	}
	return n
}

func TestB9_DerivationsEqualGoSDK(t *testing.T) {
	t.Parallel()
	n := iterations(10_000)
	const workers = 4
	for w := range workers {
		t.Run(fmt.Sprint(w), func(t *testing.T) {
			t.Parallel()
			r := random(uint64(w))
			var me *identity
			var peer, other *peerKey
			var sdkMine, sdkTheirs *ec.PrivateKey
			for i := range n / workers {
				if i%10 == 0 { // other keys for every ten messages
					mine, theirs := randomKey(r), randomKey(r)
					if i%50 == 0 { // a scalar with leading zeros
						mine = secp256k1.PrivKeyFromBytes(append(make([]byte, 16), randomBytes(r, 16)...))
					}
					me = mustIdentity(t, mine)
					they := mustIdentity(t, theirs)
					peer, other = mustMeet(t, me, they.public), mustMeet(t, they, me.public)
					sdkMine, sdkTheirs = sdkKey(mine), sdkKey(theirs)
				}
				first, second := hex.EncodeToString(randomBytes(r, 1+r.IntN(40))), hex.EncodeToString(randomBytes(r, 1+r.IntN(40)))
				tweak := peer.tweak(first, second)
				child := tweak
				child.Add(&me.key)
				raw := child.Bytes()

				invoice := invoicePrefix + first + " " + second
				want, err := sdkMine.DeriveChild(sdkTheirs.PubKey(), invoice)
				if err != nil {
					t.Fatal(err)
				}
				if got := hex.EncodeToString(raw[:]); got != hex.EncodeToString(want.Serialize()) {
					t.Fatalf("private child of %x for %x: %s, want %x", sdkMine.Serialize(), sdkTheirs.Serialize(), got, want.Serialize())
				}
				if i%4 != 0 {
					continue
				}
				// The other side derives the same key as a point: P + tG.
				wantPublic, err := sdkMine.PubKey().DeriveChild(sdkTheirs, invoice)
				if err != nil {
					t.Fatal(err)
				}
				otherTweak := other.tweak(first, second)
				var g, sum secp256k1.JacobianPoint
				secp256k1.ScalarBaseMultNonConst(&otherTweak, &g)
				secp256k1.AddNonConst(&g, &other.point, &sum)
				sum.ToAffine()
				if got := compress(&sum); got != [33]byte(wantPublic.Compressed()) {
					t.Fatalf("public child of %x: %x, want %x", sdkMine.Serialize(), got, wantPublic.Compressed())
				}
			}
		})
	}
}

// sdkWallet is the official wallet of a key.
func sdkWallet(t testing.TB, key *secp256k1.PrivateKey) *wallet.ProtoWallet {
	t.Helper()
	w, err := wallet.NewProtoWallet(wallet.ProtoWalletArgs{Type: wallet.ProtoWalletArgsTypePrivateKey, PrivateKey: sdkKey(key)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func encryption(peer *secp256k1.PrivateKey, keyID string) wallet.EncryptionArgs {
	return wallet.EncryptionArgs{
		ProtocolID:   wallet.Protocol{SecurityLevel: wallet.SecurityLevelEveryAppAndCounterparty, Protocol: "auth message signature"},
		KeyID:        keyID,
		Counterparty: wallet.Counterparty{Type: wallet.CounterpartyTypeOther, Counterparty: sdkKey(peer).PubKey()},
	}
}

func TestB9_SignaturesGoBothWays(t *testing.T) {
	t.Parallel()
	r := random(7)
	for range iterations(200) {
		mine, theirs := randomKey(r), randomKey(r)
		me, they := mustIdentity(t, mine), mustIdentity(t, theirs)
		toThem, toMe := mustMeet(t, me, they.public), mustMeet(t, they, me.public)
		data := randomBytes(r, 1+r.IntN(200))
		digest := sha256.Sum256(data)

		der := me.sign(toThem, "one", "two", &digest)
		sig, err := ec.ParseSignature(der)
		if err != nil {
			t.Fatal(err)
		}
		res, err := sdkWallet(t, theirs).VerifySignature(t.Context(), wallet.VerifySignatureArgs{
			EncryptionArgs: encryption(mine, "one two"), Data: data, Signature: sig,
		}, "")
		if err != nil || !res.Valid {
			t.Fatalf("go-sdk refuses ours: %v", err)
		}

		made, err := sdkWallet(t, mine).CreateSignature(t.Context(), wallet.CreateSignatureArgs{
			EncryptionArgs: encryption(theirs, "one two"), Data: data,
		}, "")
		if err != nil {
			t.Fatal(err)
		}
		// RFC 6979 leaves no choice: both make the same bytes.
		if theirDER := made.Signature.Serialize(); string(theirDER) != string(der) {
			t.Fatalf("go-sdk signs %x, we %x", theirDER, der)
		}
		rs, ss, err := parseSignature(der)
		if err != nil {
			t.Fatal(err)
		}
		if !toMe.verify("one", "two", &digest, &rs, &ss) {
			t.Fatal("we refuse go-sdk's signature")
		}
		for name, wrong := range map[string]bool{
			"nonces":    toMe.verify("two", "one", &digest, &rs, &ss),
			"digest":    toMe.verify("one", "two", &[32]byte{1}, &rs, &ss),
			"r and s":   toMe.verify("one", "two", &digest, &ss, &rs),
			"other key": toThem.verify("one", "two", &digest, &rs, &ss),
		} {
			if wrong {
				t.Fatalf("verified with wrong %s", name)
			}
		}
	}
}

func TestB6_OneEncodingOnly(t *testing.T) {
	t.Parallel()
	r := random(8)
	me := mustIdentity(t, randomKey(r))
	peer := mustMeet(t, me, mustIdentity(t, randomKey(r)).public)
	digest := sha256.Sum256([]byte("x"))
	der := me.sign(peer, "a", "b", &digest)
	var sig struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &sig); err != nil {
		t.Fatal(err)
	}
	encode := func(r, s *big.Int) []byte {
		b, err := asn1.Marshal(struct{ R, S *big.Int }{r, s})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if string(encode(sig.R, sig.S)) != string(der) {
		t.Fatal("the signature is not plain DER")
	}
	n := secp256k1.Params().N
	for name, bad := range map[string][]byte{
		"high S":          encode(sig.R, new(big.Int).Sub(n, sig.S)),
		"R + n":           encode(new(big.Int).Add(sig.R, n), sig.S),
		"S + n":           encode(sig.R, new(big.Int).Add(sig.S, n)),
		"zero R":          encode(new(big.Int), sig.S),
		"zero S":          encode(sig.R, new(big.Int)),
		"negative":        encode(new(big.Int).Neg(sig.R), sig.S),
		"trailing byte":   append(append([]byte{}, der...), 0),
		"cut":             der[:len(der)-1],
		"long length":     append([]byte{der[0], 0x81}, der[1:]...),
		"padded R":        append([]byte{0x30, der[1] + 1, 2, der[3] + 1, 0}, der[4:]...),
		"empty":           nil,
		"other container": append([]byte{0x31}, der[1:]...),
	} {
		if _, _, err := parseSignature(bad); err == nil {
			t.Errorf("%s: %x was taken", name, bad)
		}
	}
}

func TestB9_BadKeys(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Sessions: newRing(t, 1)}); err == nil {
		t.Error("a server without a key")
	}
	if _, err := NewClient(secp256k1.PrivKeyFromBytes(make([]byte, 32))); err == nil {
		t.Error("a client of key zero")
	}
	me := mustIdentity(t, newKey(t))
	for _, text := range []string{
		"020000000000000000000000000000000000000000000000000000000000000005", // no point has this x
		"02ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	} {
		var public [33]byte
		if err := parseIdentity(&public, text); err != nil {
			t.Fatal(err)
		}
		if _, err := me.meet(&public); err == nil {
			t.Errorf("%s is on no curve and was met", text)
		}
	}
	for _, text := range []string{"", "02", "04" + fmt.Sprintf("%064x", 1), fmt.Sprintf("02%063x", 1), fmt.Sprintf("02%064x0", 1), "zz" + fmt.Sprintf("%064x", 1)} {
		if err := parseIdentity(new([33]byte), text); err == nil {
			t.Errorf("identity %q was taken", text)
		}
	}
}
