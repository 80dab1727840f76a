package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/config"
)

// away is a configuration whose database is away: for checks that need none.
func away(t *testing.T) *config.Config {
	t.Helper()
	return settingsOf(t, "postgres://u@127.0.0.1:1/x")
}

func TestConfigurationVerdicts(t *testing.T) {
	t.Parallel()
	c := away(t)
	says(t, examined(t, c), "configuration", OK, "1 services on 1 feeds")
	c.LocalDevelopment = true
	says(t, examined(t, c), "configuration", Warning, "localDevelopment")
	c.LocalDevelopment, c.Retention.EverySeconds = false, 0
	says(t, examined(t, c), "configuration", Warning, "retention.everySeconds")
	says(t, examined(t, c, func(o *Options) { o.Nodes = 2 }), "configuration", OK)
	c.BaseURL, c.Services = "http://overlay.example.com", nil
	says(t, examined(t, c), "configuration", Failure, "plain http", "and 1 more", "overlayd config --check")
}

func TestSecretVerdicts(t *testing.T) {
	t.Parallel()
	c := away(t)
	good := func(o *Options) {
		o.Identity = func() (string, error) { return "02aa", nil }
		o.Token = func() error { return nil }
	}
	found := examined(t, c, good)
	says(t, found, "identity", OK, "02aa")
	says(t, found, "operator.token", OK)
	found = examined(t, c, func(o *Options) {
		o.Identity = func() (string, error) { return "", errors.New("identity.keyFile cannot be read: it is not there") }
		o.Token = func() error { return errors.New("the operator token has 3 characters") }
	})
	says(t, found, "identity", Failure, "cannot be read")
	says(t, found, "operator.token", Failure, "3 characters")
	if permissionsTell {
		if err := os.Chmod(filepath.Dir(c.Identity.KeyFile), 0o777); err != nil {
			t.Fatal(err)
		}
		found = examined(t, c, good)
		says(t, found, "identity", Warning, "chmod go-w", "identity.keyFile")
		says(t, found, "operator.token", Warning, "chmod go-w")
	}
	c.Identity.Key = "0123456789abcdef0123456789abcdef"
	says(t, examined(t, c, good), "identity", OK, "the environment")
	if _, made := examined(t, c)["identity"]; made {
		t.Error("an identity that nobody reads was checked")
	}
}

func TestOperatorListenVerdicts(t *testing.T) {
	t.Parallel()
	c := away(t)
	for addr, want := range map[string]Verdict{
		"127.0.0.1:8081": OK, "[::1]:8081": OK, "localhost:8081": OK, ":8081": Warning, "0.0.0.0:8081": Warning, "192.0.2.7:8081": Warning, "nonsense": Failure,
	} {
		c.Operator.Listen = addr
		says(t, examined(t, c), "operator.listen", want)
	}
}

func TestStateFileVerdicts(t *testing.T) {
	t.Parallel()
	c := away(t)
	says(t, examined(t, c), "stateFile", Warning, "not set")
	dir := t.TempDir()
	c.StateFile = filepath.Join(dir, "feeds.state")
	says(t, examined(t, c), "stateFile", Warning, "not there yet")
	if _, err := os.Stat(c.StateFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state file was made: %v", err)
	}
	if err := os.WriteFile(c.StateFile, []byte(`{"version":1,"feeds":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, c), "stateFile", OK)
	if err := os.WriteFile(c.StateFile, []byte(`{"version":1,"fe`), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, examined(t, c), "stateFile", Failure, "put a copy back")
	c.StateFile = filepath.Join(dir, "none", "feeds.state")
	says(t, examined(t, c), "stateFile", Failure, "make the folder")
}

func TestProxyVerdicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plain   bool
		tls     bool
		proxies []string
		want    Verdict
		part    string
	}{
		{false, true, nil, OK, "no proxy"},
		{true, false, []string{"10.0.0.0/8", "::1"}, OK, "10.0.0.0/8, ::1"},
		{true, false, nil, Warning, "one client"},
		{false, true, []string{"10.0.0.1"}, Warning, "speaks TLS itself"},
		{true, false, []string{"0.0.0.0/0"}, Failure, "everybody"},
		{true, false, []string{"10.0.0.1", "::/0"}, Failure, "everybody"},
		{true, false, []string{"proxy.example.com"}, Failure, "192.0.2.0/24"},
	} {
		s := away(t)
		s.PlainListener, s.TrustedProxies = c.plain, c.proxies
		if c.tls {
			s.TLS = config.TLS{CertFile: "a", KeyFile: "b"}
		}
		says(t, examined(t, s), "proxy", c.want, c.part)
	}
}

func TestCertificateVerdicts(t *testing.T) {
	t.Parallel()
	root := newAuthority(t, "root", nil)
	between := newAuthority(t, "between", root)
	pool := poolOf(t, root)
	now := time.Now()
	hour, year := time.Hour, 365*24*time.Hour
	ask := func(certFile, keyFile string, change ...func(*config.Config)) map[string]Finding {
		c := away(t)
		c.PlainListener, c.TLS = false, config.TLS{CertFile: certFile, KeyFile: keyFile}
		for _, f := range change {
			f(c)
		}
		return examined(t, c, func(o *Options) { o.Roots = pool })
	}
	const host = "overlay.example.com"
	cert, key := between.issue(host, now.Add(-hour), now.Add(year), between)
	says(t, ask(cert, key), "tls", OK, "its chain holds", "364 days left")
	if permissionsTell {
		if err := os.Chmod(key, 0o604); err != nil {
			t.Fatal(err)
		}
		says(t, ask(cert, key), "tls", Warning, "chmod o= ")
	}
	otherCert, otherKey := between.issue(host, now.Add(-hour), now.Add(year))
	says(t, ask(otherCert, otherKey), "tls", Warning, "intermediate")
	says(t, ask(otherCert, key), "tls", Failure, "no certificate with its key")
	says(t, ask(otherCert+".none", key), "tls", Failure, "no such file")
	cert, key = root.issue(host, now.Add(-hour), now.Add(13*24*hour))
	says(t, ask(cert, key), "tls", Warning, "12 days left", "renew")
	cert, key = root.issue(host, now.Add(-2*hour), now.Add(-hour))
	says(t, ask(cert, key), "tls", Failure, "expired")
	cert, key = root.issue(host, now.Add(hour), now.Add(year))
	says(t, ask(cert, key), "tls", Failure, "not valid before")
	cert, key = root.issue("other.example.com", now.Add(-hour), now.Add(year))
	says(t, ask(cert, key), "tls", Failure, "get one that names "+host)

	says(t, examined(t, away(t)), "tls", OK, "a proxy in front")
	plain := away(t)
	plain.BaseURL, plain.LocalDevelopment = "http://127.0.0.1:8080", true
	says(t, examined(t, plain), "tls", OK, "plain http")
}
