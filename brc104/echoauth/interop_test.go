package echoauth_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/brc104/echoauth"
)

// These tests drive a real Echo server by the official Go client.

func TestA1_OfficialClient(t *testing.T) {
	t.Parallel()
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, _ *echo.Group) { signed.Any("/*", reflect) }))
	d := newDevice(t, newKey(t))
	big := `"` + strings.Repeat("x", 64<<10) + `"`
	for _, c := range []struct {
		method, path, body, want string
		headers                  []string
	}{
		{"GET", "/signed/a", "", `"GET without a body"`, nil},
		{"GET", "/signed/a?", "", `"GET without a body"`, nil},
		{"GET", "/signed/a?x=&y=a+b&z=%20", "", `"GET without a body"`, nil},
		{"GET", "/signed/a%20b/é!", "", `"GET without a body"`, nil},
		{"POST", "/signed/a", `{"version": 1}`, `{"version": 1}`, nil},
		{"POST", "/signed/a", " {\t\"b\":\"\\u003c\", \"a\":1} ", " {\t\"b\":\"\\u003c\", \"a\":1} ", nil},
		{"POST", "/signed/a", "{}", "{}", nil}, // not transmitted by the client
		{"POST", "/signed/a", "", "{}", []string{"content-type", "application/json"}},
		{"POST", "/signed/a", `[1]`, `[1]`, []string{"content-type", "application/json;charset=utf-8"}},
		{"POST", "/signed/a", "", `"POST without a body"`, []string{"content-type", "text/plain"}},
		{"PUT", "/signed/a", big, big, nil},
		{"PATCH", "/signed/a", `{"a":1}`, `{"a":1}`, nil},
		{"DELETE", "/signed/a", "", `"DELETE without a body"`, nil},
		{
			"POST", "/signed/a", `1`, `1`,
			[]string{"x-bsv-f", "6", "x-bsv-e", "5", "x-bsv-d", "4", "x-bsv-c", "3", "x-bsv-overlay-profile", "p", "authorization", "Bearer x"},
		},
	} {
		a, err := d.do(c.method, n.URL+c.path, c.body, c.headers...)
		if err != nil || a.status != http.StatusOK || a.body != c.want {
			t.Errorf("%s %s %.20s: %d %.80s, %v", c.method, c.path, c.body, a.status, a.body, err)
		}
	}
	if got := n.handshakes.Load(); got != 1 {
		t.Errorf("%d handshakes", got)
	}
}

func TestH4_OfficialClientReadsEveryStatus(t *testing.T) {
	t.Parallel()
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, _ *echo.Group) {
		signed.GET("/:status", func(c echo.Context) error {
			var status int
			if _, err := fmt.Sscan(c.Param("status"), &status); err != nil {
				return err
			}
			if status >= 400 {
				return echo.NewHTTPError(status, "refused")
			}
			return c.JSON(status, map[string]int{"status": status})
		})
	}))
	d := newDevice(t, newKey(t))
	for _, status := range []int{200, 201, 202, 400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 501, 503} {
		a, err := d.do("GET", fmt.Sprintf("%s/signed/%d", n.URL, status), "")
		if err != nil || a.status != status || a.body == "" {
			t.Errorf("%d: %d %q, %v", status, a.status, a.body, err)
		}
	}
	// 204 has no body, which clients cannot verify.
	if a, err := d.do("GET", n.URL+"/signed/204", ""); err != nil || a.status != 200 {
		t.Errorf("204: %d %q, %v", a.status, a.body, err)
	}
	if a, err := d.do("GET", n.URL+"/signed/304", ""); err != nil || a.status != 500 {
		t.Errorf("304: %d %q, %v", a.status, a.body, err)
	}
}

// While one device waits, another of the same identity works, and strangers send handshakes in its name. The official servers
// fail here: they answer in the latest session of the identity.
func TestA1_OtherDevicesAndPlantedHandshakesDuringAPoll(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, _ *echo.Group) {
		signed.POST("/poll", func(c echo.Context) error {
			close(arrived)
			<-release
			return c.JSON(http.StatusOK, "polled")
		})
		signed.POST("/call", reflect)
	}))
	alice := newKey(t)
	first, second := newDevice(t, alice), newDevice(t, alice)
	first.must("POST", n.URL+"/signed/call", `1`)

	var polls sync.WaitGroup
	polls.Go(func() {
		a, err := first.do("POST", n.URL+"/signed/poll", `{"wait":true}`)
		if err != nil || a.status != 200 || a.body != "\"polled\"\n" {
			t.Errorf("the poll: %d %q, %v", a.status, a.body, err)
		}
	})
	<-arrived
	second.must("POST", n.URL+"/signed/call", `2`)
	hello := must(brc104.NewClient(alice)).Hello() // what anyone could send who knows the public key
	for range 5 {
		a := send(t, must(http.NewRequest("POST", n.URL+brc104.HandshakePath, strings.NewReader(string(hello.Body)))))
		if a.status != 200 {
			t.Errorf("planted handshake: %d", a.status)
		}
	}
	close(release)
	polls.Wait()
	first.must("POST", n.URL+"/signed/call", `3`)
	second.must("POST", n.URL+"/signed/call", `4`)
}

func TestA1_OfficialClientOverRestarts(t *testing.T) {
	t.Parallel()
	key, ring, at := newKey(t), newRing(t), newClock()
	build := func(r *brc104.Ring, guard brc104.ReplayGuard) *echo.Echo {
		s := newServer(t, brc104.Config{Key: key, Sessions: r, SessionTTL: time.Minute, Clock: at.now, Replay: guard})
		return newEcho(t, echoauth.Options{Server: s}, func(signed, _ *echo.Group) { signed.POST("/call", reflect) })
	}
	n := start(t, build(ring, nil))
	d := newDevice(t, newKey(t))
	call := func(when string, handshakes int64) {
		t.Helper()
		if a, err := d.do("POST", n.URL+"/signed/call", `{"n":1}`); err != nil || a.status != 200 {
			t.Fatalf("%s: %d, %v", when, a.status, err)
		}
		if got := n.handshakes.Load(); got != handshakes {
			t.Fatalf("%s: %d handshakes, want %d", when, got, handshakes)
		}
	}
	call("first", 1)
	n.echo.Store(build(ring, nil))
	call("after a restart with the same ring", 1)
	rotated := &brc104.Ring{Epoch: 1, Secrets: append(newRing(t).Secrets, ring.Secrets...)}
	n.echo.Store(build(rotated, nil))
	call("after a rotation", 1)
	at.advance(2 * time.Minute)
	call("after the session expired", 2)
	n.echo.Store(build(&brc104.Ring{Epoch: 1, Secrets: rotated.Secrets[:1]}, nil))
	call("after the old secret was dropped", 2)
	n.echo.Store(build(&brc104.Ring{Epoch: 2, Secrets: rotated.Secrets[:1]}, nil))
	call("in the next epoch", 3)
	n.echo.Store(build(newRing(t), nil))
	call("after the ring was lost", 4)
	at.advance(time.Second)
	n.echo.Store(build(newRing(t), brc104.NewMemoryGuard(0, at.now().Add(-time.Millisecond))))
	call("with a guard that begins with the process", 5)
}

func TestA1_AFullGuardCostsAHandshake(t *testing.T) {
	t.Parallel()
	s := newServer(t, brc104.Config{Replay: brc104.NewMemoryGuard(8, time.Time{})})
	n := start(t, newEcho(t, echoauth.Options{Server: s}, func(signed, _ *echo.Group) { signed.POST("/call", reflect) }))
	d := newDevice(t, newKey(t))
	for i := range 40 {
		if a, err := d.do("POST", n.URL+"/signed/call", `{"n":1}`); err != nil || a.status != 200 {
			t.Fatalf("call %d: %d, %v", i, a.status, err)
		}
	}
	if got := n.handshakes.Load(); got < 2 || got > 20 {
		t.Errorf("%d handshakes", got)
	}
}

func TestA1_ParallelFetchesOfOneClient(t *testing.T) {
	t.Parallel()
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, _ *echo.Group) { signed.POST("/call", reflect) }))
	d := newDevice(t, newKey(t))
	for round := range 2 { // the first finds no session, the second does
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				body := fmt.Sprintf(`{"round":%d,"n":%d}`, round, i)
				a, err := d.do("POST", n.URL+"/signed/call", body)
				if err != nil || a.status != 200 || a.body != body {
					t.Errorf("round %d call %d: %d %q, %v", round, i, a.status, a.body, err)
				}
			})
		}
		all.Wait()
	}
}

// A client that turned anonymous by itself gets no signed route.
func TestA1_NoDowngrade(t *testing.T) {
	t.Parallel()
	alice := newKey(t)
	n := start(t, newEcho(t, echoauth.Options{}, func(signed, public *echo.Group) {
		signed.POST("/call", reflect)
		public.POST("/call", func(c echo.Context) error {
			peer, ok := echoauth.PeerFrom(c.Request().Context())
			if !ok {
				t.Error("no call in the context")
			}
			return c.JSON(http.StatusOK, peer != nil && peer.Identity == identityOf(alice))
		})
	}))
	post := func(path string, headers ...string) answer {
		r := must(http.NewRequest("POST", n.URL+path, strings.NewReader(`{}`)))
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return send(t, r)
	}
	if a := post("/signed/call"); a.status != 401 || !strings.Contains(a.body, `"unauthorized"`) {
		t.Errorf("anonymous on a signed route: %d %s", a.status, a.body)
	}
	if a := post("/public/call"); a.status != 200 || a.body != "false\n" || a.header.Get(brc104.HeaderSignature) != "" {
		t.Errorf("anonymous on a public route: %d %s %v", a.status, a.body, a.header)
	}
	if a := post("/public/call", brc104.HeaderNonce, "x"); a.status != 401 {
		t.Errorf("half authenticated on a public route: %d %s", a.status, a.body)
	}
	d := newDevice(t, alice)
	if a := d.must("POST", n.URL+"/public/call", `1`); a.body != "true\n" {
		t.Errorf("authenticated on a public route: %s", a.body)
	}
}
