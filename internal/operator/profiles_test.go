package operator

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestP1_ProfilesNeedTheToken(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/none"} {
		for _, as := range []string{"", "Bearer another-token-of-nobody"} {
			status, body, _ := s.askAs(as, http.MethodGet, path, "")
			s.refused(status, body, http.StatusUnauthorized, wire.Unauthorized)
		}
	}
}

func TestProfilesAreWhatToolsRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"heap", "allocs", "goroutine", "threadcreate", "heap?gc=1", "profile?seconds=1"} {
		status, body, header := s.ask(http.MethodGet, "/debug/pprof/"+path, "")
		if status != http.StatusOK || header.Get("Cache-Control") != "private, no-store" {
			t.Fatalf("%s: %d %v", path, status, header)
		}
		// A profile is gzipped, and names what it counts.
		z, err := gzip.NewReader(strings.NewReader(body))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(text, []byte("count")) {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
	}
	if status, body, _ := s.ask(http.MethodGet, "/debug/pprof/goroutine?debug=1", ""); status != http.StatusOK || !strings.Contains(body, "internal/operator") {
		t.Errorf("goroutines as text: %d %.200s", status, body)
	}

	// One is taken at a time, and the end of the program does not wait for it.
	type answer struct {
		status int
		body   string
	}
	long := make(chan answer, 1)
	go func() {
		a := answer{status: http.StatusServiceUnavailable}
		for a.status == http.StatusServiceUnavailable { // while the other one's is taken
			a.status, a.body, _ = s.ask(http.MethodGet, "/debug/pprof/profile?seconds=50", "")
		}
		long <- a
	}()
	testkit.Eventually(t, "a second profile is refused", func() bool {
		status, body, _ := s.ask(http.MethodGet, "/debug/pprof/profile?seconds=1", "")
		if status == http.StatusOK {
			return false
		}
		e := s.refused(status, body, http.StatusServiceUnavailable, wire.Unavailable)
		return e.Retryable
	})
	s.api.Drain()
	if a := <-long; a.status != http.StatusOK || !strings.HasPrefix(a.body, "\x1f\x8b") {
		t.Errorf("a profile that was ended early: %d, %d bytes", a.status, len(a.body))
	}
}

func TestProfilesAreBoundedAndTellNoCommandLine(t *testing.T) {
	t.Parallel()
	s := start(t)
	for path, want := range map[string]struct {
		status int
		code   wire.Code
	}{
		"profile?seconds=51":   {http.StatusBadRequest, wire.Invalid},
		"profile?seconds=0":    {http.StatusBadRequest, wire.Invalid},
		"profile?seconds=-1":   {http.StatusBadRequest, wire.Invalid},
		"trace?seconds=1.5":    {http.StatusBadRequest, wire.Invalid},
		"heap?seconds=3600":    {http.StatusBadRequest, wire.Invalid},
		"cmdline":              {http.StatusNotFound, wire.NotFound},
		"symbol":               {http.StatusNotFound, wire.NotFound},
		"":                     {http.StatusNotFound, wire.NotFound},
		"heap/more":            {http.StatusNotFound, wire.NotFound},
		"profile%3Fseconds=99": {http.StatusNotFound, wire.NotFound},
	} {
		status, body, _ := s.ask(http.MethodGet, "/debug/pprof/"+path, "")
		s.refused(status, body, want.status, want.code)
	}
	status, body, header := s.ask(http.MethodPost, "/debug/pprof/heap", "")
	s.refused(status, body, http.StatusMethodNotAllowed, wire.Invalid)
	if !strings.Contains(header.Get("Allow"), "GET") {
		t.Errorf("Allow %q", header.Get("Allow"))
	}
}
