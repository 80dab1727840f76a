package lookup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/httpserve"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// asleep counts the polls that sleep.
func (n *node) asleep() (count func() int32, stop func()) {
	var sleeping atomic.Int32
	stop = n.during(beforeSleep, func() { sleeping.Add(1) })
	return sleeping.Load, stop
}

// TestW7_AShutdownAnswersEveryoneWhole: many polls wait and some Opens are under way when the program stops as it does, provider first;
// everyone gets a whole answer, and nobody new is served.
func TestW7_AShutdownAnswersEveryoneWhole(t *testing.T) {
	t.Parallel()
	n := start(t, setup{poolConns: 24})
	n.provider.dozing = 0 // polls are parked at once
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server, err := httpserve.Listen(ctx, httpserve.Config{Name: "public", Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, n.provider.Echo()) }()
	address := server.Addr().String()
	digest := n.capability()
	const polls, opens = 120, 4
	b := n.live(`{}`)
	ask := func(request string) <-chan reply {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		c := make(chan reply, 1)
		go func() {
			defer close(c)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Error(err)
				return
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Errorf("a body was cut: %v", err)
			}
			c <- reply{res.StatusCode, res.Header, body}
		}()
		return c
	}
	var sleeping, opening atomic.Int32
	release := make(chan struct{})
	pause := func(at moment) {
		switch at {
		case beforeSleep:
			sleeping.Add(1)
		case afterFirst:
			opening.Add(1)
			<-release
		}
	}
	n.provider.pause.Store(&pause)
	var answers, opened []<-chan reply
	for range polls {
		answers = append(answers, ask(good(digest, readPath, string(readBody(b.Session, b.Cursor, wait(25000)))).sized().String()))
	}
	for range opens {
		opened = append(opened, ask(good(digest, openPath, string(askBody())).sized().String()))
	}
	testkit.Eventually(t, "everybody waits", func() bool { return sleeping.Load() >= polls && opening.Load() == opens })
	idle := dial(t, address) // a connection without a request
	n.provider.Stop()
	cancel()
	for i, c := range answers {
		r, ok := <-c
		if !ok {
			t.Fatalf("poll %d got no answer", i)
		}
		if got := r.batch(t); len(got.Groups) != 0 || got.Cursor == "" || got.Through != b.Through {
			t.Fatalf("%s", r.body)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("the server ended with Opens under way: %v", err)
	default:
	}
	close(release)
	for _, c := range opened {
		if r, ok := <-c; ok {
			r.batch(t)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(idle); err != nil || len(got) != 0 {
		t.Errorf("an idle connection got %q, %v", got, err)
	}
	if n.count("lookup_session") != 1+opens {
		t.Errorf("%d sessions", n.count("lookup_session"))
	}
}

func askBody() []byte { return ask{}.body() }

// TestH11_HTTP2 has the same bounds: fields counted after decompression, a stream that is reset frees its poll, and an end that answers.
func TestH11_HTTP2(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	certificate := e2e.NewCertificate(t, "public", time.Now().Add(time.Hour))
	certFile, keyFile := certificate.Save(t, t.TempDir())
	host, end := serve(t, n, httpserve.Config{CertFile: certFile, KeyFile: keyFile})
	transport := e2e.Transport(t, certificate)
	transport.ForceAttemptHTTP2, transport.DisableCompression = true, true
	t.Cleanup(transport.CloseIdleConnections)
	digest := n.capability()
	do := func(ctx context.Context, path string, body []byte, edit ...func(*http.Request)) (reply, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+path, bytes.NewReader(body))
		if err != nil {
			return reply{}, err
		}
		for name, value := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", wire.HeaderCapability: digest,
			wire.HeaderProfile: wire.Profile, "User-Agent": "t"} {
			req.Header.Set(name, value)
		}
		for _, e := range edit {
			e(req)
		}
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return reply{}, err
		}
		defer res.Body.Close() //nolint:errcheck // nothing is written
		if res.ProtoMajor != 2 {
			t.Errorf("the answer came by %s", res.Proto)
		}
		all, err := io.ReadAll(res.Body)
		return reply{res.StatusCode, res.Header, all}, err
	}
	must := func(path string, body []byte, edit ...func(*http.Request)) reply {
		t.Helper()
		r, err := do(t.Context(), path, body, edit...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	total := func(total int) func(*http.Request) {
		return func(r *http.Request) {
			used := len("host") + len(host) + len("content-length") + len(fmt.Sprint(r.ContentLength)) + len("x-pad")
			for name, v := range r.Header {
				used += len(name) + len(v[0])
			}
			r.Header.Set("X-Pad", strings.Repeat("~", total-used))
		}
	}
	must(openPath, ask{}.body(), total(16384)).batch(t)
	must(openPath, ask{}.body(), total(16385)).refused(t, wire.Limited)
	must(openPath, ask{}.body(), total(60_000)).refused(t, wire.Limited)
	must(openPath, ask{}.body(), header(wire.HeaderCapability, digest, digest)).refused(t, wire.Invalid)
	must(openPath, bytes.Repeat([]byte(" "), 1<<20+1)).refused(t, wire.Limited)
	must(openPath+"/", ask{}.body()).refused(t, wire.NotFound)
	must(openPath, ask{}.body(), method("BREW")).refused(t, wire.Invalid)

	live := n.live(`{}`)
	sleeping, stop := n.asleep()
	polling, leave := context.WithCancel(t.Context())
	var polls sync.WaitGroup
	for range 8 {
		polls.Go(func() {
			if _, err := do(polling, readPath, readBody(live.Session, live.Cursor, wait(25000))); !errors.Is(err, context.Canceled) {
				t.Errorf("a poll that was left ended with %v", err)
			}
		})
	}
	testkit.Eventually(t, "they sleep", func() bool { return sleeping() == 8 })
	leave()
	polls.Wait()
	testkit.Eventually(t, "no waiter is left", func() bool {
		stats, err := n.feed.Stats(t.Context())
		return err == nil && stats.Waiters == 0
	})
	// The connection lives on: its other streams were not hurt, and the end answers them whole.
	answers := make(chan reply, 8)
	for range 8 {
		go func() {
			r, err := do(context.Background(), readPath, readBody(live.Session, live.Cursor, wait(25000)))
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
	}
	testkit.Eventually(t, "they sleep again", func() bool { return sleeping() == 16 })
	stop()
	n.provider.Stop()
	end()
	for range 8 {
		if r := <-answers; r.status != 0 {
			r.batch(t)
		}
	}
}
