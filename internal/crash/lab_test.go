//go:build crash

package crash

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	labTime = flag.Duration("lab.time", 8*time.Minute, "how long the lab plays; builds come on top")
	labSeed = flag.Uint64("lab.seed", 0, "chooses the scenarios of a short run; 0 draws one")
	labOnly = flag.String("lab.only", "", "plays only scenarios whose name matches, once")
)

// row is one scenario in the table.
type row struct {
	scenario
	runs  int
	total result
	fault error
}

// lab plays scenarios in two lanes, each with a Postgres of its own.
type lab struct {
	t    *testing.T
	dir  string
	mu   sync.Mutex
	rows []*row
	made map[string]func() (string, error) // binaries by tag
	n    int
}

// TestLab is the crash lab. It fails when a promise was broken, or a mutant was not caught.
func TestLab(t *testing.T) {
	began := time.Now()
	seed := *labSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	dir, err := os.MkdirTemp("", "overlayd-crash-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Postgres may run as another user, who has to pass through.
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir, made: map[string]func() (string, error){}}
	for _, tag := range []string{"", "mutant_bigserial", "mutant_latewait", "mutant_nolock"} {
		l.made[tag] = sync.OnceValues(func() (string, error) {
			if tag == "" {
				return build(dir, "failpoint")
			}
			return build(dir, "failpoint", tag)
		})
	}
	for _, s := range choose(seed, t) {
		if s.disk && os.Geteuid() != 0 {
			fmt.Printf("left out, it needs root: %s\n", s.name)
			continue
		}
		l.rows = append(l.rows, &row{scenario: s})
		if _, err := l.made[s.mutant](); err != nil {
			t.Fatal(err)
		}
	}
	// What takes longest first, and a mutant in any case.
	slices.SortStableFunc(l.rows, func(a, b *row) int { return b.urgency() - a.urgency() })
	fmt.Printf("crash lab: %d scenarios, %s, seed %d, built in %s\n", len(l.rows), *labTime, seed, time.Since(began).Round(time.Second))
	until := time.Now().Add(*labTime)
	queue := make(chan *row)
	var lanes sync.WaitGroup
	for lane := range 2 {
		c, err := newCluster(t, filepath.Join(dir, fmt.Sprint("postgres", lane)))
		if err != nil {
			t.Fatal(err)
		}
		lanes.Go(func() {
			for r := range queue {
				l.once(r, c)
			}
		})
	}
	l.feed(queue, until)
	close(queue)
	lanes.Wait()
	l.table()
}

// choose is every scenario, or for a short run as many as there is time for, one mutant among them.
func choose(seed uint64, t *testing.T) []scenario {
	all := scenarios()
	if *labOnly != "" {
		only, err := regexp.Compile(*labOnly)
		if err != nil {
			t.Fatal(err)
		}
		var some []scenario
		for _, s := range all {
			if only.MatchString(s.name) {
				some = append(some, s)
			}
		}
		return some
	}
	if whole() {
		return all
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	room := map[bool]int{true: 1, false: max(2, int(*labTime/(6*time.Second)))} // by: a mutant
	var some []scenario
	for _, s := range all {
		if !s.disk && !s.long && room[s.mutant != ""] > 0 {
			room[s.mutant != ""]--
			some = append(some, s)
		}
	}
	return some
}

func (r *row) urgency() int {
	switch {
	case r.long:
		return 2
	case r.mutant != "":
		return 1
	}
	return 0
}

// whole reports whether every scenario has to be played.
func whole() bool { return *labTime >= 4*time.Minute || *labOnly != "" }

// feed hands out every scenario once, and then again and again while there is time.
func (l *lab) feed(queue chan<- *row, until time.Time) {
	for turn := 0; turn == 0 || *labOnly == ""; turn++ {
		for _, r := range l.rows {
			switch {
			case turn == 0 && time.Now().After(until.Add(time.Minute)):
				return // this machine is too slow for all of them
			case turn == 0:
			case time.Now().Add(longest).After(until):
				return
			case r.disk || r.long || r.mutant != "":
				continue
			}
			queue <- r
		}
		if len(l.rows) == 0 || time.Now().Add(longest).After(until) {
			return
		}
	}
}

// longest is about what a scenario takes.
const longest = 15 * time.Second

func (l *lab) once(r *row, c *cluster) {
	// Races are won by chance: a mutant has some tries.
	for range 8 {
		if l.attempt(r, c); r.mutant == "" || r.total.count(r.by...) > 0 {
			return
		}
	}
}

func (l *lab) attempt(r *row, c *cluster) {
	l.mu.Lock()
	l.n++
	name := fmt.Sprintf("run_%d", l.n)
	l.mu.Unlock()
	out, err := l.play(r, c, name)
	l.mu.Lock()
	defer l.mu.Unlock()
	r.runs++
	t := &r.total
	t.acknowledged += out.acknowledged
	t.sessions += out.sessions
	t.delivered += out.delivered
	t.crashes += out.crashes
	t.retryable += out.retryable
	t.slowReader = max(t.slowReader, out.slowReader)
	t.slowWriter = max(t.slowWriter, out.slowWriter)
	t.findings = append(t.findings, out.findings...)
	verdict := "ok"
	switch {
	case err != nil && r.mutant == "":
		r.fault = err
		verdict = "FAILED: " + err.Error()
	case r.mutant != "" && out.count(r.by...) > 0:
		i := slices.IndexFunc(out.findings, func(f Finding) bool { return slices.Contains(r.by, f.Kind) })
		verdict = "caught: " + out.findings[i].String()
	case r.mutant != "":
		verdict = fmt.Sprintf("not caught in this try (%v)", err)
	case len(out.findings) > 0:
		verdict = fmt.Sprintf("%d FINDINGS: %s", len(out.findings), out.findings[0])
	}
	fmt.Printf("%s %-46s %5.1f s, %4d groups: %s\n", time.Now().Format("15:04:05"), r.name, out.took.Seconds(), out.acknowledged, verdict)
	if r.mutant == "" {
		for _, f := range out.findings[min(1, len(out.findings)):min(6, len(out.findings))] {
			fmt.Println("        ", f)
		}
	}
}

func (l *lab) play(r *row, c *cluster, name string) (result, error) {
	binary, err := l.made[r.mutant]()
	if err != nil {
		return result{}, err
	}
	if r.disk {
		disk := filepath.Join(l.dir, "disk-"+name)
		if err := tmpfs(l.t, disk, "320m"); err != nil {
			return result{}, err
		}
		if c, err = newCluster(l.t, filepath.Join(disk, "postgres")); err != nil {
			return result{}, err
		}
	}
	return play(c, binary, name, r.script())
}

// table prints what was shown, and fails the test where it was not.
func (l *lab) table() {
	fmt.Printf("\n%-46s %4s %7s %7s %8s %9s %4s %7s %6s\n", "scenario", "runs", "crashes", "groups", "sessions", "delivered", "lost", "doubled", "other")
	var all result
	runs := 0
	for _, r := range l.rows {
		if r.runs == 0 {
			fmt.Printf("%-46s the time was over\n", r.name)
			if whole() || r.mutant != "" {
				l.t.Errorf("%s was not played: give it more time", r.name)
			}
		}
		if r.mutant != "" || r.runs == 0 {
			continue
		}
		lost, doubled := r.total.count(Lost), r.total.count(Doubled)
		fmt.Printf("%-46s %4d %7d %7d %8d %9d %4d %7d %6d\n", r.name, r.runs, r.total.crashes, r.total.acknowledged, r.total.sessions, r.total.delivered,
			lost, doubled, len(r.total.findings)-lost-doubled)
		runs += r.runs
		all.crashes += r.total.crashes
		all.acknowledged += r.total.acknowledged
		all.sessions += r.total.sessions
		all.delivered += r.total.delivered
		all.findings = append(all.findings, r.total.findings...)
		if r.fault != nil {
			l.t.Errorf("%s: %v", r.name, r.fault)
		}
		for i, f := range r.total.findings {
			if i < 10 {
				l.t.Errorf("%s: %s", r.name, f)
			}
		}
	}
	lost, doubled := all.count(Lost), all.count(Doubled)
	fmt.Printf("%-46s %4d %7d %7d %8d %9d %4d %7d %6d\n", "in all", runs, all.crashes, all.acknowledged, all.sessions, all.delivered,
		lost, doubled, len(all.findings)-lost-doubled)
	fmt.Printf("\n%-46s %4s %7s %s\n", "mutant", "runs", "groups", "caught by")
	for _, r := range l.rows {
		if r.mutant == "" || r.runs == 0 {
			continue
		}
		kinds := map[Kind]int{}
		for _, f := range r.total.findings {
			kinds[f.Kind]++
		}
		by := strings.TrimPrefix(fmt.Sprint(kinds), "map")
		if r.total.count(r.by...) == 0 {
			by = fmt.Sprintf("NOT CAUGHT by any of %v: %s", r.by, by)
			l.t.Errorf("the mutant %s was not caught", r.mutant)
		}
		fmt.Printf("%-46s %4d %7d %s\n", r.name, r.runs, r.total.acknowledged, by)
	}
}
