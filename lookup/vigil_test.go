package lookup

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/httpserve"
	"github.com/overlayd/overlayd/internal/testkit"
)

// A poll that was parked is answered like one that was not, by what it waits for, by its deadline and by the end of its session, and
// its connection goes on.
func TestW1_AParkedPollIsAnsweredLikeAnother(t *testing.T) {
	t.Parallel()
	var names [][]string
	for _, dozing := range []time.Duration{0, time.Minute} {
		n := start(t, setup{})
		n.provider.dozing = dozing // before anything is asked
		address, _ := serve(t, n, httpserve.Config{})
		digest := n.capability()
		conn := dial(t, address)
		in := bufio.NewReader(conn)
		send := func(body []byte) {
			t.Helper()
			if _, err := io.WriteString(conn, good(digest, readPath, string(body)).sized().String()); err != nil {
				t.Fatal(err)
			}
		}
		answer := func() reply {
			t.Helper()
			r, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, slices.Sorted(maps.Keys(r.Header)))
			return reply{r.StatusCode, r.Header, body}
		}
		sleeps := func() {
			t.Helper()
			testkit.Eventually(t, "the poll sleeps", func() bool { return n.provider.quotas.waiters.count() == 1 })
		}
		b := n.live(`{}`)
		send(readBody(b.Session, b.Cursor, wait(25000)))
		sleeps()
		n.stock(1)
		got := answer().batch(t)
		if len(got.Groups) != 1 {
			t.Fatalf("%d groups", len(got.Groups))
		}
		send(readBody(b.Session, got.Cursor, wait(50)))
		if next := answer().batch(t); len(next.Groups) != 0 || next.Through != got.Through {
			t.Errorf("%d groups, through %d", len(next.Groups), next.Through)
		}
		send(readBody(b.Session, got.Cursor, wait(25000)))
		sleeps()
		n.request(closePath, closeBody(b.Session))
		if r := answer(); r.status == http.StatusOK {
			t.Errorf("%s", r.body)
		}
		testkit.Eventually(t, "nothing is held", func() bool {
			taken, waiting := n.provider.main.slots.count()
			n.provider.closing.mu.Lock()
			defer n.provider.closing.mu.Unlock()
			return n.provider.quotas.waiters.count() == 0 && taken == 0 && waiting == 0 && n.provider.quotas.bodies.count() == 0 && len(n.provider.closing.polls) == 0
		})
	}
	if half := len(names) / 2; !slices.EqualFunc(names[:half], names[half:], slices.Equal) {
		t.Errorf("headers %v", names)
	}
}
