package lookup

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/httpserve"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// served puts a node's provider behind the server that the program uses, with short bounds, and returns its address.
func served(t *testing.T, n *node, arrival time.Duration) string {
	t.Helper()
	address, _ := serve(t, n, httpserve.Config{ReadHeader: arrival, Read: arrival})
	return address
}

// serve puts a node's provider behind the server that the program uses, until the test ends it or is over.
func serve(t *testing.T, n *node, config httpserve.Config) (address string, end context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	config.Name, config.Addr = "public", "127.0.0.1:0"
	if n.provider.dozing == parkAfter {
		n.provider.dozing = 0 // nothing that is tested here happens to wait for it
	}
	server, err := httpserve.Listen(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, n.provider.Echo()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return server.Addr().String(), cancel
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// raw is a request as bytes.
func raw(digest, path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n%s: %s\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		path, wire.HeaderCapability, digest, wire.HeaderProfile, wire.Profile, len(body), body)
}

func TestH11_RudePeersHoldNothing(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 500*time.Millisecond)
	digest := n.capability()
	b := n.live(`{}`)
	before := runtime.NumGoroutine()
	ended := func(t *testing.T, conn net.Conn) string {
		t.Helper()
		got, err := io.ReadAll(conn)
		if nerr, ok := err.(net.Error); ok && nerr.Timeout() {
			t.Fatal("the connection was kept")
		}
		return string(got)
	}

	t.Run("headers that never end", func(t *testing.T) {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, "POST "+openPath+" HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		ended(t, conn)
	})
	t.Run("a body that never ends", func(t *testing.T) {
		conn := dial(t, address)
		whole := raw(digest, openPath, string(ask{}.body()))
		if _, err := io.WriteString(conn, whole[:len(whole)-5]); err != nil {
			t.Fatal(err)
		}
		if got := ended(t, conn); got != "" && !strings.Contains(got, `"code":"invalid"`) {
			t.Fatalf("it got %s", got)
		}
	})
	t.Run("headers above every bound", func(t *testing.T) {
		conn := dial(t, address)
		// The server stops reading and closes: writing may fail at any point from then on.
		_, _ = io.WriteString(conn, "POST "+openPath+" HTTP/1.1\r\nHost: x\r\nX-Pad: "+strings.Repeat("p", 200_000)+"\r\n\r\n")
		if got := ended(t, conn); got != "" && !strings.HasPrefix(got, "HTTP/1.1 431") {
			t.Fatalf("it got %.200s", got)
		}
	})
	t.Run("junk behind a request", func(t *testing.T) {
		conn := dial(t, address)
		if _, err := io.WriteString(conn, raw(digest, openPath, string(ask{}.body()))+strings.Repeat("\x00junk\r\n", 1000)); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		reply{res.StatusCode, res.Header, body}.batch(t) // the request itself is answered
		rest, _ := io.ReadAll(in)                        // and then the connection ends
		if len(rest) > 0 && !strings.HasPrefix(string(rest), "HTTP/1.1 400") {
			t.Fatalf("it got %.200s", rest)
		}
	})
	t.Run("half closed during a poll", func(t *testing.T) {
		conn := dial(t, address)
		asleep := make(chan struct{}, 1)
		stop := n.during(beforeSleep, func() {
			select {
			case asleep <- struct{}{}:
			default:
			}
		})
		if _, err := io.WriteString(conn, raw(digest, readPath, string(readBody(b.Session, b.Cursor, wait(25000))))); err != nil {
			t.Fatal(err)
		}
		<-asleep
		stop()
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		ended(t, conn)
	})
	t.Run("reset during a poll", func(t *testing.T) {
		conn := dial(t, address)
		asleep := make(chan struct{}, 1)
		stop := n.during(beforeSleep, func() {
			select {
			case asleep <- struct{}{}:
			default:
			}
		})
		if _, err := io.WriteString(conn, raw(digest, readPath, string(readBody(b.Session, b.Cursor, wait(25000))))); err != nil {
			t.Fatal(err)
		}
		<-asleep
		stop()
		if err := conn.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	})
	testkit.Eventually(t, "no waiter is left", func() bool {
		stats, err := n.feed.Stats(t.Context())
		return err == nil && stats.Waiters == 0
	})
	testkit.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
	testkit.Eventually(t, "no connection to the database is held", func() bool { return n.pool.Stat().AcquiredConns() == 0 })
	n.read(b, wide) // and everybody else is served
}

// TestH2_ARefusalOutlivesABodyNobodyReads: the peer sends all of it before it looks for an answer.
func TestH2_ARefusalOutlivesABodyNobodyReads(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	address := served(t, n, 10*time.Second)
	body := strings.Repeat(" ", 3<<20)
	for name, w := range map[string]wireRequest{
		"too large":   good(n.capability(), openPath, body).sized(),
		"misdirected": good(n.capability(), "/nothing", body).sized(),
		"chunked":     good(n.capability(), openPath, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)).with("Transfer-Encoding: chunked"),
	} {
		conn := dial(t, address)
		if err := conn.SetWriteBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, w.String()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := wire.Limited
		if name == "misdirected" {
			want = wire.NotFound
		}
		answered(t, bufio.NewReader(conn), false).refused(t, want)
	}
	// What is announced beyond any measure is refused before it comes.
	conn := dial(t, address)
	w := good(n.capability(), openPath, "").with("Content-Length: 99999999999")
	if _, err := io.WriteString(conn, w.String()); err != nil {
		t.Fatal(err)
	}
	answered(t, bufio.NewReader(conn), false).refused(t, wire.Limited)
}
