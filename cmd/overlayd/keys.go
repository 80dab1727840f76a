package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/operator"
)

// identityOf is the private key of a configuration: from the environment when it
// is there, else from its file.
func identityOf(c *config.Config) (*ec.PrivateKey, error) {
	if c.Identity.Key != "" {
		return parseIdentity("OVERLAYD_IDENTITY_KEY", strings.TrimSpace(c.Identity.Key))
	}
	text, err := readSecret("identity.keyFile", c.Identity.KeyFile)
	if err != nil {
		return nil, err
	}
	return parseIdentity(c.Identity.KeyFile, text)
}

// parseIdentity reads a private key: 64 hex characters or WIF. Its errors name
// where it was found and nothing of the text.
func parseIdentity(where, text string) (*ec.PrivateKey, error) {
	var key *ec.PrivateKey
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == 32 {
		key, _ = ec.PrivateKeyFromBytes(raw)
	} else if key, err = ec.PrivateKeyFromWif(text); err != nil {
		return nil, fmt.Errorf("the identity key in %s is neither 64 hex characters nor WIF; correct it", where)
	}
	// The library takes any 32 bytes; a key lies between 1 and the group's order.
	if d := new(big.Int).SetBytes(key.Serialize()); d.Sign() == 0 || d.Cmp(ec.S256().N) >= 0 {
		return nil, fmt.Errorf("the identity key in %s is out of range; make another", where)
	}
	return key, nil
}

// loadToken reads the operator token.
func loadToken(path string) (string, error) {
	text, err := readSecret("operator.tokenFile", path)
	if err != nil {
		return "", err
	}
	if err := checkToken(text); err != nil {
		return "", fmt.Errorf("the operator token in %s %w", path, err)
	}
	return text, nil
}

func checkToken(text string) error {
	if len(text) < operator.MinToken || len(text) > 1024 {
		return fmt.Errorf("has %d characters; use %d to 1024", len(text), operator.MinToken)
	}
	for _, r := range text {
		if r <= ' ' || r > '~' {
			return errors.New("holds something else than visible ASCII characters; make another")
		}
	}
	return nil
}

// maxSecretBytes bounds a file that holds a key or a token.
const maxSecretBytes = 4096

// readSecret reads a short text that nobody but its owner can. What is no
// regular file, such as a pipe, was made for this one reading.
func readSecret(key, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w; correct the path or the file's permissions", key, err)
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w; correct the path", key, err)
	}
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&0o077 != 0 && runtime.GOOS != "windows" { // there these bits say nothing
		return "", fmt.Errorf("%s names %s, which others than its owner may use (mode %04o); run chmod 600 %[2]s, and make another secret if others may have read it",
			key, path, mode.Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w; correct the path", key, err)
	}
	if len(data) > maxSecretBytes {
		return "", fmt.Errorf("%s names %s, which holds more than %d bytes; name the right file", key, path, maxSecretBytes)
	}
	return strings.TrimSpace(string(data)), nil
}

// createSecret makes a file that only its owner may read, unless it exists.
func createSecret(path string, text func() (string, error)) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret, err := text()
	if err != nil {
		return err
	}
	return writeFile(path, []byte(secret+"\n"))
}

// newIdentity is a fresh private key in hex.
func newIdentity() (string, error) {
	key, err := ec.NewPrivateKey()
	if err != nil {
		return "", fmt.Errorf("drawing an identity key: %w", err)
	}
	return hex.EncodeToString(key.Serialize()), nil
}

// newToken is a fresh operator token of at least 128 random bits.
func newToken() (string, error) { return strings.ToLower(rand.Text()), nil }

// writeFile replaces a file whole: a crash leaves the old one or the new one.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // mode 0600
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
