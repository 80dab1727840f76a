//go:build crash

package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/localpg"
	"github.com/overlayd/overlayd/internal/schema"
)

// cluster is a Postgres of the lab's own, durable as in service.
type cluster struct {
	data string

	mu       sync.Mutex
	server   *localpg.Server
	template bool
}

func newCluster(t *testing.T, data string) (*cluster, error) {
	c := &cluster{data: data}
	if err := c.start(); err != nil {
		return nil, fmt.Errorf("start a Postgres for the lab: %w", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = c.server.Stop(ctx) // a killed one says so; no process is left
		if err := localpg.Remove(ctx, c.data); err != nil {
			t.Errorf("remove the lab's Postgres: %v", err)
		}
	})
	return c, nil
}

func (c *cluster) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := localpg.Start(ctx, localpg.Options{Data: c.data, Log: slog.New(slog.DiscardHandler), MaxConnections: 200})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = s
	return nil
}

// restart starts the server again after it was killed or stopped; it waits for its end first.
func (c *cluster) restart() error {
	select {
	case <-c.server.Done():
	case <-time.After(20 * time.Second):
		return errors.New("the killed Postgres did not end")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.server.Stop(ctx) // gives its folder back
	return c.start()
}

func (c *cluster) signal(s syscall.Signal) { _ = syscall.Kill(c.server.PID(), s) }

// address is where the server listens.
func (c *cluster) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, err := url.Parse(c.server.URL())
	if err != nil {
		return ""
	}
	return u.Host
}

// urlOf is a database's URL, at another address if one is given.
func (c *cluster) urlOf(database, address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, err := url.Parse(c.server.URL())
	if err != nil {
		return ""
	}
	u.Path = "/" + database
	if address != "" {
		u.Host = address
	}
	return u.String()
}

// exec runs statements on a database, directly.
func (c *cluster) exec(database string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.urlOf(database, ""))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it is thrown away
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// number asks for one number, directly.
func (c *cluster) number(database, query string) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		if n, err = c.ask(ctx, database, query); err == nil || ctx.Err() != nil {
			return n, err
		}
		time.Sleep(20 * time.Millisecond) // it recovers
	}
}

func (c *cluster) ask(ctx context.Context, database, query string) (n int64, err error) {
	conn, err := pgx.Connect(ctx, c.urlOf(database, ""))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx) //nolint:errcheck // it is thrown away
	return n, conn.QueryRow(ctx, query).Scan(&n)
}

// create makes a migrated database.
func (c *cluster) create(name string) error {
	if !c.template {
		if err := c.exec("postgres", "create database template_overlayd"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, c.urlOf("template_overlayd", ""))
		if err != nil {
			return err
		}
		if err := errors.Join(schema.Migrate(ctx, conn, nil), conn.Close(ctx)); err != nil {
			return err
		}
		c.template = true
	}
	return c.exec("postgres", "create database "+name+" template template_overlayd")
}

func (c *cluster) drop(name string) error {
	return c.exec("postgres", "drop database if exists "+name+" with (force)")
}

// proxy stands between overlayd and Postgres and breaks what passes.
type proxy struct {
	target   func() string
	listener net.Listener
	done     sync.WaitGroup

	hung  atomic.Bool
	era   atomic.Int64 // connections of an earlier one are dead, and nobody is told
	limit atomic.Int64 // bytes from overlayd after which a connection is cut; 0: none

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newProxy(target func() string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{target: target, listener: l, conns: map[net.Conn]bool{}}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.serve(c) })
		}
	})
	return p, nil
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.hung.Store(false)
	p.cut()
	p.done.Wait()
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve(client net.Conn) {
	server, err := net.DialTimeout("tcp", p.target(), 5*time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	end := func() { _, _ = client.Close(), server.Close() }
	era := p.era.Load()
	both.Go(func() { defer end(); p.copy(server, client, true, era) })
	both.Go(func() { defer end(); p.copy(client, server, false, era) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

func (p *proxy) copy(to io.Writer, from io.Reader, request bool, era int64) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		for p.hung.Load() {
			time.Sleep(5 * time.Millisecond)
		}
		if p.era.Load() != era {
			n = 0 // swallowed
		}
		if request && n > 0 {
			if left := p.limit.Load(); left > 0 {
				if left = p.limit.Add(-int64(n)); left <= 0 {
					_, _ = to.Write(buf[:max(0, n+int(left))]) // the message ends in its middle
					p.limit.Store(0)
					p.cut()
					return
				}
			}
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends every connection at once.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// tmpfs mounts a small disk in dir until the test ends; only root can.
func tmpfs(t *testing.T, dir, size string) error {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=711,size="+size); err != nil {
		return fmt.Errorf("mount a small disk: %w", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return nil
}
