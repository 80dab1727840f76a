package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
)

// The digest domains used here (BRC-192 section 1). Others are registered for
// profiles this project does not serve.
const (
	DomainCapabilities      = "capabilities"
	DomainLookupQuery       = "lookup-query"
	DomainServiceRules      = "service-rules"
	DomainTransactionFact   = "transaction-fact"
	DomainAssessment        = "assessment"
	DomainKnowledgeMutation = "knowledge-mutation"
)

const preimagePrefix = "BRC-OUTPUT/1/"

// Preimage returns "BRC-OUTPUT/1/" + domain, a zero byte, and the canonical
// bytes: what a digest hashes and a packet signs.
func Preimage(domain string, canonical []byte) []byte {
	b := make([]byte, 0, len(preimagePrefix)+len(domain)+1+len(canonical))
	b = append(b, preimagePrefix...)
	b = append(b, domain...)
	b = append(b, 0)
	return append(b, canonical...)
}

// Digest returns the SHA-256 of [Preimage] in lowercase hex.
func Digest(domain string, canonical []byte) string {
	h := sha256.New()
	_, _ = io.WriteString(h, preimagePrefix) // a hash never fails to write
	_, _ = io.WriteString(h, domain)
	h.Write([]byte{0})
	h.Write(canonical)
	return hex.EncodeToString(h.Sum(nil))
}
