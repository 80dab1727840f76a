package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/lookup"
)

const sessionsPath = "/operator/v1/sessions"

func grantPath(service, identity string) string {
	return "/operator/v1/services/" + url.PathEscape(service) + "/grants/" + identity
}

// changed checks an answer that says whether it changed anything.
func (s *server) changed(method, path, body string, want bool) string {
	s.t.Helper()
	status, text, _ := s.ask(method, path, body)
	var a struct{ Changed *bool }
	if err := json.Unmarshal([]byte(text), &a); status != http.StatusOK || err != nil || a.Changed == nil || *a.Changed != want {
		s.t.Fatalf("%s %s: %d %s, want changed %v", method, path, status, text, want)
	}
	return text
}

// list is what a listing of sessions shows.
func (s *server) list(query string) []sessionView {
	s.t.Helper()
	status, text, header := s.ask(http.MethodGet, sessionsPath+query, "")
	var a struct{ Sessions []sessionView }
	if err := json.Unmarshal([]byte(text), &a); status != http.StatusOK || err != nil || a.Sessions == nil || header.Get("Content-Type") != "application/json" {
		s.t.Fatalf("sessions: %d %s, %v", status, text, err)
	}
	return a.Sessions
}

func TestA3_OperatorGrantsAndRevokes(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, line := range groups(t, 31, 3) {
		if status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", line); status != 200 {
			t.Fatal(body)
		}
	}
	member := e2e.NewCaller(t, s.base).As(7)
	member.Open(members).Refused(t, wire.Unauthorized)
	path := grantPath(members, member.Identity())
	want := `{"changed":true,"granted":true,"identity":"` + member.Identity() + `","service":"` + members + `"}` + "\n"
	if got := s.changed(http.MethodPut, path, "", true); got != want {
		t.Errorf("answer %s, want %s", got, want)
	}
	s.changed(http.MethodPut, path, "{}", false)
	b := member.Open(members).Batch(t)

	// A poll that waits while the grant is taken away ends unauthorized, and no new grant revives its session.
	ended := make(chan e2e.Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := member.ReadFrom(t.Context(), b, 20*time.Second)
		ended <- a
		failed <- err
	}()
	waiting(t, s, 1)
	s.changed(http.MethodDelete, path, "", true)
	a, err := <-ended, <-failed
	if err != nil {
		t.Fatal(err)
	}
	a.Refused(t, wire.Unauthorized)
	s.changed(http.MethodDelete, path, "{}", false)
}

// waiting returns once n polls wait on the feed.
func waiting(t *testing.T, s *server, n int64) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d polls wait", n), func() bool {
		stats, err := s.feed.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return stats.Waiters == n
	})
}

func TestA9_OperatorListsAndRemovesSessions(t *testing.T) {
	t.Parallel()
	s := start(t)
	anybody := e2e.NewCaller(t, s.base)
	one, two := anybody.As(11), anybody.As(12)
	for _, m := range []*e2e.Caller{one, two} {
		s.changed(http.MethodPut, grantPath(members, m.Identity()), "", true)
	}
	if got := s.list(""); len(got) != 0 {
		t.Errorf("sessions before any: %+v", got)
	}
	public := anybody.Open(everybody).Batch(t)
	first, second := one.Open(members).Batch(t), two.Open(members).Batch(t)

	all := s.list("")
	if len(all) != 3 || !slices.IsSortedFunc(all, func(a, b sessionView) int { return strings.Compare(a.Ref, b.Ref) }) {
		t.Fatalf("sessions %+v", all)
	}
	principals := map[string]int{}
	for _, v := range all {
		principals[v.Principal]++
		if v.State != "open" || v.OpenedAt == "" || v.ExpiresAt <= v.OpenedAt || (v.Principal == "") != (v.Service == everybody) {
			t.Errorf("session %+v", v)
		}
		for _, b := range []*wire.Batch{public, first, second} {
			if strings.Contains(fmt.Sprintf("%+v", v), b.Session) {
				t.Errorf("%+v holds a session id", v)
			}
		}
	}
	if principals[""] != 1 || principals[one.Identity()] != 1 || principals[two.Identity()] != 1 {
		t.Errorf("principals %v", principals)
	}
	for query, n := range map[string]int{
		"?service=" + everybody: 1, "?service=" + url.QueryEscape(members): 2, "?principal=" + one.Identity(): 1,
		"?service=" + everybody + "&principal=" + one.Identity(): 0, "?service=unknown": 0, "?service=&principal=": 3,
	} {
		if got := s.list(query); len(got) != n {
			t.Errorf("%s lists %+v", query, got)
		}
	}

	// Removing is a revocation, for ever, and may be repeated.
	path := sessionsPath + "/" + s.list("?principal=" + one.Identity())[0].Ref
	s.changed(http.MethodDelete, path, "", true)
	s.changed(http.MethodDelete, path, "{}", false)
	one.Read(first, 0).Refused(t, wire.Unauthorized)
	two.Read(second, 0).Batch(t)
	if got := s.list("?principal=" + one.Identity()); len(got) != 1 || got[0].State != "revoked" {
		t.Errorf("after removal: %+v", got)
	}
	s.changed(http.MethodDelete, sessionsPath+"/"+uuid.NewString(), "", false)
	one.Open(members).Batch(t) // the grant stands
}

// pages is Access with sessions of its own, and a failure.
type pages struct {
	Access
	t      *testing.T
	all    []lookup.SessionInfo
	fails  int // at which page, counted from 1; 0 never
	asked  int
	filter lookup.SessionFilter
}

func (p *pages) ListSessions(_ context.Context, f lookup.SessionFilter) ([]lookup.SessionInfo, error) {
	p.asked++
	if p.asked == p.fails {
		return nil, errors.New("a cause for the log only")
	}
	if p.asked > 1 && (f.Service != p.filter.Service || *f.Principal != *p.filter.Principal) {
		p.t.Errorf("page %d asks for %+v", p.asked, f)
	}
	p.filter = f
	rest := p.all
	for len(rest) > 0 && strings.Compare(rest[0].Ref.String(), f.After.String()) <= 0 {
		rest = rest[1:]
	}
	return rest[:min(f.Limit, len(rest))], nil
}

func TestP6_AListingHoldsAllPagesOrIsNoJSON(t *testing.T) {
	t.Parallel()
	p := &pages{t: t}
	s := start(t, func(c *Config) { p.Access, c.Access = c.Access, p })
	identity := e2e.NewCaller(t, s.base).As(1).Identity()
	query := "?service=s&principal=" + identity
	failures := 0
	for _, n := range []int{0, 1, sessionPage, sessionPage + 1, 3*sessionPage - 1} {
		for _, fails := range []int{0, 1, 2} {
			p.all, p.fails, p.asked = nil, fails, 0
			for i := range n {
				ref := uuid.UUID{15: byte(i), 14: byte(i >> 8), 6: 1}
				p.all = append(p.all, lookup.SessionInfo{Ref: ref, Service: "s", State: "open", OpenedAt: uint64(i)})
			}
			if fails == 0 || fails > n/sessionPage+1 {
				got := s.list(query)
				if len(got) != n {
					t.Errorf("%d sessions: %d listed", n, len(got))
				}
				for i, v := range got {
					if v.Ref != p.all[i].Ref.String() {
						t.Fatalf("%d: %s out of order", i, v.Ref)
					}
				}
				continue
			}
			failures++
			if fails == 1 {
				status, body, _ := s.ask(http.MethodGet, sessionsPath+query, "")
				s.refused(status, body, 503, wire.Unavailable)
				continue
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+sessionsPath+query, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			var a any
			if err := json.NewDecoder(response.Body).Decode(&a); err == nil {
				t.Error("a listing that was cut off is whole JSON")
			}
			_ = response.Body.Close()
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(s.log.String(), "a cause for the log only"); n != failures || n == 0 {
		t.Errorf("%d failures of %d in the log\n%s", n, failures, s.log)
	}
}

func TestH5_OperatorOrdersAreReadStrictly(t *testing.T) {
	t.Parallel()
	s := start(t)
	identity := e2e.NewCaller(t, s.base).As(3).Identity()
	txid := strings.Repeat("ab", 32)
	prohibition := feedPath + "/prohibitions/" + txid + ".0"
	grant := grantPath(members, identity)
	const why = `{"reason":"a court said so"}`
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code               wire.Code
	}{
		"feed":                    {"PUT", "/operator/v1/feeds/other/prohibitions/" + txid + ".0", why, 404, wire.NotFound},
		"feed to allow":           {"DELETE", "/operator/v1/feeds/other/prohibitions/" + txid + ".0", "", 404, wire.NotFound},
		"short txid":              {"PUT", feedPath + "/prohibitions/" + txid[2:] + ".0", why, 400, wire.Invalid},
		"capitals":                {"PUT", feedPath + "/prohibitions/" + strings.ToUpper(txid) + ".0", why, 400, wire.Invalid},
		"no index":                {"PUT", feedPath + "/prohibitions/" + txid, why, 400, wire.Invalid},
		"empty index":             {"PUT", feedPath + "/prohibitions/" + txid + ".", why, 400, wire.Invalid},
		"leading zero":            {"PUT", feedPath + "/prohibitions/" + txid + ".00", why, 400, wire.Invalid},
		"sign":                    {"PUT", feedPath + "/prohibitions/" + txid + ".+1", why, 400, wire.Invalid},
		"index above 32 bits":     {"PUT", feedPath + "/prohibitions/" + txid + ".4294967296", why, 400, wire.Invalid},
		"no body":                 {"PUT", prohibition, "", 400, wire.Invalid},
		"no reason":               {"PUT", prohibition, "{}", 400, wire.Invalid},
		"empty reason":            {"PUT", prohibition, `{"reason":""}`, 400, wire.Invalid},
		"no text":                 {"PUT", prohibition, `{"reason":5}`, 400, wire.Invalid},
		"long reason":             {"PUT", prohibition, `{"reason":"` + strings.Repeat("r", 1025) + `"}`, 400, wire.Invalid},
		"unknown member":          {"PUT", prohibition, `{"reason":"r","Reason":"r"}`, 400, wire.Invalid},
		"duplicate":               {"PUT", prohibition, `{"reason":"r","re\u0061son":"r"}`, 400, wire.Invalid},
		"array":                   {"PUT", prohibition, `[]`, 400, wire.Invalid},
		"no JSON":                 {"PUT", prohibition, `{"reason":"r"} x`, 400, wire.Invalid},
		"BOM":                     {"PUT", prohibition, "\ufeff" + why, 400, wire.Invalid},
		"large":                   {"PUT", prohibition, strings.Repeat(" ", maxOrderBytes) + why, 413, wire.Limited},
		"empty reason to allow":   {"DELETE", prohibition, `{"reason":""}`, 400, wire.Invalid},
		"other member to allow":   {"DELETE", prohibition, `{"why":"r"}`, 400, wire.Invalid},
		"unknown service":         {"PUT", grantPath("ls_nothing", identity), "", 404, wire.NotFound},
		"service of no list":      {"PUT", grantPath(everybody, identity), "", 404, wire.NotFound},
		"revoke of no list":       {"DELETE", grantPath(everybody, identity), "", 404, wire.NotFound},
		"service with NUL":        {"PUT", grantPath("a\x00b", identity), "", 404, wire.NotFound},
		"identity in capitals":    {"PUT", grantPath(members, strings.ToUpper(identity)), "", 400, wire.Invalid},
		"identity off the curve":  {"PUT", grantPath(members, "02"+strings.Repeat("ff", 32)), "", 400, wire.Invalid},
		"identity to revoke":      {"DELETE", grantPath(members, "x"), "", 400, wire.Invalid},
		"body of a grant":         {"PUT", grant, `{"reason":"r"}`, 400, wire.Invalid},
		"body of a revocation":    {"DELETE", grant, `nonsense`, 400, wire.Invalid},
		"ref":                     {"DELETE", sessionsPath + "/x", "", 400, wire.Invalid},
		"ref in capitals":         {"DELETE", sessionsPath + "/" + strings.ToUpper("0abcdef0-0000-4000-8000-00000000000a"), "", 400, wire.Invalid},
		"ref without dashes":      {"DELETE", sessionsPath + "/0abcdef000004000800000000000000a", "", 400, wire.Invalid},
		"body of a removal":       {"DELETE", sessionsPath + "/0abcdef0-0000-4000-8000-00000000000a", `{"x":1}`, 400, wire.Invalid},
		"unknown question":        {"GET", sessionsPath + "?principle=" + identity, "", 400, wire.Invalid},
		"question twice":          {"GET", sessionsPath + "?service=a&service=b", "", 400, wire.Invalid},
		"malformed question":      {"GET", sessionsPath + "?service=%zz", "", 400, wire.Invalid},
		"service of NUL to list":  {"GET", sessionsPath + "?service=a%00b", "", 400, wire.Invalid},
		"service of bad UTF-8":    {"GET", sessionsPath + "?service=%ff", "", 400, wire.Invalid},
		"principal to list":       {"GET", sessionsPath + "?principal=02ff", "", 400, wire.Invalid},
		"POST of a prohibition":   {"POST", prohibition, why, 405, wire.Invalid},
		"GET of a grant":          {"GET", grant, "", 405, wire.Invalid},
		"POST to sessions":        {"POST", sessionsPath, "", 405, wire.Invalid},
		"prohibitions as a whole": {"GET", feedPath + "/prohibitions", "", 404, wire.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			status, body, header := s.ask(c.method, c.path, c.body)
			e := s.refused(status, body, c.status, c.code)
			if e.Retryable || header.Get("Cache-Control") != "private, no-store" {
				t.Errorf("retryable %v, header %v", e.Retryable, header)
			}
			if status, body, _ := s.askAs("Bearer wrong", c.method, c.path, c.body); status != http.StatusUnauthorized {
				t.Errorf("without the token: %d %s", status, body)
			}
		})
	}
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != 0 {
		t.Errorf("head %d, %v", stats.Head, err)
	}
	for _, table := range []string{"prohibition", "service_grant"} {
		var n int
		if err := s.pool.QueryRow(t.Context(), "select count(*) from "+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s holds %d, %v", table, n, err)
		}
	}
}
