package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/overlayd/overlayd/internal/bench"
)

// serveEtcd is an etcd of one member with its defaults, until in ends. It writes its URL on one line.
func serveEtcd(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	anywhere, err := url.Parse("http://127.0.0.1:0")
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Dir, c.LogLevel = dir, "error"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*anywhere}, []url.URL{*anywhere}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*anywhere}, []url.URL{*anywhere}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	if _, err := fmt.Fprintf(out, "http://%s\n", e.Clients[0].Addr()); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, in)
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
	case err := <-e.Err():
		return err
	}
	return nil
}

// dialTime bounds the first answer of an etcd client.
const dialTime = 30 * time.Second

// etcd is the subject.
type etcd struct {
	url    string
	bytes  int // of a value
	shared int // watches of one client, which share its connection and stream

	mu    sync.Mutex
	parts int // loads so far; guarded by mu
}

func (e *etcd) Name() string {
	if e.shared > 1 {
		return fmt.Sprintf("etcd (%d a client)", e.shared)
	}
	return "etcd"
}

func (e *etcd) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{e.url}, DialTimeout: dialTime, Logger: zap.NewNop()})
}

// Begin makes n watches, on as many clients as they need.
func (e *etcd) Begin(ctx context.Context, n int, deliver func(reader int, change uint64)) (bench.Fan, error) {
	e.mu.Lock()
	prefix := fmt.Sprintf("load/%d/", e.parts)
	e.parts++
	e.mu.Unlock()
	f := &fan{prefix: prefix, bytes: e.bytes, failed: make(chan error, 1)}
	var watching context.Context
	watching, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	for range bench.Appenders {
		c, err := e.client()
		if err != nil {
			return nil, errors.Join(err, f.End(ctx))
		}
		f.appenders = append(f.appenders, c)
	}
	for i := range n {
		if i%e.shared == 0 {
			c, err := e.client()
			if err != nil {
				return nil, errors.Join(err, f.End(ctx))
			}
			f.readers = append(f.readers, c)
		}
		var err error
		events := f.readers[len(f.readers)-1].Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		late := time.NewTimer(dialTime)
		select {
		case first := <-events:
			err = first.Err()
			if err == nil && !first.Created {
				err = errors.New("the watch did not begin with its creation")
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-late.C:
			err = fmt.Errorf("a watch was not made within %s", dialTime)
		}
		late.Stop()
		if err != nil {
			return nil, errors.Join(err, f.End(ctx))
		}
		f.running.Go(func() {
			if err := follow(events, func(change uint64) { deliver(i, change) }); err != nil && watching.Err() == nil {
				select {
				case f.failed <- fmt.Errorf("reader %d: %w", i, err):
				default: // the first is enough
				}
			}
		})
	}
	return f, nil
}

// follow hands out the changes of a watch until it ends.
func follow(events clientv3.WatchChan, deliver func(change uint64)) error {
	for r := range events {
		if err := r.Err(); err != nil {
			return err
		}
		for _, event := range r.Events {
			if len(event.Kv.Value) < 8 {
				return errors.New("a value that nobody put")
			}
			deliver(binary.BigEndian.Uint64(event.Kv.Value))
		}
	}
	return errors.New("the watch ended")
}

// fan is one load's watches.
type fan struct {
	prefix    string
	bytes     int
	appenders []*clientv3.Client
	readers   []*clientv3.Client
	stop      context.CancelFunc
	running   sync.WaitGroup
	failed    chan error // buffered
}

func (f *fan) Append(ctx context.Context, appender int, n uint64) error {
	value := make([]byte, max(f.bytes, 8))
	binary.BigEndian.PutUint64(value, n)
	_, err := f.appenders[appender].Put(ctx, fmt.Sprintf("%s%d", f.prefix, n), string(value))
	return err
}

func (f *fan) Failed() <-chan error { return f.failed }

// End ends the watches and the connections.
func (f *fan) End(context.Context) error {
	f.stop()
	f.running.Wait()
	for _, c := range append(f.readers, f.appenders...) {
		_ = c.Close() // its context is over
	}
	return nil
}
