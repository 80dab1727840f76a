package brc104

import (
	"encoding/binary"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
)

// A table makes multiples of one point cheap, for a peer that signs again and again.
//
// A scalar is cut into eight limbs of 32 bits. For limb i the table holds the odd multiples 1 to 7 of 2^(32i)*P. Each limb is
// written in digits of which at most every fourth is not zero, and each of those is odd and between -7 and 7; then all eight
// are summed at once:
//
//	for each position from the top: double; for each limb whose digit there is d, not 0: add d*2^(32i)*P
//
// That is 32 doublings and some 53 additions where a point that nothing is known of takes 128 and some 85. Making the table
// costs less than one multiplication, and it takes 2 kB: there is one for each of thousands of peers, so coordinates are kept in 32
// bytes and not as they are reckoned with, in 40. Digits of five bits would spare 9 additions and take twice as much.
type table struct {
	points [limbs][oddMultiples]affine
}

const (
	limbs        = 8
	limbBits     = 256 / limbs
	width        = 4
	oddMultiples = 1 << (width - 2)
)

// affine is a point that is not infinity: its coordinates, big endian.
type affine struct{ x, y [32]byte }

// newTable makes the table of an affine point.
func newTable(p *secp256k1.JacobianPoint) *table {
	var all [limbs * oddMultiples]secp256k1.JacobianPoint
	var base secp256k1.JacobianPoint
	base.Set(p)
	for i := range limbs {
		at := all[i*oddMultiples : (i+1)*oddMultiples]
		at[0].Set(&base)
		var twice secp256k1.JacobianPoint
		secp256k1.DoubleNonConst(&base, &twice)
		for j := 1; j < oddMultiples; j++ {
			secp256k1.AddNonConst(&at[j-1], &twice, &at[j])
		}
		base.Set(&twice)
		for range limbBits - 1 {
			secp256k1.DoubleNonConst(&base, &base)
		}
	}
	t := &table{}
	normalise(all[:], func(n int, a affine) { t.points[n/oddMultiples][n%oddMultiples] = a })
	return t
}

// normalise makes points affine with one inversion for all of them: the product of all z is inverted, and the inverse of each
// taken out of it from the back. None of the points may be infinity; no small multiple of a point is, the order being prime.
func normalise(points []secp256k1.JacobianPoint, put func(n int, a affine)) {
	before := make([]secp256k1.FieldVal, len(points)) // the product of all z before this one
	var product secp256k1.FieldVal
	product.SetInt(1)
	for i := range points {
		before[i].Set(&product)
		product.Mul(&points[i].Z)
	}
	product.Inverse()
	for i := len(points) - 1; i >= 0; i-- {
		var inverse, inverse2 secp256k1.FieldVal
		inverse.Mul2(&product, &before[i])
		product.Mul(&points[i].Z)
		inverse2.SquareVal(&inverse)
		var a affine
		var v secp256k1.FieldVal
		v.Mul2(&points[i].X, &inverse2).Normalize().PutBytesUnchecked(a.x[:])
		v.Mul2(&points[i].Y, inverse2.Mul(&inverse)).Normalize().PutBytesUnchecked(a.y[:])
		put(i, a)
	}
}

// digits writes a limb as the sum of digit[n] * 2^n, each digit odd and below 2^(width-1) in size or zero. It needs a place more
// than the limb has bits.
func digits(limb uint32, digit *[limbBits + 1]int8) {
	var carry uint32
	for n := 0; n <= limbBits; {
		if uint32(uint64(limb)>>n)&1 == carry {
			n++
			continue
		}
		window := min(width, limbBits+1-n)
		word := uint32(uint64(limb)>>n)&(1<<window-1) + carry
		carry = word >> (width - 1) & 1
		digit[n] = int8(word) - int8(carry<<width)
		n += window
	}
}

// multiply sets result to k times the point of the table.
func (t *table) multiply(k *secp256k1.ModNScalar, result *secp256k1.JacobianPoint) {
	raw := k.Bytes()
	var digit [limbs][limbBits + 1]int8
	for i := range limbs {
		digits(binary.BigEndian.Uint32(raw[32-4*(i+1):]), &digit[i])
	}
	var sum, add secp256k1.JacobianPoint // sum begins at infinity
	add.Z.SetInt(1)
	for n := limbBits; n >= 0; n-- {
		secp256k1.DoubleNonConst(&sum, &sum)
		for i := range limbs {
			d := digit[i][n]
			if d == 0 {
				continue
			}
			a := &t.points[i][max(d, -d)/2]
			add.X.SetBytes(&a.x)
			add.Y.SetBytes(&a.y)
			if d < 0 {
				add.Y.Negate(1).Normalize()
			}
			secp256k1.AddNonConst(&sum, &add, &sum)
		}
	}
	result.Set(&sum)
}
