package httpserve

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
)

func save(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startTLS serves handler with a certificate that is looked at on every handshake.
func startTLS(t *testing.T, certFile, keyFile string, log io.Writer, handler http.HandlerFunc) string {
	t.Helper()
	s, err := Listen(t.Context(), Config{Name: "test", Addr: "127.0.0.1:0", CertFile: certFile, KeyFile: keyFile,
		Log: slog.New(slog.NewTextHandler(log, nil)), Drain: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	s.tls.every = 0
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, handler) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

// presented is the common name of the certificate that a new connection is shown.
func presented(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only the name is looked at
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestV4_CertificatesAreReplacedAndABrokenOneIsNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	year := time.Now().Add(365 * 24 * time.Hour)
	put := func(c e2e.Certificate) { c.Save(t, dir) }
	first := e2e.NewCertificate(t, "first", year)
	second := e2e.NewCertificate(t, "second", year)
	certFile, keyFile := first.Save(t, dir)
	log := &testkit.Log{}
	addr := startTLS(t, certFile, keyFile, log, func(http.ResponseWriter, *http.Request) {})
	shows := func(want string) {
		t.Helper()
		if got := presented(t, addr); got != want {
			t.Errorf("certificate %s, want %s", got, want)
		}
	}
	const refused = "the old one is kept"
	shows("first")
	// Half of the replacement is there: the certificate without its key.
	save(t, certFile, second.Cert)
	shows("first")
	shows("first")
	if n := log.Count(refused); n != 1 {
		t.Errorf("the broken pair is told %d times", n)
	}
	save(t, keyFile, second.Key)
	shows("second")
	save(t, keyFile, []byte("no key"))
	shows("second")
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	shows("second")
	if n := log.Count(refused); n != 3 {
		t.Errorf("three kinds of failure are told %d times", n)
	}
	// The very files from before the failure are taken again.
	put(second)
	shows("second")
	put(first)
	shows("first")
	expired := e2e.NewCertificate(t, "expired", time.Now().Add(-time.Minute))
	put(expired)
	shows("expired")
	if log.Count("not valid at this time") != 1 || log.Count(refused) != 3 {
		t.Errorf("log:\n%s", log.String())
	}
	if log.Count("PRIVATE KEY") != 0 || log.Count("no key") != 0 {
		t.Error("what the files hold is in the log")
	}
}

func TestV4_NoServerWithoutTheCertificateItWasToldToHave(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := e2e.NewCertificate(t, "first", time.Now().Add(time.Hour))
	certFile, keyFile := server.Save(t, dir)
	empty := filepath.Join(dir, "empty")
	save(t, empty, nil)
	for says, c := range map[string]Config{
		"tls.certFile":          {CertFile: filepath.Join(dir, "none"), KeyFile: keyFile},
		"tls.keyFile":           {CertFile: certFile},
		"are no certificate":    {CertFile: certFile, KeyFile: empty},
		"is no file of at most": {CertFile: dir, KeyFile: keyFile},
	} {
		c.Addr = "127.0.0.1:0"
		if s, err := Listen(t.Context(), c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v does not say %q", err, says)
			if err == nil {
				_ = s.Close()
			}
		}
	}
}

func TestTLSVersionsAndHTTP2(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := e2e.NewCertificate(t, "server", time.Now().Add(time.Hour))
	certFile, keyFile := server.Save(t, dir)
	addr := startTLS(t, certFile, keyFile, io.Discard, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, r.Proto+" "+string(body))
	})
	for want, two := range map[string]bool{"HTTP/2.0 hello": true, "HTTP/1.1 hello": false} {
		transport := e2e.Transport(t, server)
		transport.ForceAttemptHTTP2 = two
		response, err := (&http.Client{Transport: transport}).Post("https://"+addr, "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("answer %q, %v; want %q", body, err, want)
		}
	}
	roots := e2e.Transport(t, server).TLSClientConfig.RootCAs
	for version, good := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version})
		if (err == nil) != good {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	// Plain HTTP on the port is refused, whole.
	response, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: status %d", response.StatusCode)
	}
}
