package main

import (
	"crypto/tls"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestServeSpeaksTLSAndTakesANewCertificate(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first, second := e2e.NewCertificate(t, "first", time.Now().Add(time.Hour)), e2e.NewCertificate(t, "second", time.Now().Add(time.Hour))
	with, at := served(t, db.URL, setup{base: "https://%s/api", key: hushedKey, more: "tls: {certFile: cert.pem, keyFile: key.pem}",
		services: service("ls_public") + "\n" + service("ls_open", "authentication: brc103") + "\n" +
			service("ls_secret", "authentication: brc103", "access: list", "hidden: true")})
	first.Save(t, with.Dir)
	p := e2e.StartWith(t, with, "serve", "--log-format", "text")
	ready(t, at)

	anybody := e2e.NewCaller(t, at.BaseURL, first, second)
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
	if status, body := call(t, at, http.MethodPut, "/operator/v1/services/ls_secret/grants/"+one.Identity(), ""); status != 200 {
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
	testkit.Eventually(t, "the poll waits", func() bool {
		_, body := call(t, at, http.MethodGet, "/operator/v1/feeds/catalogue", "")
		return strings.Contains(body, `"waiters":1`)
	})
	second.Save(t, with.Dir)
	address := strings.Split(at.BaseURL, "/")[2]
	testkit.Eventually(t, "new connections get the new certificate", func() bool {
		conn, err := tls.Dial("tcp", address, anybody.Client.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName == "second"
	})
	if status, body := call(t, at, http.MethodPost, "/operator/v1/feeds/catalogue/groups", change(1)); status != 200 {
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
