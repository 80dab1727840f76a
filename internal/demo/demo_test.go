package demo

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(t *testing.T, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w
}

func TestX1_OwnOriginOnly(t *testing.T) {
	t.Parallel()
	for path, kind := range map[string]string{
		"/demo/": "text/html", "/demo/client.js": "text/javascript", "/demo/demo.js": "text/javascript", "/demo/demo.css": "text/css",
	} {
		w := get(t, http.MethodGet, path)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %v", path, w.Header())
		}
	}
	// Nothing names another place, but for identifiers that only look like addresses.
	elsewhere := regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]+[^\s'"]*`)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, name)
		for _, found := range elsewhere.FindAllString(string(text), -1) {
			if !strings.HasPrefix(found, "https://bsv.brc.dev/") {
				t.Errorf("%s: %s", name, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{http.MethodHead, "/demo/", 200}, {http.MethodGet, "/demo", 303}, {http.MethodGet, "/demo/nothing", 404},
		{http.MethodGet, "/", 404}, {http.MethodGet, "/demonstration", 404}, {http.MethodPost, "/demo/", 405},
	} {
		if w := get(t, c.method, c.path); w.Code != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.status)
		}
	}
}
