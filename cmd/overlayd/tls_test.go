package main

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestServeSpeaksTLSAndTakesANewCertificate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	dir := t.TempDir()
	public, private := freeAddr(t), freeAddr(t)
	first, second := e2e.NewCertificate(t, "first", time.Now().Add(time.Hour)), e2e.NewCertificate(t, "second", time.Now().Add(time.Hour))
	first.Save(t, dir)
	for name, text := range map[string]string{
		"identity.key":   hushedKey,
		"operator.token": "0123456789abcdef",
		"overlayd.yaml": fmt.Sprintf(`
baseURL: https://%[1]s/api
listen: %[1]s
tls: {certFile: cert.pem, keyFile: key.pem}
operator: {listen: %[2]s, tokenFile: operator.token}
identity: {keyFile: identity.key}
chain: {network: main, genesisHash: "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"}
services:
  - {name: ls_public, feed: catalogue, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist]}}}
  - {name: ls_open, feed: catalogue, authentication: brc103, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist]}}}
  - {name: ls_secret, feed: catalogue, authentication: brc103, access: list, hidden: true, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist]}}}
`, public, private),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := e2e.StartWith(t, e2e.Options{Dir: dir, Env: []string{"OVERLAYD_CONFIG=overlayd.yaml", "OVERLAYD_DATABASE_URL=" + db.URL}}, "serve", "--log-format", "text")
	ready := e2e.Ready{OperatorURL: "http://" + private, OperatorToken: "0123456789abcdef", BaseURL: "https://" + public + "/api"}
	eventually(t, "the provider is ready", func() bool {
		response, err := http.Get(ready.OperatorURL + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})

	anybody := e2e.NewCaller(t, ready.BaseURL, first, second)
	one := anybody.As(71)
	b := one.Open("ls_open").Batch(t)
	for b.Phase != wire.PhaseLive {
		b = one.Read(b, 0).Batch(t)
	}
	// A service that is hidden and listed is there for those it was granted to, and for nobody else.
	names := func(c *e2e.Caller) string {
		m, a := c.Capabilities()
		if a.Proto != 2 {
			t.Errorf("HTTP/%d", a.Proto)
		}
		var all []string
		for _, s := range m.Services {
			all = append(all, s.Name)
		}
		return strings.Join(all, " ")
	}
	if a, b := names(anybody), names(one); a != "ls_open ls_public" || b != a {
		t.Errorf("before the grant the services are %s, and to a caller %s", a, b)
	}
	one.Open("ls_secret").Refused(t, wire.NotFound)
	if status, body := call(t, ready, http.MethodPut, "/operator/v1/services/ls_secret/grants/"+one.Identity(), ""); status != 200 {
		t.Fatal(body)
	}
	if a, b := names(anybody), names(one); a != "ls_open ls_public" || b != "ls_open ls_public ls_secret" {
		t.Errorf("after the grant the services are %s, and to the caller %s", a, b)
	}

	// A poll over HTTP/2 is woken, and outlives the change of the certificate.
	got := make(chan e2e.Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := one.ReadFrom(t.Context(), b, 25*time.Second)
		got <- a
		failed <- err
	}()
	eventually(t, "the poll waits", func() bool {
		_, body := call(t, ready, http.MethodGet, "/operator/v1/feeds/catalogue", "")
		return strings.Contains(body, `"waiters":1`)
	})
	second.Save(t, dir)
	eventually(t, "new connections get the new certificate", func() bool {
		conn, err := tls.Dial("tcp", public, anybody.Client.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName == "second"
	})
	if status, body := call(t, ready, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
		t.Fatal(body)
	}
	a, err := <-got, <-failed
	if err != nil {
		t.Fatal(err)
	}
	if w := a.Batch(t); a.Proto != 2 || len(w.Groups) != 1 {
		t.Errorf("the poll was answered over HTTP/%d: %s", a.Proto, a.Body)
	}
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if log := p.Stderr(); strings.Contains(log, hushedKey) || strings.Contains(log, "PRIVATE KEY") || strings.Count(log, "a certificate is in force") != 2 {
		t.Errorf("log\n%s", log)
	}
}
