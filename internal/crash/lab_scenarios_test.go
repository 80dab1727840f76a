//go:build crash

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/failpoint"
)

// scenario is one line of the table.
type scenario struct {
	name   string
	mutant string // the tag of a mutant: then it must be caught
	by     []Kind // what catches it
	disk   bool   // needs a small disk, and root
	long   bool   // takes a minute: it is played once, in a whole run
	script func() script
}

// rate is about how often a point is passed in a second, by which the hit that kills is chosen.
func rate(point string) int {
	switch point {
	case failpoint.AppendPlanned, failpoint.AppendSending, failpoint.AppendAnnounced, failpoint.CommitSent, failpoint.Committed,
		failpoint.BeforeGate, failpoint.BeforeSend:
		return 60
	}
	return 4
}

// scenarios are all of them, in the order in which they are played.
func scenarios() []scenario {
	var list []scenario
	for _, point := range failpoint.ProviderPoints() {
		list = append(list, scenario{name: "kill -9 at " + point, script: func() script { return crashAt(point, rate(point), 2) }})
	}
	list = append(list,
		scenario{name: "kill -9 at any time", script: anyTime},
		scenario{name: "kill -9 of one of two nodes", script: oneOfTwo},
		scenario{name: "nothing, with pauses everywhere", script: pauses},
		scenario{name: "a break of the epoch", script: breaks},
		scenario{name: "connections cut at any time", script: cuts},
		scenario{name: "connections cut within a message", script: torn},
		scenario{name: "a database that hangs", script: hangs},
		scenario{name: "connections that die silently", long: true, script: silence},
		scenario{name: "SIGKILL of a backend", script: func() script { return server("backend", syscall.SIGKILL) }},
		scenario{name: "SIGKILL of the postmaster", script: func() script { return server("postmaster", syscall.SIGKILL) }},
		scenario{name: "immediate shutdown of Postgres", script: func() script { return server("postmaster", syscall.SIGQUIT) }},
		scenario{name: "fast shutdown of Postgres", script: func() script { return server("postmaster", syscall.SIGINT) }},
		scenario{name: "SIGKILL of Postgres and overlayd", script: both},
		scenario{name: "a full disk", disk: true, script: full},
		// What mutants are caught in, without the mutant.
		scenario{name: "nothing, with two nodes that append slowly", script: func() script { return twoWriters(false) }},
		scenario{name: "nothing, with polls that sleep slowly", script: slowPolls},
		scenario{name: "nothing, with a slow compactor", script: slowCompactor},
		scenario{name: "a bigserial cursor", mutant: "mutant_bigserial", by: []Kind{Lost}, script: func() script { return twoWriters(true) }},
		scenario{name: "a poll that registers late", mutant: "mutant_latewait", by: []Kind{Late}, script: slowPolls},
		scenario{name: "a compactor without its lock", mutant: "mutant_nolock", by: []Kind{Reset, Snapshot}, script: slowCompactor},
	)
	return list
}

func between(low, high time.Duration) time.Duration {
	return low + time.Duration(rand.Int64N(int64(high-low)))
}

// busy waits for d, and on a slow machine until some groups were appended meanwhile.
func (r *run) busy(d time.Duration) {
	before := r.ledger.Groups()
	time.Sleep(d)
	for limit := time.Now().Add(10 * time.Second); r.ledger.Groups() < before+10 && time.Now().Before(limit); {
		time.Sleep(10 * time.Millisecond)
	}
}

func anyTime() script {
	return script{act: func(r *run) error {
		for range 4 {
			r.busy(between(200*time.Millisecond, time.Second))
			r.ledger.Break()
			r.nodes[0].kill()
			r.nodes[0].crashes++
			if err := r.revive(r.nodes[0], ""); err != nil {
				return err
			}
		}
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}

func oneOfTwo() script {
	return script{nodes: 2, act: func(r *run) error {
		for i := range 4 {
			r.busy(between(200*time.Millisecond, time.Second))
			n := r.nodes[i%2]
			r.ledger.Break()
			n.kill()
			n.crashes++
			if err := r.revive(n, ""); err != nil {
				return err
			}
		}
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}

// slow pauses at every point now and then, so that every race is wide. They are short against LatestWake.
func slow() string {
	spec := ""
	for _, point := range failpoint.ProviderPoints() {
		if spec != "" {
			spec += ";"
		}
		spec += point + "=pause:15ms%20"
	}
	return spec
}

func pauses() script {
	return script{nodes: 2, arm: slow(), act: func(r *run) error {
		time.Sleep(7 * time.Second)
		return nil
	}}
}

func breaks() script {
	return script{act: func(r *run) error {
		o := newOperator(r)
		defer o.client.CloseIdleConnections()
		for i := range 4 {
			time.Sleep(between(500*time.Millisecond, 1500*time.Millisecond))
			done := r.ledger.Void()
			order := fmt.Appendf(nil, `{"key":"%s-break-%d-crash-lab","mode":"break","reason":"the lab says so"}`, r.name, i)
			if status, text := o.again(http.MethodPost, "/feeds/catalogue/epoch", order); status != http.StatusOK {
				r.ledger.Find(Refused, "a break: %d %s", status, text)
			}
			done()
		}
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}

func cuts() script {
	return script{act: func(r *run) error {
		for range 12 {
			time.Sleep(between(100*time.Millisecond, 600*time.Millisecond))
			r.ledger.Break()
			r.proxy.cut()
			r.ledger.Mend()
		}
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}

func torn() script {
	return script{act: func(r *run) error {
		for range 15 {
			r.ledger.Break()
			r.proxy.limit.Store(1 + rand.Int64N(40_000))
			time.Sleep(between(100*time.Millisecond, 500*time.Millisecond))
		}
		r.proxy.limit.Store(0)
		r.ledger.Mend()
		r.busy(1500 * time.Millisecond)
		return nil
	}}
}

// answerBound is how long after a database that hung came back everybody has had an answer.
const answerBound = 5 * time.Second

func hangs() script {
	return script{act: func(r *run) error {
		for range 2 {
			r.busy(between(300*time.Millisecond, time.Second))
			const hung = 3 * time.Second
			r.ledger.Break()
			r.proxy.hung.Store(true)
			time.Sleep(hung)
			r.proxy.hung.Store(false)
			r.ledger.Mend()
			r.busy(1500 * time.Millisecond)
			r.mu.Lock()
			for who, took := range r.slow {
				if took > hung+answerBound {
					r.ledger.Find(Late, "a %s waited %s for an answer while the database hung for %s", who, took, hung)
				}
			}
			r.mu.Unlock()
		}
		return nil
	}}
}

// silence has every connection to Postgres die without a word: new ones work. Nobody waits longer than the product says.
func silence() script {
	return script{act: func(r *run) error {
		const reader, writer = 40 * time.Second, time.Minute // package lookup's answerWithin, and the operator API's
		time.Sleep(time.Second)
		r.ledger.Break()
		r.proxy.era.Add(1)
		before := r.ledger.Groups()
		for limit := time.Now().Add(2 * writer); r.ledger.Groups() < before+20; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(limit) {
				return fmt.Errorf("no group was appended within %s of the connections' end", 2*writer)
			}
		}
		time.Sleep(5 * time.Second)
		r.ledger.Mend()
		r.mu.Lock()
		defer r.mu.Unlock()
		if took := r.slow["reader"]; took > reader+answerBound {
			r.ledger.Find(Late, "a reader waited %s for an answer", took)
		}
		if took := r.slow["operator"]; took > writer+answerBound {
			r.ledger.Find(Late, "an operator waited %s for an answer", took)
		}
		return nil
	}}
}

// server stops Postgres, or a part of it, and has it started again where it does not do so itself.
func server(what string, signal syscall.Signal) script {
	return script{act: func(r *run) error {
		for range 3 {
			r.busy(between(300*time.Millisecond, time.Second))
			r.ledger.Break()
			if what == "backend" {
				pid, err := r.cluster.number(r.name, `select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1`)
				if err != nil {
					return err
				}
				if err := syscall.Kill(int(pid), signal); err != nil {
					return err
				}
			} else {
				r.cluster.signal(signal)
				if err := r.cluster.restart(); err != nil {
					return err
				}
			}
			r.ledger.Mend()
		}
		r.busy(2 * time.Second)
		return nil
	}}
}

func both() script {
	return script{act: func(r *run) error {
		for range 2 {
			r.busy(between(300*time.Millisecond, time.Second))
			r.ledger.Break()
			r.cluster.signal(syscall.SIGKILL)
			r.nodes[0].kill()
			r.nodes[0].crashes++
			if err := r.cluster.restart(); err != nil {
				return err
			}
			if err := r.revive(r.nodes[0], ""); err != nil {
				return err
			}
		}
		r.busy(2 * time.Second)
		return nil
	}}
}

// full fills the disk under Postgres, waits until appends are refused, and frees it.
func full() script {
	return script{act: func(r *run) error {
		for range 2 {
			time.Sleep(500 * time.Millisecond)
			r.ledger.Break()
			before := r.retryable.Load()
			filler := filepath.Join(filepath.Dir(r.cluster.data), "filler")
			if err := fill(filler); err != nil {
				return err
			}
			for limit := time.Now().Add(30 * time.Second); r.retryable.Load() == before; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(limit) {
					return fmt.Errorf("the disk is full and nobody was told so")
				}
			}
			time.Sleep(time.Second)
			if err := os.Remove(filler); err != nil {
				return err
			}
			select { // a log that cannot be written ends Postgres
			case <-r.cluster.server.Done():
				if err := r.cluster.restart(); err != nil {
					return err
				}
			case <-time.After(2 * time.Second):
			}
			r.ledger.Mend()
			time.Sleep(1500 * time.Millisecond)
		}
		return nil
	}}
}

// fill writes until there is no room.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what counts is that the disk is full
	block := make([]byte, 64<<10)
	for {
		if _, err := f.Write(block); err != nil {
			if n := len(block); n > 4096 {
				block = block[:n/2]
				continue
			}
			return nil
		}
	}
}

// twoWriters appends through two nodes that pause between taking sequences and committing.
func twoWriters(sparse bool) script {
	s := script{nodes: 2, sparse: sparse, arm: failpoint.AppendPlanned + "=pause:30ms%50", act: func(r *run) error {
		time.Sleep(5 * time.Second)
		return nil
	}}
	if sparse {
		s.prepare = []string{"create sequence mutant_sequence increment 64"}
	}
	return s
}

// slowPolls has polls pause before they sleep, and commits for each a group meanwhile; nothing else happens that could wake it.
func slowPolls() script {
	return script{
		arm: failpoint.ReadLooked + "=pause:150ms",
		load: func(r *run, ctx context.Context, all *sync.WaitGroup) {
			for i := range 6 {
				all.Go(func() { r.ring(ctx, fmt.Sprint("bell", i)) })
			}
		},
		watch: func(*run, context.Context, *sync.WaitGroup) {},
		act: func(r *run) error {
			time.Sleep(10 * time.Second)
			return nil
		},
	}
}

// slowCompactor pauses between the horizon and the floor, while sessions are opened of which there is often none.
func slowCompactor() script {
	return script{
		arm: failpoint.CompactAsked + "=pause:600ms",
		watch: func(r *run, ctx context.Context, all *sync.WaitGroup) {
			all.Go(func() { r.brief(ctx, "brief") })
		},
		act: func(r *run) error {
			time.Sleep(12 * time.Second)
			return nil
		},
	}
}
