package doctor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pooler stands between a client and a real server, as pools and bad networks do.
type pooler struct {
	t *testing.T
	// delay is added to everything that a client sends.
	delay time.Duration
	// strip leaves out the settings that a client begins with, as pools do that are told to ignore them.
	strip bool
	// refuse answers a client that begins with any setting but the usual ones, as pools do that were told nothing.
	refuse bool
	// renumber gives clients a number of their own instead of that of the server's process.
	renumber bool
	// transactions shares that many connections of the server between transactions; 0 gives each client its own.
	transactions int

	server *url.URL
	idle   chan *pgconn.HijackedConn
	work   sync.WaitGroup
}

// between starts a pooler in front of the database at to and returns the URL through it.
func (p *pooler) between(t *testing.T, to string) string {
	t.Helper()
	p.t = t
	var err error
	if p.server, err = url.Parse(to); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	if p.transactions > 0 {
		p.idle = make(chan *pgconn.HijackedConn, p.transactions)
		for range p.transactions {
			p.idle <- p.dial(ctx, nil)
		}
	}
	p.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer conn.Close()
				p.serve(ctx, conn)
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		p.work.Wait()
		for range p.transactions {
			_ = (<-p.idle).Conn.Close()
		}
	})
	u := *p.server
	u.Host = listener.Addr().String()
	return u.String()
}

// dial opens a connection to the server with a client's settings.
func (p *pooler) dial(ctx context.Context, settings map[string]string) *pgconn.HijackedConn {
	c, err := pgconn.ParseConfig(p.server.String())
	if err != nil {
		p.t.Error(err)
		return nil
	}
	if !p.strip {
		for name, value := range settings {
			if name != "user" && name != "database" {
				c.RuntimeParams[name] = value
			}
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return nil
	}
	raw, err := conn.Hijack()
	if err != nil {
		p.t.Error(err)
		return nil
	}
	return raw
}

// serve lets one client in and passes on what it says.
func (p *pooler) serve(ctx context.Context, conn net.Conn) {
	client := pgproto3.NewBackend(conn, conn)
	first, err := client.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	if _, own := startup.Parameters["enable_seqscan"]; own && p.refuse {
		client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: enable_seqscan"})
		_ = client.Flush()
		return
	}
	var server *pgconn.HijackedConn
	if p.transactions == 0 {
		if server = p.dial(ctx, startup.Parameters); server == nil {
			return
		}
		defer server.Conn.Close()
	} else {
		server = p.take(ctx)
		if server == nil {
			return
		}
		p.idle <- server
	}
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range server.ParameterStatuses {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	number := server.PID
	if p.renumber || p.transactions > 0 {
		number += 100000
	}
	client.Send(&pgproto3.BackendKeyData{ProcessID: number, SecretKey: []byte("any!")})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	if p.transactions == 0 {
		p.pass(ctx, conn, server.Conn)
		return
	}
	for p.transaction(ctx, client) == nil {
	}
}

// take waits for a connection of the server that is free.
func (p *pooler) take(ctx context.Context) *pgconn.HijackedConn {
	select {
	case c := <-p.idle:
		return c
	case <-ctx.Done():
		return nil
	}
}

// pass copies both ways until either side ends.
func (p *pooler) pass(ctx context.Context, client, server net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			break
		}
		if p.delay > 0 {
			time.Sleep(p.delay) // a slow network is what this stands for
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			break
		}
	}
	_ = server.Close()
	<-back
}

// transaction serves statements of a client on one connection of the server until that is idle again.
func (p *pooler) transaction(ctx context.Context, client *pgproto3.Backend) error {
	m, err := client.Receive()
	if err != nil {
		return err
	}
	server := p.take(ctx)
	if server == nil {
		return ctx.Err()
	}
	defer func() { p.idle <- server }()
	stop := context.AfterFunc(ctx, func() { _ = server.Conn.Close() })
	defer stop()
	for {
		if _, end := m.(*pgproto3.Terminate); end {
			return errors.New("the client left")
		}
		server.Frontend.Send(m)
		if err := server.Frontend.Flush(); err != nil {
			return err
		}
		idle, err := p.answer(server, client)
		if err != nil || idle {
			return err
		}
		if m, err = client.Receive(); err != nil {
			// The next client must not find this one's transaction.
			server.Frontend.Send(&pgproto3.Query{String: "rollback"})
			return errors.Join(err, server.Frontend.Flush(), drain(server))
		}
	}
}

// answer passes on what the server says to one statement, and reports whether no transaction is open afterwards.
func (p *pooler) answer(server *pgconn.HijackedConn, client *pgproto3.Backend) (idle bool, err error) {
	for {
		m, err := server.Frontend.Receive()
		if err != nil {
			return false, err
		}
		client.Send(m)
		if ready, ok := m.(*pgproto3.ReadyForQuery); ok {
			return ready.TxStatus == 'I', client.Flush()
		}
	}
}

func drain(server *pgconn.HijackedConn) error {
	for {
		m, err := server.Frontend.Receive()
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			return nil
		}
	}
}
