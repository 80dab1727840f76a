package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/overlayd/overlayd/client"
)

// certificate asks whether the files of a certificate are one that clients of baseURL will take.
func (x *examination) certificate(context.Context) (Finding, error) {
	c := x.Config
	if !c.TLS.Set() {
		if strings.HasPrefix(c.BaseURL, "https:") {
			return ok("a proxy in front ends TLS: overlayd has no certificate of its own"), nil
		}
		return ok("there is no TLS to check: baseURL is plain http"), nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
	if err != nil {
		return failure(fmt.Sprintf("%s and %s are no certificate with its key: %v", c.TLS.CertFile, c.TLS.KeyFile, err),
			"put the PEM chain, the server's own first, into the one and its private key into the other"), nil
	}
	now, leaf := x.Now(), pair.Leaf
	left := leaf.NotAfter.Sub(now)
	switch {
	case left <= 0:
		return failure(fmt.Sprintf("the certificate expired on %s", leaf.NotAfter.UTC().Format(time.DateOnly)), "renew it: a running overlayd takes the new files by itself"), nil
	case now.Before(leaf.NotBefore):
		return failure(fmt.Sprintf("the certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339)), "correct this machine's clock, or wait"), nil
	}
	host := ""
	if u, err := url.Parse(c.BaseURL); err == nil {
		host = u.Hostname()
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return failure(fmt.Sprintf("the certificate is not for the host of baseURL: %v", err), "get one that names "+host), nil
	}
	days := fmt.Sprintf("%d days left", int(left.Hours()/24))
	if left < x.limits.certificateWarning {
		return warning(fmt.Sprintf("the certificate expires on %s, %s", leaf.NotAfter.UTC().Format(time.DateOnly), days), "renew it, and see why that does not happen by itself"), nil
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(cert)
		}
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: x.Roots, Intermediates: between, CurrentTime: now}); err != nil {
		return warning(fmt.Sprintf("clients that trust what this machine trusts will refuse the certificate: %v", err),
			"put the intermediate certificates behind the server's own into tls.certFile; with an authority of your own, clients have to trust it"), nil
	}
	if info, err := os.Stat(c.TLS.KeyFile); err == nil && permissionsTell && info.Mode().Perm()&0o007 != 0 {
		return warning(fmt.Sprintf("everybody on this machine may use %s (mode %04o)", c.TLS.KeyFile, info.Mode().Perm()), "run chmod o= "+c.TLS.KeyFile), nil
	}
	return ok("the certificate names %s, its chain holds, %s", host, days), nil
}

// maxPublicBytes bounds what is read of an answer that is not looked into.
const maxPublicBytes = 4096

// publicURL asks the public URL, as a client would, who is there.
func (x *examination) publicURL(ctx context.Context) (Finding, error) {
	c := x.Config
	if x.Offline || c.BaseURL == "" {
		return Finding{}, errNothing
	}
	transport := x.Transport
	if transport == nil {
		own := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: x.Roots, MinVersion: tls.VersionTLS12}}
		defer own.CloseIdleConnections()
		transport = own
	}
	chain := client.Chain{Network: c.Chain.Network, GenesisHash: c.Chain.GenesisHash}
	_, err := client.Discover(ctx, client.Options{BaseURL: c.BaseURL, Identity: x.identity, Chain: &chain, LocalDevelopment: c.LocalDevelopment, Transport: transport})
	switch {
	case err == nil:
	case unreached(err):
		return warning(fmt.Sprintf("%s does not answer from here: %v", c.BaseURL, causeOf(err)),
			"start the provider, then run this again, also from outside; some networks do not reach their own public address"), nil
	default:
		return failure(fmt.Sprintf("%s answers, but not as this provider: %v", c.BaseURL, err),
			"see what baseURL leads to; a proxy must pass path, header and body as they are, and neither compress nor cache"), nil
	}
	if exposed, err := x.exposed(ctx, transport); err != nil || exposed {
		if err != nil {
			return warning(fmt.Sprintf("%s answers as this provider, and then did not answer: %v", c.BaseURL, causeOf(err)), "run this again"), nil
		}
		return failure("the operator API answers at the public address of baseURL", "let the proxy pass requests to listen alone; operator.listen belongs on loopback or a network of your own"), nil
	}
	return ok("%s answers with a manifest of this identity and chain", c.BaseURL), nil
}

// exposed reports whether the operator's listener is what answers at the origin.
func (x *examination) exposed(ctx context.Context, transport http.RoundTripper) (bool, error) {
	u, err := url.Parse(x.Config.BaseURL)
	if err != nil {
		return false, err
	}
	u.Path, u.RawPath = "/readyz", ""
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close() //nolint:errcheck // read only
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPublicBytes))
	return strings.Contains(string(body), `"ready":`) && strings.Contains(string(body), `"checks":`), err
}

// unreached says that nobody was there, which is no wonder before the first start. A certificate that is refused is
// somebody.
func unreached(err error) bool {
	if _, refused := errors.AsType[*tls.CertificateVerificationError](err); refused {
		return false
	}
	_, dialled := errors.AsType[*net.OpError](err)
	_, looked := errors.AsType[*net.DNSError](err)
	return dialled || looked || errors.Is(err, context.DeadlineExceeded)
}

// causeOf is the innermost of an error that says several times where it was going.
func causeOf(err error) error {
	if dial, ok := errors.AsType[*net.OpError](err); ok {
		return dial
	}
	return err
}
