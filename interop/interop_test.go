package interop

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/brc104"
)

// board is the table of clients and scenarios. The three tests fill it one after the other, and each logs what there is.
var board struct {
	sync.Mutex
	// guarded by it
	columns []column
}

type column struct {
	client string
	cells  map[string]string
}

// judge puts a client through every scenario.
func judge(t *testing.T, title string, k *kit, client official) {
	t.Helper()
	c := column{title, make(map[string]string)}
	for i, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			start := time.Now()
			t.Cleanup(func() { // the last: what the scene cleans up asserts too
				verdict := map[bool]string{true: "FAIL", false: "pass"}[t.Failed()]
				c.cells[s.name] = fmt.Sprintf("%s %d ms", verdict, time.Since(start).Milliseconds())
			})
			s.run(&scene{T: t, kit: k, client: client, genre: fmt.Sprintf("genre %d", i)})
		})
	}
	board.Lock()
	defer board.Unlock()
	board.columns = append(board.columns, c)
	t.Log("\n" + table(board.columns))
}

// table is the board in Markdown.
func table(columns []column) string {
	var b strings.Builder
	row := func(first string, cell func(column) string) {
		b.WriteString("| " + first + " |")
		for _, c := range columns {
			b.WriteString(" " + cmp.Or(cell(c), "not run") + " |")
		}
		b.WriteString("\n")
	}
	row("scenario", func(c column) string { return c.client })
	row("---", func(column) string { return "---" })
	for _, s := range scenarios() {
		row(s.name, func(c column) string { return c.cells[s.name] })
	}
	return b.String()
}

func TestC8_GoAuthhttp(t *testing.T) {
	judge(t, goTitle(t), newKit(t), authhttp{})
}

func TestC8_NodeAuthFetch(t *testing.T) {
	node, ok := nodeProgram(t, "the TypeScript client can do the whole flow on Node")
	if !ok {
		return
	}
	k := newKit(t)
	d := startNode(t, node, "node.mjs")
	judge(t, fmt.Sprintf("TypeScript AuthFetch, @bsv/sdk %s, Node %s", d.versions["sdk"], d.versions["node"]), k, d)
}

func TestC8_BrowserAuthFetch(t *testing.T) {
	const what = "the TypeScript client can do the whole flow in a browser, from a page of another origin"
	node, ok := nodeProgram(t, what)
	if !ok {
		return
	}
	chromium, ok := chromiumProgram(t, what)
	if !ok {
		return
	}
	origin := pages(t)
	k := newKit(t, origin)
	d := startBrowser(t, node, chromium, origin)
	judge(t, fmt.Sprintf("TypeScript AuthFetch, @bsv/sdk %s, Chromium %s, another origin", d.versions["sdk"], d.versions["chromium"]), k, d)
	if !k.anyAnswer(func(e exchange) bool { return e.method == http.MethodOptions && e.status == http.StatusNoContent }) {
		t.Error("the browser asked no permission for requests of another origin: the test did not show what it is for")
	}
}

// A page of an origin that is not configured learns nothing, not even that it was refused, and its calls settle.
func TestH8_BrowserOfAnotherOrigin(t *testing.T) {
	const what = "a page of an origin that is not configured is kept out by a browser"
	node, ok := nodeProgram(t, what)
	if !ok {
		return
	}
	chromium, ok := chromiumProgram(t, what)
	if !ok {
		return
	}
	configured, stranger := pages(t), pages(t)
	k := newKit(t, configured)
	d := startBrowser(t, node, chromium, configured)
	for _, c := range []struct {
		page  string
		reads bool
	}{{configured, true}, {stranger, false}, {configured, true}} {
		key := slices.Repeat([]byte{7}, 32)
		a, err := settle(t.Context(), d.at(c.page+"/").device(t, key), call{http.MethodGet, k.base() + capabilitiesPath, nil, ""})
		if c.reads && (err != nil || a.Status != http.StatusOK) {
			t.Errorf("the configured page: %v, %+v", err, a)
		}
		if !c.reads && (err == nil || !strings.Contains(err.Error(), "Failed to fetch")) {
			t.Errorf("the other page: %v, %+v", err, a)
		}
	}
	if !k.anyAnswer(func(e exchange) bool {
		return e.method == http.MethodOptions && e.path == brc104.HandshakePath && e.status == http.StatusUnauthorized
	}) {
		t.Error("no question of the other page was refused")
	}
}
