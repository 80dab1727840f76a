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

// lab plays scenarios in lanes, each with a Postgres of its own.
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
	fmt.Printf("crash lab: %d scenarios, %s, seed %d, built in %s\n", len(l.rows), *labTime, seed, time.Since(began).Round(time.Second))
	until := time.Now().Add(*labTime)
	var lanes sync.WaitGroup
	for name, takes := range map[string]func(*row) bool{
		"shared": func(r *row) bool { return !r.own && r.mutant == "" },
		"own":    func(r *row) bool { return r.own || r.mutant != "" },
	} {
		lanes.Go(func() { l.lane(name, until, takes) })
	}
	lanes.Wait()
	l.table()
}

// choose is every scenario, or for a short run some: a few failpoints, one fault of the database and one mutant.
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
	if *labTime >= 4*time.Minute {
		return all
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	room := map[string]int{"shared": int(*labTime / (10 * time.Second)), "own": max(1, int(*labTime/(40*time.Second))), "mutant": 1}
	var some []scenario
	for _, s := range all {
		kind := "shared"
		switch {
		case s.mutant != "":
			kind = "mutant"
		case s.disk:
			continue
		case s.own:
			kind = "own"
		}
		if room[kind] > 0 {
			room[kind]--
			some = append(some, s)
		}
	}
	return some
}

// lane plays its scenarios in turn until the time is over; each at least once.
func (l *lab) lane(name string, until time.Time, takes func(*row) bool) {
	var mine []*row
	for _, r := range l.rows {
		if takes(r) {
			mine = append(mine, r)
		}
	}
	if len(mine) == 0 {
		return
	}
	c := newCluster(l.t, filepath.Join(l.dir, "postgres-"+name))
	for turn := 0; turn == 0 || time.Now().Before(until) && *labOnly == ""; turn++ {
		for _, r := range mine {
			if turn > 0 && (time.Now().Add(12*time.Second).After(until) || r.disk || r.mutant != "") {
				continue
			}
			l.once(r, c)
		}
		if turn > 0 && time.Now().Add(12*time.Second).After(until) {
			return
		}
	}
}

func (l *lab) once(r *row, c *cluster) {
	if r.disk {
		c = newCluster(l.t, filepath.Join(tmpfs(l.t, "320m"), "postgres"))
	}
	binary, err := l.made[r.mutant]()
	if err != nil {
		r.fault = err
		return
	}
	l.mu.Lock()
	l.n++
	name := fmt.Sprintf("run_%d", l.n)
	l.mu.Unlock()
	out, err := play(l.t, c, binary, name, r.script())
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
		verdict = fmt.Sprintf("NOT CAUGHT (%v)", err)
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

// table prints what was shown, and fails the test where it was not.
func (l *lab) table() {
	fmt.Printf("\n%-46s %4s %7s %7s %8s %9s %4s %7s %6s\n", "scenario", "runs", "crashes", "groups", "sessions", "delivered", "lost", "doubled", "other")
	var all result
	runs := 0
	for _, r := range l.rows {
		if r.mutant != "" {
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
		if r.mutant == "" {
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
