package httpserve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/parking"
)

// Limits of every server of the program.
const (
	// MaxHeaderBytes is net/http's own bound on a request's header.
	MaxHeaderBytes = 64 << 10
	// ReadHeaderTimeout is how long a request's header may take.
	ReadHeaderTimeout = 10 * time.Second
	// ReadTimeout is how long a whole request, body included, may take to arrive.
	ReadTimeout = 60 * time.Second
	// IdleTimeout is how long a connection may stay without a request.
	IdleTimeout = 120 * time.Second
	// DefaultDrain is how long running requests may take to finish at the end.
	DefaultDrain = 30 * time.Second
)

// Config describes a server. Zero values: a default logger, DefaultDrain.
type Config struct {
	// Name says in the log which listener this is ("public", "operator").
	Name string
	// Addr is host:port; port 0 takes a free one.
	Addr string
	// Log receives net/http's complaints, at debug level: peers cause them at will.
	Log *slog.Logger
	// CertFile and KeyFile, when set, make the server speak TLS: the PEM chain and
	// its private key, read again when they change.
	CertFile, KeyFile string
	// Drain bounds the graceful end.
	Drain time.Duration
	// ReadHeader and Read bound the arrival of a request; zero means ReadHeaderTimeout and ReadTimeout.
	ReadHeader, Read time.Duration
}

// Server is a bound listener that can be served once.
type Server struct {
	name     string
	drain    time.Duration
	log      *slog.Logger
	listener net.Listener
	http     *http.Server
	tls      *certificates      // nil: plain HTTP
	requests context.Context    // that of every request
	cut      context.CancelFunc // cancels it
	running  *handlers
	lot      lot
	listen   func() (*ears, error) // newEars
	ears     *ears                 // while Serve runs; nil: there are none
}

// Listen binds the address (V1). The caller must run Serve or Close.
func Listen(ctx context.Context, c Config) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Drain <= 0 {
		c.Drain = DefaultDrain
	}
	c.ReadHeader, c.Read = cmp.Or(c.ReadHeader, ReadHeaderTimeout), cmp.Or(c.Read, ReadTimeout)
	log := c.Log.With("listener", c.Name)
	var certs *certificates
	var config *tls.Config
	if c.CertFile != "" || c.KeyFile != "" {
		var err error
		if certs, err = loadCertificates(c.CertFile, c.KeyFile, log); err != nil {
			return nil, err
		}
		config = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.forHandshake}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return nil, fmt.Errorf("the %s address %s cannot be listened on: %w; free it or choose another", c.Name, c.Addr, err)
	}
	// Requests outlive the context that ends Serve: they are drained first (V3).
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{
		name:     c.Name,
		drain:    c.Drain,
		log:      log,
		listener: listener,
		cut:      cut,
		tls:      certs,
		running:  &handlers{idle: make(chan struct{})},
		listen:   newEars,
		http: &http.Server{
			MaxHeaderBytes:               MaxHeaderBytes,
			ReadHeaderTimeout:            c.ReadHeader,
			ReadTimeout:                  c.Read,
			IdleTimeout:                  IdleTimeout,
			DisableGeneralOptionsHandler: true,
			ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
			TLSConfig:                    config,
		},
	}
	s.requests = parking.With(requests, s)
	s.http.BaseContext = func(net.Listener) context.Context { return s.requests }
	return s, nil
}

// Addr is the bound address.
func (s *Server) Addr() *net.TCPAddr { return s.listener.Addr().(*net.TCPAddr) }

// Close gives the address back without having served.
func (s *Server) Close() error {
	s.cut()
	return s.listener.Close()
}

// Serve answers with handler until ctx ends, then takes no new connection and
// lets running requests finish for at most the drain bound (V2, V3). It returns
// nil after an end that cut nothing off. It is called once.
func (s *Server) Serve(ctx context.Context, handler http.Handler) error {
	defer s.cut()
	running := s.running
	running.next = handler
	s.http.Handler = running
	if s.tls == nil {
		if ears, err := s.listen(); err == nil {
			s.ears = ears
			defer ears.close() // after all that it hears for
		} else {
			s.log.Debug("each parked connection has a goroutine to hear its peer", "cause", err.Error())
		}
	}
	failed := make(chan error, 1)
	go func() {
		switch {
		case s.tls != nil:
			failed <- s.http.ServeTLS(s.listener, "", "") // HTTP/2 included
		case s.ears != nil:
			failed <- s.accept()
		default:
			failed <- s.http.Serve(s.listener)
		}
	}()

	select {
	case err := <-failed:
		s.cut()
		err = errors.Join(err, s.http.Close())
		_ = s.listener.Close() // or it is closed
		s.lot.end()
		s.lot.cut()
		running.end()
		<-running.idle
		return fmt.Errorf("the %s listener failed: %w", s.name, err)
	case <-ctx.Done():
	}

	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if s.ears != nil { // else Shutdown does it
		_ = s.listener.Close()
	}
	s.lot.end()
	err := s.http.Shutdown(bound)
	if err == nil { // none is left in net/http
		running.end()
		select {
		case <-running.idle:
		case <-bound.Done():
			err = bound.Err()
		}
	}
	if err != nil {
		s.cut()
		err = errors.Join(fmt.Errorf("the %s listener still had requests after %s and cut them: %w", s.name, s.drain, err), s.http.Close())
		s.lot.cut()
		running.end()
		<-running.idle
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("the %s listener failed: %w", s.name, served))
	}
	return err
}

// accept takes new connections until the listener is closed. When there are too many for the process it waits, as net/http does.
func (s *Server) accept() error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	for delay := shortest; ; {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			delay = shortest
			s.greet(conn)
		case errors.Is(err, net.ErrClosed):
			return http.ErrServerClosed
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM),
			errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ECONNRESET):
			s.log.Debug("a connection could not be taken; trying again", "cause", err.Error())
			time.Sleep(delay)
			delay = min(2*delay, longest)
		default:
			return err
		}
	}
}
