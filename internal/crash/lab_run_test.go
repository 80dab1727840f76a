//go:build crash

package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// run is one scenario being played: a database, its nodes, the load and the ledger.
type run struct {
	name      string // unique; also the database's name
	cluster   *cluster
	proxy     *proxy
	nodes     []*node
	dir       string
	ledger    *Ledger
	think     time.Duration // between two groups of one writer, on average
	retryable atomic.Int64  // answers of 503
	over      chan struct{} // closed when nobody is to wait for an answer any more

	mu   sync.Mutex
	slow map[string]time.Duration // the slowest answer by kind of caller
}

func (r *run) answered(who string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow[who] = max(r.slow[who], took)
}

// result is what a run showed.
type result struct {
	findings               []Finding
	acknowledged           int
	sessions, delivered    int
	crashes                int
	retryable              int64
	slowReader, slowWriter time.Duration
	took                   time.Duration
}

func (r result) count(kinds ...Kind) (n int) {
	for _, f := range r.findings {
		if slices.Contains(kinds, f.Kind) {
			n++
		}
	}
	return n
}

// script is what a scenario does.
type script struct {
	nodes int
	arm   string                                                 // failpoints of the first start
	load  func(r *run, ctx context.Context, all *sync.WaitGroup) // nil: ordinary
	watch func(r *run, ctx context.Context, all *sync.WaitGroup) // nil: everyone
	act   func(r *run) error                                     // breaks and mends
	// sparse: sequences may have gaps (a mutant).
	sparse bool
	// prepare, if set, is called with the empty database.
	prepare []string
}

// play runs a script on a cluster with a binary. An error is a fault of the lab or an end of overlayd by itself.
func play(c *cluster, binary, name string, s script) (result, error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "overlayd-crash-run-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	r := &run{name: name, cluster: c, dir: dir, ledger: NewLedger(), think: 20 * time.Millisecond, slow: map[string]time.Duration{}, over: make(chan struct{})}
	r.ledger.Sparse = s.sparse
	if err := c.create(name); err != nil {
		return result{}, fmt.Errorf("make a database: %w", err)
	}
	defer c.drop(name) //nolint:errcheck // the cluster goes too
	if len(s.prepare) > 0 {
		if err := c.exec(name, s.prepare...); err != nil {
			return result{}, err
		}
	}
	if r.proxy, err = newProxy(c.address); err != nil {
		return result{}, err
	}
	defer r.proxy.close()
	for i := range max(1, s.nodes) {
		n, err := newNode(binary, dir, c.urlOf(name, r.proxy.address()), i)
		if err != nil {
			return result{}, err
		}
		r.nodes = append(r.nodes, n)
	}
	defer func() {
		for _, n := range r.nodes {
			if n.cmd != nil {
				n.kill()
			}
		}
	}()
	for _, n := range r.nodes {
		if err := n.start(s.arm); err != nil {
			return result{}, err
		}
	}
	load := s.load
	if load == nil {
		load = ordinary
	}
	writing, stopWriting := context.WithCancel(context.Background())
	reading, stopReading := context.WithCancel(context.Background())
	var writers, readers sync.WaitGroup
	defer func() {
		stopWriting()
		stopReading()
		close(r.over)
		writers.Wait()
		readers.Wait()
	}()
	load(r, writing, &writers)
	watch := s.watch
	if watch == nil {
		watch = everyone
	}
	watch(r, reading, &readers)
	if err := s.act(r); err != nil {
		return result{}, err
	}
	stopWriting()
	writers.Wait()
	if err := r.verify(); err != nil {
		return result{}, err
	}
	stopReading()
	readers.Wait()
	for _, n := range r.nodes {
		if err := n.stop(); err != nil {
			return result{}, err
		}
	}
	out := result{findings: r.ledger.Judge(), acknowledged: r.ledger.Groups(), retryable: r.retryable.Load(), took: time.Since(began)}
	out.sessions, out.delivered = r.ledger.Batches()
	out.slowReader, out.slowWriter = r.slow["reader"], r.slow["operator"]
	for _, n := range r.nodes {
		out.crashes += n.crashes
	}
	if len(out.findings) > 0 && os.Getenv("CRASH_LOG") != "" {
		for _, n := range r.nodes {
			fmt.Println(n.text())
		}
	}
	return out, nil
}

// ordinary is the load of most scenarios.
func ordinary(r *run, ctx context.Context, all *sync.WaitGroup) {
	for i := range 3 {
		all.Go(func() { r.writer(ctx, fmt.Sprint("writer", i)) })
	}
	all.Go(func() { r.bell(ctx) })
	all.Go(func() { r.warden(ctx) })
	all.Go(func() { r.rotator(ctx) })
}

// everyone are the readers of most scenarios. There are always some of every row, whose sessions overlap.
func everyone(r *run, ctx context.Context, all *sync.WaitGroup) {
	start := func(name, service string, query Query, wait time.Duration, small bool) {
		c := r.newReader(name, service, query, wait)
		c.small = small
		all.Go(func() { c.read(ctx) })
	}
	start("every", "ls_short", nil, 2*time.Second, false)
	start("every-small", "ls_short", nil, 0, true)
	start("brief", "ls_brief", nil, time.Second, false)
	start("kind-a", "ls_short", Query{"kind": "a"}, 3*time.Second, true)
	start("bell", "ls_short", Query{"kind": "bell"}, 3500*time.Millisecond, false)
	all.Go(func() { r.removed(ctx) })
	all.Go(func() { // half a life later
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
			c := r.newReader("every-later", "ls_short", nil, time.Second)
			c.read(ctx)
		}
	})
}

// verify asks for every acknowledged group again, reads to the end, and counts what the database holds.
func (r *run) verify() error {
	keys := r.ledger.Keys()
	var upTo uint64
	for _, sequence := range keys {
		upTo = max(upTo, sequence)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := r.last(ctx, upTo); err != nil {
		r.ledger.Find(Lost, "%v", err)
	}
	o := newOperator(r)
	defer o.client.CloseIdleConnections()
	list := slices.Collect(maps.Keys(keys))
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	var asking sync.WaitGroup
	for worker := range 8 {
		asking.Go(func() {
			for i := worker; i < min(len(list), 400); i += 8 {
				key := list[i]
				status, text := o.again(http.MethodPost, "/feeds/catalogue/groups", body(key, r.ledger.edits(key)))
				want := fmt.Sprintf(`"sequence":"%d"`, keys[key])
				if status != http.StatusOK || !strings.Contains(string(text), want) || !strings.Contains(string(text), `"replayed":true`) {
					r.ledger.Find(Lost, "the group %s was acknowledged at %d and, asked for again, is %d %s", key, keys[key], status, text)
				}
			}
		})
	}
	asking.Wait()
	stored, err := r.cluster.number(r.name, "select count(*) from group_key")
	if err != nil {
		return err
	}
	switch kept := int64(len(keys)); {
	case stored < kept:
		r.ledger.Find(Lost, "%d groups were acknowledged and %d keys are stored", kept, stored)
	case stored > kept:
		r.ledger.Find(Doubled, "%d groups were acknowledged and %d keys are stored", kept, stored)
	}
	return nil
}

// edits are those of an acknowledged key.
func (l *Ledger) edits(key string) []Edit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.groups[l.keys[key]].edits
}

// revive starts a node that was killed, and says that all is well again.
func (r *run) revive(n *node, arm string) error {
	err := n.start(arm)
	r.ledger.Mend()
	return err
}

var errNotReached = errors.New("the failpoint was not reached")

// crashAt kills the node at a failpoint, again and again.
func crashAt(point string, most, times int) script {
	hit := func() string { return fmt.Sprintf("%s=kill@%d", point, 1+rand.IntN(most)) }
	return script{arm: hit(), act: func(r *run) error {
		n := r.nodes[0]
		for i := range times {
			killed, err := n.await(40 * time.Second)
			if err != nil {
				return err
			}
			if !killed {
				return errNotReached
			}
			r.ledger.Break()
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			arm := hit()
			if i == times-1 {
				arm = ""
			}
			if err := r.revive(n, arm); err != nil {
				return err
			}
		}
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}
