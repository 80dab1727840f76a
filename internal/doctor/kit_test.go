package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"encoding/hex"
	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/sample"
)

// settingsOf is a configuration that serve would take, with the database at to.
func settingsOf(t *testing.T, to string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"identity.key": strings.Repeat("0", 63) + "1\n", "operator.token": "0123456789abcdef\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "overlayd.yaml")
	text := `
baseURL: https://overlay.example.com
plainListener: true
trustedProxies: [127.0.0.1]
chain: {network: "` + sample.SyntheticNetwork + `", genesisHash: "` + hex.EncodeToString(sample.SyntheticGenesis[:]) + `"}
identity: {keyFile: ` + filepath.Join(dir, "identity.key") + `}
operator: {tokenFile: ` + filepath.Join(dir, "operator.token") + `}
services: [{name: ls_catalogue, feed: catalogue, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist]}}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := config.Load(config.Input{File: file, Environ: []string{"OVERLAYD_DATABASE_URL=" + to}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	return &l.Config
}

// examined makes every check of a configuration, without asking a public URL that a test does not serve.
func examined(t *testing.T, c *config.Config, change ...func(*Options)) map[string]Finding {
	t.Helper()
	o := Options{Config: c, Offline: true, limits: defaultLimits()}
	for _, f := range change {
		f(&o)
	}
	found := map[string]Finding{}
	for _, f := range Examine(t.Context(), o) {
		if _, twice := found[f.Check]; twice {
			t.Errorf("%s is there twice", f.Check)
		}
		found[f.Check] = f
		sentences(t, f)
	}
	return found
}

// sentences checks the shape that every finding has (D2), and that none holds the secrets of these tests (D3).
func sentences(t *testing.T, f Finding) {
	t.Helper()
	if f.Found == "" || strings.HasSuffix(f.Found, ".") || strings.Contains(f.Found, "\n") || (f.Do == "") != (f.Verdict == OK) || f.Verdict.rank() == 2 && f.Verdict != Failure {
		t.Errorf("%+v is no finding of one sentence each", f)
	}
	for _, secret := range secrets {
		if strings.Contains(f.Found+f.Do, secret) {
			t.Errorf("%+v holds the secret %q", f, secret)
		}
	}
}

var secrets = []string{"hush-hush", "0123456789abcdef", strings.Repeat("0", 63) + "1"}

// says fails unless a check came to a verdict, in words that hold each of the parts.
func says(t *testing.T, found map[string]Finding, check string, v Verdict, parts ...string) {
	t.Helper()
	f, made := found[check]
	if !made {
		t.Errorf("%s was not made", check)
		return
	}
	if f.Verdict != v {
		t.Errorf("%s says %s, want %s: %s -> %s", check, f.Verdict, v, f.Found, f.Do)
	}
	for _, part := range parts {
		if !strings.Contains(f.Found+" -> "+f.Do, part) {
			t.Errorf("%s does not say %q: %s -> %s", check, part, f.Found, f.Do)
		}
	}
}

// with is a database URL with one more setting of its sessions.
func with(t *testing.T, to, name, value string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// authority signs certificates of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string, parent *authority) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem = sign(t, parent, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func sign(t *testing.T, by *authority, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	issuer, issuerKey := template, key
	if by != nil {
		issuer, issuerKey = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue writes a certificate and its key, with the certificates of chain behind it.
func (a *authority) issue(host string, from, to time.Time, chain ...*authority) (certFile, keyFile string) {
	a.t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "leaf"}, NotBefore: from, NotAfter: to, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	_, key, text := sign(a.t, a, template)
	for _, c := range chain {
		text = append(text, c.pem...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, data := range map[string][]byte{certFile: text, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// ended is a context that has ended.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
