package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/sample"
	"github.com/overlayd/overlayd/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(e2e.Main(m)) }

// call sends a request with the operator token and returns status and body.
func call(t *testing.T, r e2e.Ready, method, path, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, r.OperatorURL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+r.OperatorToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// feedView is what the operator API tells of a feed.
type feedView struct {
	Feed, Epoch, Head string
	Rows, Sessions    int64
}

// head is how many groups were ever logged: of those, compaction removes some at any time.
func (v feedView) head(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(v.Head)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func feedOf(t *testing.T, r e2e.Ready) feedView {
	t.Helper()
	status, body := call(t, r, http.MethodGet, "/operator/v1/feeds/"+devFeed, "")
	var v feedView
	if err := json.Unmarshal([]byte(body), &v); status != http.StatusOK || err != nil {
		t.Fatalf("feed: %d %s", status, body)
	}
	return v
}

// rows are n generated groups, each one new row.
func rows(t *testing.T, seed uint64, n int) []string {
	t.Helper()
	var b bytes.Buffer
	if err := sample.Generate(t.Context(), &b, sample.Options{Seed: seed, Groups: n, PutsOnly: true}); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// change is a small group with a key of its own.
func change(key int) string {
	return fmt.Sprintf(`{"key":"a-small-change-%08d","edits":[{"op":"invalidate","contextId":"c%d","reason":"test"}]}`, key, key)
}
