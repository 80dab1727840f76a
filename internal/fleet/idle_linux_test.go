package fleet_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

var (
	idleWaiters = flag.Int("idle.waiters", 100, "signed long polls of TestN7_IdlePolls, each of an identity of its own")
	idleWait    = flag.Duration("idle.wait", 4*time.Second, "how long each poll waits")
	idleTime    = flag.Duration("idle.time", time.Second, "how long they are observed while none ends or begins, in as many windows as it takes")
	idleRamp    = flag.Duration("idle.ramp", 100*time.Millisecond, "over which the polls are sent")
	idleProfile = flag.String("idle.profile", "", "file for the node's heap profile while all wait")
)

// idlePolls is how many polls each waiter has at most.
const idlePolls = 12

// TestN7_IdlePolls counts what a node spends on polls that nothing happens to. They are looked at from when all of them wait
// until shortly before the first one can end, again and again: between two such windows each poll is answered and renewed.
func TestN7_IdlePolls(t *testing.T) {
	t.Parallel()
	n := *idleWaiters
	files(t, n)
	statements, through := newTap(t, pgtest.New(t).URL)
	f := newFleet(t, 1, settings{database: through})
	one := f.nodes[0]
	o := one.of()
	f.operator.put("row", "a")
	fresh := resident(t, one)
	began := time.Now()
	polling, lines := startGenerator(t, orders{Host: one.public, Service: forSigned, Waiters: n, Polls: idlePolls, Wait: *idleWait, Ramp: *idleRamp})
	next(t, lines, 45*time.Minute)
	prepared := time.Since(began)
	used := resident(t, one)

	idle, renewal := cost{}, cost{}
	// Every poll waits, and has asked the gate once since it began to: a poll that was answered has asked thrice. What it costs to come is
	// part of the renewal.
	gates := func() int { return int(o.metric("overlayd_lookup_gate_batch_sum")) }
	opened := gates()
	all := func(round int) {
		t.Helper()
		testkit.Eventually(t, "every poll waits", func() bool {
			return int(o.metric("overlayd_livefeed_waiters")) == n && int(o.metric("overlayd_lookup_waiting_polls")) == n && gates() >= opened+n*(3*round+1)
		})
	}
	now := func() cost { return cost{time.Now(), processor(t, one), statements.statements(), 0} }
	sent := time.Now()
	if _, err := polling.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	windows, rounds := 0, 0
	var rss, goroutines, heap, stacks, kept, runtime, goal float64
	var answers told
	for ; rounds < idlePolls && idle.span < *idleTime; rounds++ {
		all(rounds)
		from := now()
		// The first poll was sent then at the earliest, and each is renewed after it has waited as long as the one before.
		<-time.After(time.Until(sent.Add(time.Duration(rounds+1)**idleWait - *idleWait/20)))
		to := now()
		if span := to.at.Sub(from.at); span > *idleWait/10 {
			windows++
			idle.add(from, to)
		}
		if now := resident(t, one); now > rss {
			rss = now
			kept = o.metric("go_memstats_heap_idle_bytes") - o.metric("go_memstats_heap_released_bytes")
			runtime = o.metric("go_memstats_gc_sys_bytes") + o.metric("go_memstats_mspan_sys_bytes") + o.metric("go_memstats_other_sys_bytes") +
				o.metric("go_memstats_buck_hash_sys_bytes")
			goal = o.metric("go_memstats_next_gc_bytes")
		}
		t.Logf("round %d: %.1f kB a waiter resident", rounds, (resident(t, one)-fresh)/float64(n)/1000)
		goroutines, heap = o.metric("go_goroutines"), o.metric("go_memstats_heap_inuse_bytes")
		stacks = o.metric("go_memstats_stack_inuse_bytes")
		if rounds+1 < idlePolls {
			from = now()
			answers = next(t, lines, 5*time.Minute)
			all(rounds + 1)
			renewal.add(from, now())
		}
	}
	collect(t, o)
	live, least := o.metric("go_memstats_heap_alloc_bytes"), resident(t, one)
	each := func(bytes float64) string { return fmt.Sprintf("%.1f kB", bytes/float64(n)/1000) }
	seconds := idle.span.Seconds()
	// Renewals happen beside what the node does anyway.
	renewed := float64(answers.Answered)
	own := renewal.cpu - time.Duration(float64(idle.cpu)*renewal.span.Seconds()/max(seconds, 1e-9))
	asked := float64(renewal.statements) - float64(idle.statements)*renewal.span.Seconds()/max(seconds, 1e-9)
	table(t, fmt.Sprintf("%d idle signed long polls at one node", n), [][2]string{
		{"sessions opened and polls signed in", prepared.Round(time.Millisecond).String()},
		{"observed, without a poll that ends or begins", fmt.Sprintf("%.1f s in %d windows", seconds, windows)},
		{"resident memory of a waiter (goal 35 kB)", each(rss - fresh)},
		{"  the node: just started / sessions opened / all wait", fmt.Sprintf("%.1f / %.1f / %.1f MB", fresh/1e6, used/1e6, rss/1e6)},
		{"  of a waiter: heap in use, with garbage / stacks", each(heap) + " / " + each(stacks)},
		{"  of a waiter: free but kept / the runtime's own / heap goal", each(kept) + " / " + each(runtime) + " / " + each(goal)},
		{"  garbage collected: live heap of a waiter / the node", fmt.Sprintf("%s / %.1f MB", each(live), least/1e6)},
		{"  goroutines of a waiter", fmt.Sprintf("%.2f", goroutines/float64(n))},
		{"processor time while idle (goal 3 % of a core)", fmt.Sprintf("%.2f %%", 100*idle.cpu.Seconds()/max(seconds, 1e-9))},
		{"statements a second while idle (goal 10)", fmt.Sprintf("%.1f", float64(idle.statements)/max(seconds, 1e-9))},
		{"a renewal: processor time / statements", fmt.Sprintf("%v / %.2f", (own / time.Duration(max(renewed, 1))).Round(time.Microsecond), asked/max(renewed, 1))},
		{"polls answered / other than quietly", fmt.Sprintf("%d / %d", answers.Answered, answers.Bad)},
	})
	if answers.Answered == 0 || answers.Bad > 0 {
		t.Errorf("%d polls were answered, %d of them other than quietly: %s", answers.Answered, answers.Bad, answers.Word)
	}
	if idle.span < *idleTime {
		t.Errorf("all polls waited for %v in all, not %v: they take too long to be sent and renewed for a wait of %v; ask for fewer", idle.span, *idleTime, *idleWait)
	}
	if most := 10*seconds + 20; float64(idle.statements) > most { // a round of retention and of each other thing may fall into a short time
		t.Errorf("%d statements in %.1f s while %d polls waited, at most %.0f expected", idle.statements, seconds, n, most)
	}
}

// cost is what a node had spent at a time, or what it spent in a span.
type cost struct {
	at         time.Time
	cpu        time.Duration
	statements int64
	span       time.Duration
}

func (c *cost) add(from, to cost) {
	c.span += to.at.Sub(from.at)
	c.cpu += to.cpu - from.cpu
	c.statements += to.statements - from.statements
}

// startGenerator starts this program as a generator, which ends with the test. What it says comes line by line.
func startGenerator(t *testing.T, o orders) (in *os.File, lines <-chan told) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(c.Environ(), generatorVariable+"="+string(text))
	c.Stdin, c.Stderr = read, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	said := make(chan told, 2*idlePolls)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(said)
		for s := bufio.NewScanner(out); s.Scan(); {
			var one told
			if json.Unmarshal(s.Bytes(), &one) == nil {
				said <- one
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		_ = c.Wait() // killed
		_ = write.Close()
	})
	return write, said
}

func next(t *testing.T, lines <-chan told, patience time.Duration) told {
	t.Helper()
	select {
	case one, ok := <-lines:
		if !ok {
			t.Fatal("the generator ended")
		}
		return one
	case <-time.After(patience):
		t.Fatalf("the generator says nothing for %v", patience)
	}
	return told{}
}

// resident is the memory of a node that is in RAM, in bytes.
func resident(t *testing.T, n *node) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kB, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return kB * 1024
}

// processor is the processor time that a node has used, in steps of 10 ms.
func processor(t *testing.T, n *node) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		v, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += v
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// collect has the node collect its garbage, and keeps its heap profile if that was asked for.
func collect(t *testing.T, o *operator) {
	t.Helper()
	text := o.must(http.MethodGet, "/debug/pprof/heap?gc=1", "")
	if *idleProfile == "" {
		return
	}
	if err := os.WriteFile(*idleProfile, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
