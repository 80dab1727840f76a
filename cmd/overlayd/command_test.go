package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest/require"
)

func TestExitCodesAndSentences(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("colour: blue\nlisten: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		env  []string
		code int
		says []string // one a line of stderr
	}{
		"version":               {args: []string{"version"}},
		"help":                  {args: []string{"dev", "--help"}},
		"unknown command":       {args: []string{"bogus"}, code: 2, says: []string{`unknown command "bogus"`, "see `overlayd --help`"}},
		"unknown flag":          {args: []string{"serve", "--nope"}, code: 2, says: []string{"unknown flag: --nope", "see `overlayd serve --help`"}},
		"missing argument":      {args: []string{"import"}, code: 2, says: []string{"accepts 1 arg(s), received 0", "see"}},
		"bad sample":            {args: []string{"sample", "many"}, code: 2, says: []string{"neither small nor a number", "see"}},
		"bad sample of dev":     {args: []string{"dev", "--data", filepath.Join(dir, "d"), "--sample", "-3"}, code: 2, says: []string{"neither none, small nor a positive number", "see"}},
		"import to nowhere":     {args: []string{"import", "--data", dir, "x"}, code: 2, says: []string{"give --operator URL", "see"}},
		"import without token":  {args: []string{"import", "--operator", "http://127.0.0.1:1", "x"}, code: 2, says: []string{"--token-file", "see"}},
		"import of no file":     {args: []string{"import", "--operator", "http://127.0.0.1:1", "--token", "0123456789abcdef", filepath.Join(dir, "none")}, code: 1, says: []string{"the file cannot be opened"}},
		"no configuration file": {args: []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, code: 1, says: []string{"does not exist"}},
		"broken configuration":  {args: []string{"config", "--config", broken}, code: 1, says: []string{"colour is not a setting", "listen must be text"}},
		"named by a variable":   {args: []string{"config"}, env: []string{"OVERLAYD_CONFIG=" + broken}, code: 1, says: []string{"colour", "listen"}},
		"unknown variable":      {args: []string{"config"}, env: []string{"OVERLAYD_COLOUR=blue"}, code: 1, says: []string{"OVERLAYD_COLOUR is not a setting"}},
		"migrate nothing":       {args: []string{"migrate"}, code: 1, says: []string{"database.url is missing"}},
		"migrate nowhere":       {args: []string{"migrate", "--database-url", "postgres://u:hush@127.0.0.1:1/x"}, code: 1, says: []string{"cannot be reached"}},
		"serve nothing": {args: []string{"serve"}, code: 1, says: []string{
			"cannot be served", "baseURL", "chain.network", "chain.genesisHash", "identity.keyFile", "operator.tokenFile", "database.url", "services",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := e2e.RunWith(t, e2e.Options{Env: c.env, Dir: t.TempDir()}, c.args...)
			if r.Code != c.code {
				t.Errorf("exit code %d, want %d", r.Code, c.code)
			}
			lines := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
			if r.Stderr == "" {
				lines = nil
			}
			if len(lines) != len(c.says) {
				t.Fatalf("stderr %q, want %d lines", r.Stderr, len(c.says))
			}
			for i, want := range c.says {
				if !strings.HasPrefix(lines[i], "overlayd: ") || !strings.Contains(lines[i], want) {
					t.Errorf("line %q does not say %q", lines[i], want)
				}
			}
			if strings.Contains(r.Stderr, "hush") {
				t.Errorf("a password on stderr: %s", r.Stderr)
			}
		})
	}
}

func TestConfigPrintsWhatIsInForce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "overlayd.yaml")
	text := "database: {url: 'postgres://u:hush@db/x'}\nlisten: 127.0.0.1:1\nservices: [{name: ls_a, rules: {id: 'urn:x'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := e2e.RunWith(t, e2e.Options{Env: []string{"OVERLAYD_MANIFESTSECONDS=5"}}, "config", "--config", file, "--operator", "127.0.0.1:2")
	for _, want := range []string{
		"listen: 127.0.0.1:1 # file " + file, "manifestSeconds: 5 # environment OVERLAYD_MANIFESTSECONDS", "listen: 127.0.0.1:2 # flag --operator",
		"postgres://u:xxxxx@db/x", "maxObservations: 1024 # default", "shutdownSeconds: 30 # default",
	} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("missing %q in\n%s", want, r.Stdout)
		}
	}
	if r.Code != 0 || strings.Contains(r.Stdout, "hush") {
		t.Errorf("code %d, output\n%s", r.Code, r.Stdout)
	}
	r = e2e.Run(t, "config", "--check", "--config", file)
	if r.Code != 1 || !strings.Contains(r.Stderr, "baseURL is missing") || !strings.Contains(r.Stdout, "baseURL: ") {
		t.Errorf("--check: code %d, stderr %s", r.Code, r.Stderr)
	}
}

func TestSampleWritesTheSameBytes(t *testing.T) {
	t.Parallel()
	first, second := e2e.Run(t, "sample", "50", "--seed", "3"), e2e.Run(t, "sample", "50", "--seed", "3")
	if first.Code != 0 || first.Stdout != second.Stdout || strings.Count(first.Stdout, "\n") != 50 {
		t.Errorf("code %d, %d lines", first.Code, strings.Count(first.Stdout, "\n"))
	}
	if other := e2e.Run(t, "sample", "50", "--seed", "4"); other.Stdout == first.Stdout {
		t.Error("the seed changes nothing")
	}
	if small := e2e.Run(t, "sample", "small"); small.Code != 0 || strings.Count(small.Stdout, "\n") < 20 {
		t.Errorf("small: code %d, %d lines", small.Code, strings.Count(small.Stdout, "\n"))
	}
}

func TestKeptAddress(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		asked, last string
		given       bool
		want        string
	}{
		{"127.0.0.1:8080", "", false, "127.0.0.1:8080"},
		{"127.0.0.1:0", "", true, "127.0.0.1:0"},
		{"127.0.0.1:0", "127.0.0.1:45678", true, "127.0.0.1:45678"},
		{"127.0.0.1:8080", "127.0.0.1:45678", false, "127.0.0.1:45678"},
		{"127.0.0.1:8080", "127.0.0.1:45678", true, "127.0.0.1:8080"},
		{"0.0.0.0:0", "127.0.0.1:45678", true, "0.0.0.0:0"},
		{"nonsense", "127.0.0.1:45678", true, "nonsense"},
	} {
		if got := kept(c.asked, c.last, c.given); got != c.want {
			t.Errorf("%d: kept(%q, %q, %v) = %q, want %q", i, c.asked, c.last, c.given, got, c.want)
		}
	}
}

func TestIdentityIsReadStrictly(t *testing.T) {
	t.Parallel()
	one := strings.Repeat("0", 63) + "1"
	const wifOfOne = "KwDiBf89QgGbjEhKnhXJuH7LrciVrZi3qYjgd9M7rFU73sVHnoWn"
	for _, text := range []string{one, wifOfOne} {
		key, err := parseIdentity("f", text)
		if err != nil || key.PubKey().ToDERHex() != "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798" {
			t.Errorf("%s: %v", text, err)
		}
	}
	const order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
	for _, text := range []string{"", "x", strings.Repeat("0", 64), order, one[2:], one + "00", wifOfOne[:50]} {
		if _, err := parseIdentity("key.file", text); err == nil || !strings.Contains(err.Error(), "key.file") {
			t.Errorf("%q is taken, or its file is not named: %v", text, err)
		}
	}
	for range 8 {
		text, err := newIdentity()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseIdentity("f", text); err != nil || len(text) != 64 {
			t.Errorf("a generated key of %s characters is refused: %v", strconv.Itoa(len(text)), err)
		}
	}
}

func TestSecretsOthersMayReadAreRefused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		require.Missing(t, "file modes", "a secret that others may read is refused")
		return
	}
	const text = "0123456789abcdef-hush"
	dir := t.TempDir()
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o620: false, 0o644: false, 0o666: false, 0o601: false} {
		path := filepath.Join(dir, fmt.Sprintf("secret-%04o", mode))
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		got, err := readSecret("identity.keyFile", path)
		if good && (err != nil || got != text) {
			t.Errorf("mode %04o: %q, %v", mode, got, err)
		}
		if !good && (err == nil || got != "" || !strings.Contains(err.Error(), "chmod 600 "+path) || !strings.Contains(err.Error(), fmt.Sprintf("%04o", mode)) ||
			strings.Contains(err.Error(), "hush")) {
			t.Errorf("mode %04o: %q, %v", mode, got, err)
		}
	}
	// A link is judged by what it leads to; a pipe by nothing; too much is no secret.
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "secret-0644"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret("k", link); err == nil {
		t.Error("a link to an open secret is followed")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if runtime.GOOS == "linux" {
		if got, err := readSecret("k", fmt.Sprintf("/proc/self/fd/%d", r.Fd())); err != nil || got != text {
			t.Errorf("a pipe: %q, %v", got, err)
		}
	}
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(long, make([]byte, maxSecretBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret("k", long); err == nil || !strings.Contains(err.Error(), "more than 4096 bytes") {
		t.Errorf("a long file: %v", err)
	}
}

func TestTokensAreChecked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	for text, good := range map[string]bool{
		"0123456789abcdef\n": true, "short": false, "0123456789 abcdef": false, "0123456789abcdé": false, strings.Repeat("a", 1025): false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadToken(path); (err == nil) != good {
			t.Errorf("token %q: %v", text, err)
		}
	}
	made, err := newToken()
	if err != nil || checkToken(made) != nil {
		t.Errorf("a generated token is refused: %q, %v", made, err)
	}
}
