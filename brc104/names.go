package brc104

// Version is the only version of the protocol that is spoken. The text of BRC-104 says "1.0"; what is in use says "0.1".
const Version = "0.1"

// HandshakePath is where a session begins, always at the root of the origin: clients drop the path of a base URL.
const HandshakePath = "/.well-known/auth"

// Names of the headers, as net/http writes them.
const (
	HeaderVersion     = "X-Bsv-Auth-Version"
	HeaderIdentityKey = "X-Bsv-Auth-Identity-Key"
	HeaderNonce       = "X-Bsv-Auth-Nonce"
	HeaderYourNonce   = "X-Bsv-Auth-Your-Nonce"
	HeaderSignature   = "X-Bsv-Auth-Signature"
	HeaderRequestID   = "X-Bsv-Auth-Request-Id"
	HeaderMessageType = "X-Bsv-Auth-Message-Type"
	// HeaderCertificates is never sent here; clients may send it, and browsers may want to read it.
	HeaderCertificates = "X-Bsv-Auth-Requested-Certificates"
)

const (
	headerContentType   = "Content-Type"
	headerAuthorization = "Authorization"

	lowerContentType   = "content-type"
	lowerAuthorization = "authorization"
	signedPrefix       = "x-bsv-"
	authPrefix         = "x-bsv-auth"

	typeInitialRequest  = "initialRequest"
	typeInitialResponse = "initialResponse"
	typeGeneral         = "general"
)

// AllowedHeaders are the request headers that a page of another origin must be allowed to send for the protocol to work
// (CORS Access-Control-Allow-Headers), in lower case. A product adds its own x-bsv headers.
func AllowedHeaders() []string {
	return append([]string{lowerAuthorization, lowerContentType}, ExposedHeaders()...)
}

// ExposedHeaders are the response headers that such a page must be able to read (CORS Access-Control-Expose-Headers), in lower
// case. A product adds every other x-bsv header that it ever sends: one that is signed but hidden from the page makes the
// signature fail there.
func ExposedHeaders() []string {
	return []string{
		"x-bsv-auth-version", "x-bsv-auth-identity-key", "x-bsv-auth-nonce", "x-bsv-auth-your-nonce", "x-bsv-auth-signature",
		"x-bsv-auth-request-id", "x-bsv-auth-message-type", "x-bsv-auth-requested-certificates",
	}
}
