package httpserve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// start serves handler until the returned stop is called, which gives Serve's error.
func start(t *testing.T, handler http.HandlerFunc, drain time.Duration) (base string, stop func() error) {
	t.Helper()
	s, err := Listen(t.Context(), Config{Name: "test", Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), Drain: drain})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, handler) }()
	stop = func() error { cancel(); return <-done }
	return "http://" + s.Addr().String(), stop
}

func TestV1_PortZeroIsFinalAndATakenPortIsAnError(t *testing.T) {
	t.Parallel()
	base, stop := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, time.Second)
	addr := strings.TrimPrefix(base, "http://")
	if _, port, _ := net.SplitHostPort(addr); port == "0" {
		t.Fatalf("address %s has no port", addr)
	}
	resp, err := http.Get(base)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "hello" {
		t.Errorf("body %q", body)
	}
	_, err = Listen(t.Context(), Config{Name: "second", Addr: addr})
	if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "second") {
		t.Errorf("error %v does not say which address of which listener is taken", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestV3_DrainLetsARunningRequestFinish(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan context.Context, 1), make(chan struct{})
	base, stop := start(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.Context()
		<-release
		_, _ = io.WriteString(w, "whole")
	}, time.Minute)

	got := make(chan string, 1)
	go func() {
		resp, err := http.Get(base)
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		got <- string(body)
		if err != nil {
			t.Error(err)
		}
	}()
	request := <-arrived
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()

	// Draining has begun when nobody can connect any more.
	addr := strings.TrimPrefix(base, "http://")
	for {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	if err := request.Err(); err != nil {
		t.Errorf("a request being drained lost its context: %v", err)
	}
	close(release)
	if body := <-got; body != "whole" {
		t.Errorf("answer %q", body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestV2_BoundCutsWhatDoesNotFinish(t *testing.T) {
	t.Parallel()
	arrived, ended := make(chan struct{}), make(chan struct{})
	base, stop := start(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(ended)
	}, 50*time.Millisecond)
	go func() {
		if resp, err := http.Get(base); err == nil {
			_ = resp.Body.Close() // whether an answer still got out is a race nobody relies on
		}
	}()
	<-arrived
	err := stop()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Serve returned %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("Serve returned while a handler still ran")
	}
}

func TestH11_HeaderAboveTheBoundIsRefusedAndOptionsReachTheHandler(t *testing.T) {
	t.Parallel()
	base, stop := start(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method+" "+r.RequestURI)
	}, time.Second)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	ask := func(raw string) *http.Response {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() { _, _ = io.WriteString(conn, raw) }()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := ask("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if body, _ := io.ReadAll(resp.Body); string(body) != "OPTIONS *" {
		t.Errorf("OPTIONS * was answered %d %q", resp.StatusCode, body)
	}
	// Well above the protocol's own bound, so that handlers can answer in shape.
	resp = ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Big: " + strings.Repeat("a", 60<<10) + "\r\n\r\n")
	if resp.StatusCode != http.StatusOK {
		t.Errorf("60 KiB of header: status %d", resp.StatusCode)
	}
	resp = ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Big: " + strings.Repeat("a", 80<<10) + "\r\n\r\n")
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("80 KiB of header: status %d", resp.StatusCode)
	}
}
