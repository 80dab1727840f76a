package httpserve

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// reloadEvery is the shortest time between two looks at the files of a
// certificate. They are small: whoever renews them needs to tell nobody.
const reloadEvery = time.Second

// maxCertificateBytes bounds each of the files.
const maxCertificateBytes = 1 << 20

// certificates is a certificate in two files that may be replaced at any time.
// Handshakes ask for it and cause it to be looked at again; what cannot be used
// is told once and changes nothing (V4).
type certificates struct {
	certFile, keyFile string
	every             time.Duration
	log               *slog.Logger

	current atomic.Pointer[tls.Certificate]

	mu sync.Mutex
	// guarded by mu
	looked    time.Time
	cert, key []byte // as last read, usable or not
	told      string // the last failure that was told, "" after a success
}

// loadCertificates reads both files for the first time.
func loadCertificates(certFile, keyFile string, log *slog.Logger) (*certificates, error) {
	c := &certificates{certFile: certFile, keyFile: keyFile, every: reloadEvery, log: log, looked: time.Now()}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// forHandshake is tls.Config.GetCertificate. Of the handshakes that find the
// last look too long ago one looks again; none waits for it.
func (c *certificates) forHandshake(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.mu.TryLock() {
		if time.Since(c.looked) >= c.every {
			c.look()
		}
		c.mu.Unlock()
	}
	return c.current.Load(), nil
}

// look reads the files again; the caller holds mu.
func (c *certificates) look() {
	c.looked = time.Now()
	switch err := c.load(); {
	case err == nil:
		c.told = ""
	case err.Error() != c.told:
		c.told = err.Error()
		c.log.Error("the new certificate cannot be used; the old one is kept until the files are right", "error", err)
	}
}

// load puts the files' certificate in force if they changed.
func (c *certificates) load() error {
	cert, err := readSmall(c.certFile)
	if err != nil {
		return fmt.Errorf("tls.certFile cannot be read: %w; correct the path or the file's permissions", err)
	}
	key, err := readSmall(c.keyFile)
	if err != nil {
		return fmt.Errorf("tls.keyFile cannot be read: %w; correct the path or the file's permissions", err)
	}
	if c.told == "" && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	c.cert, c.key = cert, key
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s and %s are no certificate with its key: %w; put the PEM chain into the first and its private key into the second", c.certFile, c.keyFile, err)
	}
	c.current.Store(&pair)
	log := c.log.With("subject", pair.Leaf.Subject.String(), "names", pair.Leaf.DNSNames, "notAfter", pair.Leaf.NotAfter)
	if now := time.Now(); now.Before(pair.Leaf.NotBefore) || now.After(pair.Leaf.NotAfter) {
		log.Warn("a certificate that is not valid at this time is in force; clients will refuse it")
	} else {
		log.Info("a certificate is in force")
	}
	return nil
}

func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCertificateBytes || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", path, maxCertificateBytes)
	}
	return os.ReadFile(path)
}
