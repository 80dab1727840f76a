package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

const (
	capabilitiesPath = "/overlay/v1/capabilities"
	openPath         = "/overlay/v1/lookup/open"
	readPath         = "/overlay/v1/lookup/read"
	closePath        = "/overlay/v1/lookup/close"

	// transportHeaderBytes is above the protocol's bound, which is counted here:
	// net/http would only cut the connection.
	transportHeaderBytes = 64 << 10

	// overhead is what a request may take beyond the wait it asks for.
	overhead = 30 * time.Second
)

// selection is what every request but discovery names and every answer repeats
// (BRC-194 s1).
type selection struct{ digest string }

// transport speaks HTTP with one base URL. It follows no redirect, accepts no
// content encoding, and believes nothing it has not checked.
type transport struct {
	base   string
	http   *http.Client
	signer *signer // nil: requests are anonymous
}

func newTransport(base string, o *Options) (*transport, error) {
	rt := o.Transport
	if rt == nil {
		rt = &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    10 * time.Second,
			IdleConnTimeout:        90 * time.Second,
			MaxIdleConnsPerHost:    2,
			DisableCompression:     true,
			MaxResponseHeaderBytes: transportHeaderBytes,
		}
	}
	t := &transport{base: base, http: &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if o.Key != nil {
		c, err := brc104.NewClient(o.Key)
		if err != nil {
			return nil, fmt.Errorf("the key: %w", err)
		}
		t.signer = &signer{client: c, peer: o.Identity}
	}
	return t, nil
}

// close drops idle connections.
func (t *transport) close() { t.http.CloseIdleConnections() }

// discover gets the signed manifest, as the key's owner is to see it. Discovery
// has no selection headers.
func (t *transport) discover(ctx context.Context) ([]byte, error) {
	return t.do(ctx, http.MethodGet, capabilitiesPath, nil, nil, wire.MaxManifestBytes, 0)
}

// post sends one request of the profile and returns the body of a 200 whose
// headers and size were right.
func (t *transport) post(ctx context.Context, path string, sel selection, body []byte, limits Limits) ([]byte, error) {
	return t.do(ctx, http.MethodPost, path, &sel, body, int64(limits.MaxBytes), time.Duration(limits.WaitMs)*time.Millisecond)
}

// do sends one request. One whose session the provider does not know any more is
// signed anew in another session, once: every request of the profile may be
// repeated as it is.
func (t *transport) do(ctx context.Context, method, path string, sel *selection, body []byte, maxBody int64, wait time.Duration) ([]byte, error) {
	for again := false; ; again = true {
		if err := t.greet(ctx); err != nil {
			return nil, err
		}
		got, err := t.send(ctx, method, path, sel, body, maxBody, wait)
		if !errors.Is(err, brc104.ErrStaleSession) {
			return got, err
		}
		if again {
			return nil, &UnverifiedError{
				Status: http.StatusUnauthorized, passing: true,
				Err: violation(RuleSignature, "it does not even know the session that it has just begun"),
			}
		}
	}
}

func (t *transport) send(ctx context.Context, method, path string, sel *selection, body []byte, maxBody int64, wait time.Duration) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, wait+overhead)
	defer cancel()
	req, err := http.NewRequestWithContext(bounded, method, t.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("Cache-Control", "no-store")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if sel != nil {
		req.Header.Set(wire.HeaderCapability, sel.digest)
		req.Header.Set(wire.HeaderProfile, wire.Profile)
	}
	var signed *brc104.Sent
	if t.signer != nil {
		if signed, err = t.signer.session.Sign(req, body); err != nil {
			return nil, fmt.Errorf("sign the request: %w", err)
		}
	}
	resp, err := t.http.Do(req)
	if err != nil {
		return nil, transportFailure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		maxBody = wire.MaxErrorBytes
	}
	a := &answer{Response: resp}
	if signed != nil {
		// Nothing of the answer is looked at before its signature was (C1).
		if err := a.read(ctx, maxBody); err != nil {
			return nil, err
		}
		if a.fault == nil {
			a.fault = t.signer.judge(signed, a)
		}
		if a.fault != nil {
			return nil, a.refused()
		}
	}
	switch {
	case resp.StatusCode == http.StatusPaymentRequired:
		return nil, &PaymentError{Endpoint: path}
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, violation(RuleRedirect, "it answered with a redirect (status %d), and redirects are not followed", resp.StatusCode)
	}
	if a.fault = checkHeaders(resp, sel); a.fault == nil && signed == nil {
		if err := a.read(ctx, maxBody); err != nil {
			return nil, err
		}
	}
	if a.fault != nil {
		return nil, a.refused()
	}
	if resp.StatusCode == http.StatusOK {
		return a.body, nil
	}
	said, err := wire.ParseError(a.body, resp.StatusCode)
	if err != nil {
		return nil, &UnverifiedError{Status: resp.StatusCode, Err: err}
	}
	return nil, said
}

// answer is a response on its way through the checks.
type answer struct {
	*http.Response
	body  []byte
	fault error // the first check that failed
}

// read takes the whole body, unless it is longer than allowed.
func (a *answer) read(ctx context.Context, most int64) error {
	if a.ContentLength > most {
		a.fault = violation(RuleSize, "the body has %d bytes, more than the %d allowed", a.ContentLength, most)
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, most+1))
	if err != nil {
		return transportFailure(ctx, err)
	}
	if a.body = body; int64(len(body)) > most {
		a.fault = violation(RuleSize, "the body has more than the %d bytes allowed", most)
	}
	return nil
}

// refused is the error of an answer with a fault. One that is not a 200 does not
// even end anything: nobody vouches for it.
func (a *answer) refused() error {
	if a.StatusCode == http.StatusOK || errors.Is(a.fault, brc104.ErrStaleSession) {
		return a.fault
	}
	return &UnverifiedError{Status: a.StatusCode, Err: a.fault}
}

// transportFailure keeps the caller's own cancellation, and what will not pass
// by itself, apart from a provider that cannot be reached now.
func transportFailure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the URL says nothing new
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("the provider cannot be trusted with a connection: %w", err)
	}
	return &transportError{err: err}
}

// checkHeaders makes the checks of C1 that need no body.
func checkHeaders(resp *http.Response, sel *selection) error {
	total := 0
	for name, values := range resp.Header {
		for _, v := range values {
			total += len(name) + len(v)
		}
	}
	if total > wire.MaxHeaderBytes {
		return violation(RuleHeaders, "the headers have %d bytes, more than the %d allowed", total, wire.MaxHeaderBytes)
	}
	if sel != nil {
		for _, h := range [2][2]string{{wire.HeaderCapability, sel.digest}, {wire.HeaderProfile, wire.Profile}} {
			if got := resp.Header.Values(h[0]); len(got) != 1 || got[0] != h[1] {
				return violation(RuleEcho, "the answer does not repeat %s", h[0])
			}
		}
	}
	for _, v := range resp.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(v), "identity") {
			return violation(RuleEncoding, "the body has a content encoding")
		}
	}
	if resp.Uncompressed {
		return violation(RuleEncoding, "the body was compressed")
	}
	return nil
}

// canonicalBase returns the canonical form of a base URL as a person typed it.
// http is for this machine, or for explicit local development.
func canonicalBase(raw string, localDevelopment bool) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("the URL %q cannot be read: %w", raw, err)
	}
	if strings.EqualFold(u.Scheme, "http") && !localDevelopment && !loopback(u.Hostname()) {
		return "", fmt.Errorf("the URL %q is not encrypted: use https, or allow local development explicitly", raw)
	}
	base, err := wire.CanonicalBase(raw, true)
	if err != nil {
		return "", fmt.Errorf("the URL %q is not a base URL: %w", raw, err)
	}
	return base, nil
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
