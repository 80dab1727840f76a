package fleet_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

var (
	fleetTime      = flag.Duration("fleet.time", 5*time.Second, "how long TestN3_NodesAreKilledUnderLoad kills nodes")
	fleetEvery     = flag.Duration("fleet.every", 1500*time.Millisecond, "how long after a node was killed the next one is")
	fleetFollowers = flag.Int("fleet.followers", 24, "its followers")
	fleetWriters   = flag.Int("fleet.writers", 3, "its writers")
	fleetPause     = flag.Duration("fleet.pause", 200*time.Millisecond, "how long each of them rests after a group")
	fleetShelves   = flag.Int("fleet.shelves", 5, "shelves its rows stand on; a follower asks for one of them, or for all")
)

// TestN3_NodesAreKilledUnderLoad: three nodes, of which one after the other is killed and started again.
func TestN3_NodesAreKilledUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, settings{})
	shelves := shelvesOf(*fleetShelves)
	l := &ledger{}
	followers := newCrowd(t, f.base(), *fleetFollowers, shelves)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writing sync.WaitGroup
	var mu sync.Mutex
	var refused []error // guarded by mu
	for i := range *fleetWriters {
		w := newWriter(fmt.Sprint("w", i), shelves, *fleetPause)
		writing.Go(func() {
			if err := w.write(ctx, l, f.operator); err != nil {
				mu.Lock()
				defer mu.Unlock()
				refused = append(refused, err)
			}
		})
	}
	followers.follow()
	followers.bell(l, f.operator, shelves, 0, 5*time.Minute)
	retries := followers.retries.Load()

	kills := 0
	longest := time.Duration(0) // from a kill until every follower has a group committed after it
	for began := time.Now(); time.Since(began) < *fleetTime; kills++ {
		next := time.NewTimer(*fleetEvery)
		n := f.nodes[kills%len(f.nodes)]
		killed := time.Now()
		n.kill()
		n.launch()
		followers.bell(l, f.operator, shelves, 1+kills, 5*time.Minute)
		longest = max(longest, time.Since(killed))
		n.ready()
		<-next.C
	}
	cancel()
	writing.Wait()
	followers.bell(l, f.operator, shelves, 1+kills, 5*time.Minute)
	states := followers.held()
	v := l.judge(states...)
	users := followers.errorsSeen()
	table(t, "three nodes, one killed every "+fleetEvery.String(), [][2]string{
		{"nodes killed", fmt.Sprint(kills)},
		{"followers (signed: about half)", fmt.Sprint(len(states))},
		{"groups committed", fmt.Sprint(len(l.groups))},
		{"appends sent again / resolved by their key", fmt.Sprintf("%d / %d", f.operator.again.Load(), l.replayed)},
		{"live groups delivered", fmt.Sprint(v.delivered)},
		{"requests of followers sent again", fmt.Sprint(followers.retries.Load() - retries)},
		{"kill to all followers at a later group, longest", longest.Round(time.Millisecond).String()},
		{"errors seen by followers' users", fmt.Sprint(len(users))},
		{"lost / doubled / wrong in followers' states", fmt.Sprintf("%d / %d / %d", v.lost, v.doubled, v.wrong)},
	})
	for _, err := range append(users, refused...) {
		t.Error(err)
	}
	if !v.clean() {
		t.Errorf("lost %d, doubled %d, wrong %d:\n%s", v.lost, v.doubled, v.wrong, strings.Join(v.words, "\n"))
	}
	if kills == 0 || v.delivered == 0 {
		t.Error("nothing was shown")
	}
}

// table logs figures.
func table(t *testing.T, title string, rows [][2]string) {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", title)
	for _, row := range rows {
		fmt.Fprintf(&out, "  %-58s %s\n", row[0], row[1])
	}
	t.Log(out.String())
}

// TestN6_AFollowerThatSkipsAGroup is found out: a group is taken from an answer on its way to it.
func TestN6_AFollowerThatSkipsAGroup(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, settings{})
	shelves := shelvesOf(1)
	l := &ledger{}
	followers := newCrowd(t, f.base(), 2, shelves)
	stolen := edit{row: "stolen", shelves: shelves, mark: "m"}
	followers.followers[0].wrap = func(inner http.RoundTripper) http.RoundTripper { return &thief{inner: inner, txid: stolen.txid()} }
	followers.follow()
	followers.bell(l, f.operator, shelves, 0, testkit.Patience)
	const key = "fleet-stolen-0123456789"
	sequence, replayed, err := f.operator.append(t.Context(), key, stolen)
	if err != nil {
		t.Fatal(err)
	}
	l.note(committed{sequence, key, []edit{stolen}}, replayed)
	followers.bell(l, f.operator, shelves, 1, testkit.Patience)
	v := l.judge(followers.held()...)
	if len(followers.errorsSeen()) > 0 || v.lost != 2 || v.doubled != 0 || v.wrong != 0 { // the group, and its row at the end
		t.Errorf("lost %d, doubled %d, wrong %d: %q; %v", v.lost, v.doubled, v.wrong, v.words, followers.errorsSeen())
	}
}

// thief takes the group of a row out of a live answer.
type thief struct {
	inner http.RoundTripper
	txid  string
}

func (s *thief) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.inner.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK || !strings.HasSuffix(r.URL.Path, "/read") {
		return response, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	if b, err := wire.ParseBatch(body); err == nil && b.Phase == wire.PhaseLive {
		b.Groups = slices.DeleteFunc(b.Groups, func(g wire.Group) bool {
			o := g.Observations[0].Output
			return o != nil && o.Evidence.TxID == s.txid
		})
		body = b.AppendCanonical(nil)
	}
	response.ContentLength = int64(len(body))
	response.Header.Set("Content-Length", strconv.Itoa(len(body)))
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}
