package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/bsv-blockchain/go-sdk/message"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"

	"github.com/overlayd/overlayd/internal/canon"
)

// Packet is a signed object {body, signature} (BRC-192 s1).
type Packet struct {
	Body      canon.Value // always an object
	Signature []byte      // BRC-77, 139 to 141 bytes
}

// A BRC-77 signature for the anyone verifier is
//
//	4 version | 33 signer | 1 zero: anyone | 32 key id | 69..71 DER
//
// Shorter DER exists (r or s with two leading zero bytes, one signature in some
// 30 000); it is neither made nor accepted.
const (
	minSignature  = 139
	maxSignature  = 141
	signerAt      = 4
	verifierAt    = 37
	derAt         = 70
	signatureDraw = 100 // tries to draw a signature of accepted length
)

// SignPacket returns the RFC 8785 form of {body, signature}, signed by key over
// preimage(domain, body) for the anyone verifier. The signature holds a random
// key id, so two packets of one body differ.
func SignPacket(domain string, body canon.Value, key *ec.PrivateKey) ([]byte, error) {
	if body.Kind() != canon.Object {
		return nil, errors.New("sign packet: the body must be an object")
	}
	preimage := canon.Preimage(domain, body.AppendCanonical(nil))
	for range signatureDraw {
		sig, err := message.Sign(preimage, key, nil)
		if err != nil {
			return nil, fmt.Errorf("sign packet %s: %w", domain, err)
		}
		if checkSignature(sig) != nil {
			continue
		}
		return canon.Obj(
			canon.Member{Name: "body", Value: body},
			canon.Member{Name: "signature", Value: canon.Str(base64.StdEncoding.EncodeToString(sig))},
		).AppendCanonical(nil), nil
	}
	return nil, fmt.Errorf("sign packet %s: no signature of the accepted form in %d tries", domain, signatureDraw)
}

// ParsePacket reads a packet of at most maxBytes (0 means 4 MiB) without
// checking its signature. Errors are [*Error].
func ParsePacket(data []byte, maxBytes int) (*Packet, error) {
	root, err := parseBody(data, maxBytes)
	if err != nil {
		return nil, err
	}
	r := reader{}
	r.closed(root, "the packet", "body", "signature")
	p := &Packet{Body: r.get(root, "body"), Signature: r.bytes(root, "signature")}
	if p.Body.Kind() != canon.Object {
		r.invalid("body", "must be an object")
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// VerifyPacket reads a packet of at most maxBytes (0 means 4 MiB) and checks
// its signature over preimage(domain, body). It returns the body and the
// compressed public key that signed it. Whether that key has the role the body
// claims is the caller's to check. Errors are [*Error]: Limited for a
// representation limit, Invalid otherwise.
func VerifyPacket(domain string, data []byte, maxBytes int) (canon.Value, [33]byte, error) {
	p, err := ParsePacket(data, maxBytes)
	if err != nil {
		return canon.Value{}, [33]byte{}, err
	}
	signer, err := p.Verify(domain)
	if err != nil {
		return canon.Value{}, [33]byte{}, err
	}
	return p.Body, signer, nil
}

// Verify checks the signature over preimage(domain, body) and returns the
// compressed public key that made it. Errors are [*Error] with the code
// Invalid.
func (p *Packet) Verify(domain string) ([33]byte, error) {
	if err := checkSignature(p.Signature); err != nil {
		return [33]byte{}, faultf(Invalid, "signature", "is not a strict BRC-77 signature for anyone").WithCause(err)
	}
	ok, err := verify(canon.Preimage(domain, p.Body.AppendCanonical(nil)), p.Signature)
	if err != nil || !ok {
		return [33]byte{}, faultf(Invalid, "signature", "does not fit the body").WithCause(err)
	}
	return [33]byte(p.Signature[signerAt:verifierAt]), nil
}

// checkSignature accepts the one spelling of a signature. The library's own
// verifier panics on short input and takes trailing bytes, integers beside the
// two, and the high-S twin.
func checkSignature(sig []byte) error {
	if len(sig) < minSignature || len(sig) > maxSignature {
		return fmt.Errorf("signature has %d bytes, want %d to %d", len(sig), minSignature, maxSignature)
	}
	if !bytes.Equal(sig[:signerAt], []byte{0x42, 0x42, 0x33, 0x01}) {
		return errors.New("signature has another version")
	}
	if sig[signerAt] != 2 && sig[signerAt] != 3 {
		return errors.New("signer is not a compressed key")
	}
	if sig[verifierAt] != 0 {
		return errors.New("signature is not for the anyone verifier")
	}
	der, err := ecdsa.ParseDERSignature(sig[derAt:])
	if err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	// Serialize writes minimal DER with the low S, so equality is strictness.
	if !bytes.Equal(der.Serialize(), sig[derAt:]) {
		return errors.New("signature is not strict low-S DER")
	}
	return nil
}

// verify calls the library behind a guard: a packet is input from strangers,
// and the library has panicked on such before.
func verify(preimage, sig []byte) (ok bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			ok, err = false, fmt.Errorf("signature verifier panicked: %v", p)
		}
	}()
	return message.Verify(preimage, sig, nil)
}
