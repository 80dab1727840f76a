package bench

import (
	"errors"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
)

// signVerify is what signing once and verifying once take, one after the other.
type signVerify struct {
	key    *secp256k1.PrivateKey
	public *secp256k1.PublicKey
	digest [32]byte
}

func newSignVerify() (*signVerify, error) {
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	return &signVerify{key: key, public: key.PubKey()}, nil
}

func (s *signVerify) once() (time.Duration, error) {
	s.digest[0]++
	began := time.Now()
	if !ecdsa.Sign(s.key, s.digest[:]).Verify(s.digest[:], s.public) {
		return 0, errors.New("a signature of our own was not verified")
	}
	return time.Since(began), nil
}
