package brc104

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"sync/atomic"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// invoicePrefix is the protocol part of the BRC-43 invoice number: security level 2, so keys differ by counterparty.
const invoicePrefix = "2-auth message signature-"

// identity is a private key with what is computed of it once.
type identity struct {
	key    secp256k1.ModNScalar
	public [33]byte
}

func newIdentity(key *secp256k1.PrivateKey) (*identity, error) {
	if key == nil || key.Key.IsZero() {
		return nil, errors.New("brc104: a private key is required")
	}
	return &identity{key: key.Key, public: [33]byte(key.PubKey().SerializeCompressed())}, nil
}

// peerKey is what is known of another identity: its point and the secret shared with it (BRC-42), which is the same for every
// message between the two.
type peerKey struct {
	point  secp256k1.JacobianPoint // affine
	shared [33]byte
	quick  atomic.Pointer[table] // of point; nil until it pays
}

// hurry makes further verifications cheaper, at the cost of about one.
func (p *peerKey) hurry() { p.quick.Store(newTable(&p.point)) }

// meet computes what identity shares with the compressed public key. It costs as much as verifying a signature does.
func (k *identity) meet(public *[33]byte) (*peerKey, error) {
	pub, err := secp256k1.ParsePubKey(public[:])
	if err != nil {
		return nil, err
	}
	p := &peerKey{}
	pub.AsJacobian(&p.point)
	var s secp256k1.JacobianPoint
	secp256k1.ScalarMultNonConst(&k.key, &p.point, &s)
	s.ToAffine()
	p.shared = compress(&s)
	return p, nil
}

// compress writes an affine point in the 33-byte form.
func compress(p *secp256k1.JacobianPoint) (out [33]byte) {
	out[0] = secp256k1.PubKeyFormatCompressedEven
	if p.Y.IsOdd() {
		out[0] = secp256k1.PubKeyFormatCompressedOdd
	}
	p.X.PutBytesUnchecked(out[1:])
	return out
}

// tweak is the scalar by which BRC-42 moves the keys of the one message that the two nonces name. first is the nonce of the
// sender, second the one it answers.
func (p *peerKey) tweak(first, second string) (t secp256k1.ModNScalar) {
	var room [512]byte
	invoice := append(append(append(append(room[:0], invoicePrefix...), first...), ' '), second...)
	mac := hmac.New(sha256.New, p.shared[:])
	mac.Write(invoice)
	var sum [32]byte
	mac.Sum(sum[:0])
	t.SetBytes(&sum)
	return t
}

// sign signs a digest for the peer under the key that the nonces name: RFC 6979, low S, DER.
func (k *identity) sign(p *peerKey, first, second string, digest *[32]byte) []byte {
	child := secp256k1.PrivateKey{Key: p.tweak(first, second)}
	child.Key.Add(&k.key)
	defer child.Zero()
	return ecdsa.Sign(&child, digest[:]).Serialize()
}

var errSignature = errors.New("the signature is not strict DER with a low S")

// parseSignature reads strict DER and refuses a high S, so that one signature has one encoding.
func parseSignature(der []byte) (r, s secp256k1.ModNScalar, err error) {
	sig, err := ecdsa.ParseDERSignature(der)
	if err != nil {
		return r, s, errSignature
	}
	if r, s = sig.R(), sig.S(); s.IsOverHalfOrder() {
		return r, s, errSignature
	}
	return r, s, nil
}

// verify reports whether the peer signed the digest under the key that the nonces name.
//
// That key is P + tG, of which the textbook computes u1*G + u2*(P + tG). It is the same as (u1 + u2*t)*G + u2*P: the tweak
// costs one scalar multiplication of numbers and none of points, and P stays what it was for the last message.
func (p *peerKey) verify(first, second string, digest *[32]byte, r, s *secp256k1.ModNScalar) bool {
	var e, w, u1, u2 secp256k1.ModNScalar
	e.SetBytes(digest)
	w.InverseValNonConst(s)
	u1.Mul2(&e, &w)
	u2.Mul2(r, &w)
	t := p.tweak(first, second)
	u1.Add(t.Mul(&u2))

	var a, b, sum secp256k1.JacobianPoint
	secp256k1.ScalarBaseMultNonConst(&u1, &a)
	if quick := p.quick.Load(); quick != nil {
		quick.multiply(&u2, &b)
	} else {
		secp256k1.ScalarMultNonConst(&u2, &p.point, &b)
	}
	secp256k1.AddNonConst(&a, &b, &sum)
	return hasX(&sum, r)
}

// hasX reports whether the x coordinate of a point, modulo the group order, is r. It does not leave Jacobian coordinates: an
// inversion would cost as much as eight additions of points.
func hasX(p *secp256k1.JacobianPoint, r *secp256k1.ModNScalar) bool {
	if p.X.IsZero() && p.Y.IsZero() || p.Z.IsZero() {
		return false
	}
	var z2, x, want secp256k1.FieldVal
	z2.SquareVal(&p.Z)
	raw := r.Bytes()
	x.SetBytes(&raw)
	if want.Mul2(&x, &z2).Normalize().Equals(&p.X) {
		return true
	}
	// x may be r plus the order, if that is still below the prime: one in 2^127 points.
	if x.IsGtOrEqPrimeMinusOrder() {
		return false
	}
	var order secp256k1.FieldVal
	order.SetByteSlice(secp256k1.Params().N.Bytes())
	x.Add(&order)
	return want.Mul2(&x, &z2).Normalize().Equals(&p.X)
}
