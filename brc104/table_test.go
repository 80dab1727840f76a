package brc104

import (
	"testing"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

func TestB9_TablesMultiplyLikeTheLibrary(t *testing.T) {
	t.Parallel()
	r := random(9)
	scalar := func(b [32]byte) *secp256k1.ModNScalar {
		k := new(secp256k1.ModNScalar)
		k.SetBytes(&b)
		return k
	}
	var scalars []*secp256k1.ModNScalar
	for n := range 256 { // powers of two, and what surrounds them
		var b [32]byte
		b[31-n/8] = 1 << (n % 8)
		k := scalar(b)
		one := new(secp256k1.ModNScalar).SetInt(1)
		minusOne := new(secp256k1.ModNScalar).NegateVal(one)
		scalars = append(scalars, k, new(secp256k1.ModNScalar).Add2(k, one), new(secp256k1.ModNScalar).Add2(k, minusOne),
			new(secp256k1.ModNScalar).NegateVal(k))
	}
	for n := range uint32(64) {
		scalars = append(scalars, new(secp256k1.ModNScalar).SetInt(n))
	}
	var full [32]byte // every limb full of ones or zeros
	for n := range 256 {
		for i := range 8 {
			v := byte(0)
			if n>>i&1 == 1 {
				v = 0xff
			}
			full[4*i], full[4*i+1], full[4*i+2], full[4*i+3] = v, v, v, v
		}
		scalars = append(scalars, scalar(full))
	}
	for range iterations(4000) {
		scalars = append(scalars, scalar([32]byte(randomBytes(r, 32))))
	}
	if raceEnabled { // nothing here runs at once with anything
		r.Shuffle(len(scalars), func(i, j int) { scalars[i], scalars[j] = scalars[j], scalars[i] })
		scalars = scalars[:100]
	}
	var tab *table
	var p secp256k1.JacobianPoint
	for i, k := range scalars {
		if i%500 == 0 {
			randomKey(r).PubKey().AsJacobian(&p)
			tab = newTable(&p)
		}
		var got, want secp256k1.JacobianPoint
		tab.multiply(k, &got)
		secp256k1.ScalarMultNonConst(k, &p, &want)
		if !got.EquivalentNonConst(&want) {
			t.Fatalf("%x times %x", k.Bytes(), p.X.Bytes())
		}
	}
}

// Digits add up to the limb they were made of, and are as sparse and small as the table needs them.
func TestB9_Digits(t *testing.T) {
	t.Parallel()
	r := random(10)
	limbsToTry := []uint32{0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 1<<31 - 1, 1 << 31, 1<<32 - 1, 0xaaaaaaaa, 0x55555555}
	for range 100_000 {
		limbsToTry = append(limbsToTry, r.Uint32())
	}
	for _, limb := range limbsToTry {
		var digit [limbBits + 1]int8
		digits(limb, &digit)
		sum, last := int64(0), -width
		for n, d := range digit {
			if d == 0 {
				continue
			}
			if d&1 == 0 || d > 2*oddMultiples-1 || d < 1-2*oddMultiples || n-last < width && n != limbBits {
				t.Fatalf("%08x: digit %d at %d, the last one at %d", limb, d, n, last)
			}
			sum, last = sum+int64(d)<<n, n
		}
		if sum != int64(limb) {
			t.Fatalf("%08x: digits make %x", limb, sum)
		}
	}
}

// A peer is verified alike with a table and without.
func TestB9_VerifyWithATable(t *testing.T) {
	t.Parallel()
	r := random(11)
	for range iterations(200) {
		me, they := mustIdentity(t, randomKey(r)), mustIdentity(t, randomKey(r))
		plain, quick := mustMeet(t, me, they.public), mustMeet(t, me, they.public)
		quick.hurry()
		toMe := mustMeet(t, they, me.public)
		digest := [32]byte(randomBytes(r, 32))
		rs, ss, err := parseSignature(they.sign(toMe, "a", "b", &digest))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*peerKey{plain, quick} {
			if !p.verify("a", "b", &digest, &rs, &ss) || p.verify("a", "c", &digest, &rs, &ss) || p.verify("a", "b", &[32]byte{}, &rs, &ss) {
				t.Fatalf("peer with table %v", p == quick)
			}
		}
	}
}
