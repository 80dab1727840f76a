package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often everything is measured")
	requests := flag.Int("requests", 400, "requests of one measurement")
	handshakes := flag.Int("handshakes", 20000, "handshakes, all of one identity")
	check := flag.Bool("check", false, "exit with 1 when a target is missed")
	kind := flag.String("serve", "", "be one of the servers (used by the program itself)")
	flag.Parse()
	if *kind != "" {
		exit(serve(*kind))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	met, err := compare(ctx, *rounds, *requests, *handshakes)
	stop()
	exit(err)
	if *check && !met {
		os.Exit(1)
	}
}

// exit ends the program when something went wrong.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
}

func median[T cmp.Ordered](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// results collects figures by what was measured and at which server.
type results map[string][]float64

func (r results) add(what, kind string, v float64) { r[what+"/"+kind] = append(r[what+"/"+kind], v) }
func (r results) of(what, kind string) float64     { return median(r[what+"/"+kind]) }

// ratio is the median of the ratios of each round: what disturbs a round disturbs both servers.
func (r results) ratio(what, kind, otherWhat, other string) float64 {
	a, b := r[what+"/"+kind], r[otherWhat+"/"+other]
	all := make([]float64, min(len(a), len(b)))
	for i := range all {
		all[i] = a[i] / b[i]
	}
	return median(all)
}

func compare(ctx context.Context, rounds, requests, handshakes int) (bool, error) {
	r := results{}
	if err := inProcess(ctx, r, rounds, requests); err != nil {
		return false, err
	}
	if err := overSockets(ctx, r, rounds, requests, handshakes); err != nil {
		return false, err
	}
	return report(r, rounds, requests, handshakes), nil
}

// inProcess measures handlers without sockets.
func inProcess(ctx context.Context, r results, rounds, requests int) error {
	const big = 4 << 20
	for _, kind := range []string{ours, official} {
		n, err := allocated(kind, big)
		if err != nil {
			return fmt.Errorf("%s, 4 MiB: %w", kind, err)
		}
		r.add("allocated", kind, float64(n))
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	subjects := map[string]*subject{}
	for _, kind := range []string{ours, official} {
		s, err := newSubject(kind, nil)
		if err != nil {
			return err
		}
		if _, err := s.run("/small", 10); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		subjects[kind] = s
	}
	for range 2 * rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d, err := floor(requests)
		if err != nil {
			return err
		}
		r.add("floor", "", micros(d))
		for kind, s := range subjects {
			d, err := s.run("/small", requests)
			if err != nil {
				return fmt.Errorf("%s: %w", kind, err)
			}
			r.add("handler", kind, micros(d))
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// overSockets measures servers in processes of their own.
func overSockets(ctx context.Context, r results, rounds, requests, handshakes int) error {
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return err
	}
	servers, stop, err := startServers(ctx, key)
	defer stop()
	if err != nil {
		return err
	}
	if err := measure(r, servers, "", rounds, requests); err != nil {
		return err
	}
	for _, p := range servers {
		rate, kept, err := p.handshakes(key, handshakes)
		if err != nil {
			return err
		}
		r.add("handshakes", p.kind, rate)
		r.add("kept", p.kind, float64(kept))
	}
	// The same sessions once more, now among many of the same identity, beside servers that have just one.
	fresh, stopFresh, err := startServers(ctx, key)
	defer stopFresh()
	if err != nil {
		return err
	}
	for round := range 2 * rounds { // neither always first
		for i := range 2 {
			if (round+i)%2 == 0 {
				err = measure(r, servers, "-many", 1, requests)
			} else {
				err = measure(r, fresh, "-one", 1, requests)
			}
			if err != nil {
				return err
			}
		}
	}
	for _, p := range servers { // one figure of all connections
		for _, suffix := range []string{"-many", "-one"} {
			for _, conns := range []string{"cpu1", "cpu8"} {
				for _, v := range r[conns+suffix+"/"+p.kind] {
					r.add("cpu"+suffix, p.kind, v)
				}
			}
		}
	}
	return nil
}

// startServers starts one of each, with a session of the key, warmed up. stop must be called in any case.
func startServers(ctx context.Context, key *secp256k1.PrivateKey) (servers []*process, stop func(), err error) {
	stop = func() {
		for _, p := range servers {
			p.stop()
		}
	}
	c, err := brc104.NewClient(key)
	if err != nil {
		return nil, stop, err
	}
	for _, kind := range []string{ours, official} {
		p, err := startProcess(ctx, kind)
		if err != nil {
			return servers, stop, err
		}
		servers = append(servers, p)
		if p.session, err = greet(p.url, c); err != nil {
			return servers, stop, fmt.Errorf("%s: %w", kind, err)
		}
		if _, err := p.fire(50, 1); err != nil {
			return servers, stop, err
		}
	}
	return servers, stop, nil
}

// measure asks the servers by turns, neither always first.
func measure(r results, servers []*process, suffix string, rounds, requests int) error {
	for round := range rounds {
		for _, conns := range []int{1, 8} {
			for i := range servers {
				p := servers[(i+round)%len(servers)]
				f, err := p.fire(requests, conns)
				if err != nil {
					return err
				}
				r.add(fmt.Sprintf("cpu%d%s", conns, suffix), p.kind, micros(f.cpu))
				r.add(fmt.Sprintf("rate%d%s", conns, suffix), p.kind, f.rate)
			}
		}
	}
	return nil
}

func report(r results, rounds, requests, handshakes int) bool {
	fmt.Printf("%d rounds of %d requests, medians; %s, %d processors\n\n", rounds, requests, runtime.Version(), runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	line := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprintf(w, "%v\t", c)
		}
		fmt.Fprintln(w)
	}
	line("", ours, official)
	show := func(name, what, format string, scale float64) {
		line(name, fmt.Sprintf(format, r.of(what, ours)/scale), fmt.Sprintf(format, r.of(what, official)/scale))
	}
	show("server CPU per request, 1 connection, us", "cpu1", "%.0f", 1)
	show("server CPU per request, 8 connections, us", "cpu8", "%.0f", 1)
	show("requests per second, 1 connection", "rate1", "%.0f", 1)
	show("requests per second, 8 connections", "rate8", "%.0f", 1)
	show("handler only, CPU us", "handler", "%.0f", 1)
	line("plain sign + verify, CPU us", fmt.Sprintf("%.0f", r.of("floor", "")), "")
	show("allocated for a 4 MiB answer beside it, kB", "allocated", "%.0f", 1e3)
	show("handshakes per second, 4 connections", "handshakes", "%.0f", 1)
	show(fmt.Sprintf("heap kept by %d handshakes, kB", handshakes), "kept", "%.0f", 1e3)
	show("server CPU among those sessions, us", "cpu-many", "%.0f", 1)
	both := func(name, what, otherWhat, other string) {
		ratio := func(kind string) string {
			o := other
			if o == "same" {
				o = kind
			}
			return fmt.Sprintf("%.2f", r.ratio(what, kind, otherWhat, o))
		}
		line(name, ratio(ours), ratio(official))
	}
	both("handler only / plain sign + verify", "handler", "floor", "")
	both("CPU among many sessions / with one", "cpu-many", "cpu-one", "same")
	_ = w.Flush() // standard output; nothing else could be told

	fmt.Println()
	w = tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	line("target", "wanted", "is", "")
	met := true
	want := func(name, form string, is, bound float64, atMost bool) {
		ok := is <= bound
		sign := "<="
		if !atMost {
			ok, sign = is >= bound, ">="
		}
		verdict := "met"
		if !ok {
			verdict, met = "MISSED", false
		}
		line(name, sign+" "+fmt.Sprintf(form, bound), fmt.Sprintf(form, is), verdict)
	}
	want("server CPU / official, 1 connection", "%.2f", r.ratio("cpu1", ours, "cpu1", official), 0.33, true)
	want("server CPU / official, 8 connections", "%.2f", r.ratio("cpu8", ours, "cpu8", official), 0.33, true)
	want("throughput / official, 1 connection", "%.1f", r.ratio("rate1", ours, "rate1", official), 2.5, false)
	want("throughput / official, 8 connections", "%.1f", r.ratio("rate8", ours, "rate8", official), 2.0, false)
	want("handler only / plain sign + verify", "%.2f", r.ratio("handler", ours, "floor", ""), 1.8, true)
	want("allocated for a 4 MiB answer beside it, MB", "%.3f", r.of("allocated", ours)/1e6, 0.5, true)
	want("heap kept by the handshakes, MB", "%.3f", r.of("kept", ours)/1e6, 2, true)
	want("CPU among many sessions / with one", "%.2f", r.ratio("cpu-many", ours, "cpu-one", ours), 1.1, true)
	_ = w.Flush()
	return met
}
