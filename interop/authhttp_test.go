package interop

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	clients "github.com/bsv-blockchain/go-sdk/auth/clients/authhttp"
	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"
	"github.com/bsv-blockchain/go-sdk/wallet"
)

// authhttp is the official Go client.
type authhttp struct{}

type authhttpDevice struct{ client *clients.AuthFetch }

func (authhttp) device(t *testing.T, key []byte) device {
	t.Helper()
	private, _ := ec.PrivateKeyFromBytes(key)
	w, err := wallet.NewCompletedProtoWallet(private)
	if err != nil {
		t.Fatal(err)
	}
	connections := &http.Transport{}
	t.Cleanup(connections.CloseIdleConnections)
	return &authhttpDevice{clients.New(w, clients.WithoutLogging(), clients.WithHttpClientTransport(connections))}
}

func (d *authhttpDevice) fetch(ctx context.Context, c call) (answer, error) {
	options := &clients.SimplifiedFetchRequestOptions{Method: c.Method, Headers: c.Headers}
	if c.Body != "" {
		options.Body = []byte(c.Body)
	}
	res, err := d.client.Fetch(ctx, c.URL, options)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{Status: res.StatusCode, Headers: make(map[string]string), Body: string(body)}
	for name := range res.Header {
		a.Headers[strings.ToLower(name)] = res.Header.Get(name)
	}
	return a, nil
}

// goTitle names the client and its version, which go.mod tells: a test binary does not know it.
func goTitle(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`github\.com/bsv-blockchain/go-sdk (v\S+)`).FindSubmatch(mod)
	if found == nil {
		t.Fatal("go.mod names no go-sdk")
	}
	return fmt.Sprintf("Go authhttp, go-sdk %s", found[1])
}
