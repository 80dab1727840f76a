package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/testkit"
)

// shown is what the page shows of one client.
type shown struct {
	State     string            `json:"state"`
	Connected bool              `json:"connected"`
	Count     string            `json:"count"`
	Through   string            `json:"through"`
	HighWater string            `json:"highWater"`
	Recovered string            `json:"recovered"`
	Rows      map[string]string `json:"rows"`    // outpoint: snapshot, live or missed
	Changes   []shownChange     `json:"changes"` // the newest first
	Loads     int               `json:"loads"`   // of the page
	Leaks     int               `json:"leaks"`   // session ids and cursors that stand in the page
	Secrets   int               `json:"secrets"` // session ids and cursors that the page was given
}

type shownChange struct {
	Sequence string   `json:"sequence"`
	How      string   `json:"how"` // live or missed
	Told     []string `json:"told"`
}

// show drives the page that overlayd dev serves.
type show struct {
	*testing.T
	driver *driver
	ready  e2e.Ready
}

func (s *show) look(client string) shown {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), callTime)
	defer cancel()
	r, err := s.driver.do(ctx, command{Op: "look", Client: client})
	if err != nil {
		s.Fatal(err)
	}
	var v shown
	if err := json.Unmarshal(r.Report, &v); err != nil {
		s.Fatal(err)
	}
	if v.Loads != 1 {
		s.Fatalf("the page was loaded %d times", v.Loads)
	}
	if v.Leaks != 0 || v.Secrets == 0 {
		s.Fatalf("%d of %d session ids and cursors stand in the page", v.Leaks, v.Secrets)
	}
	return v
}

// until looks until a client shows what is wanted.
func (s *show) until(client, what string, holds func(shown) bool) shown {
	s.Helper()
	var last shown
	testkit.Eventually(s.T, fmt.Sprintf("the %s client shows %s", client, what), func() bool {
		last = s.look(client)
		return holds(last)
	})
	return last
}

func (s *show) flip(client string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), callTime)
	defer cancel()
	if _, err := s.driver.do(ctx, command{Op: "switch", Client: client}); err != nil {
		s.Fatal(err)
	}
}

// append commits a group by the operator API and returns its sequence.
func (s *show) append(edits ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), callTime)
	defer cancel()
	body := `{"key":"` + newID() + `","edits":[` + strings.Join(edits, ",") + `]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ready.OperatorURL+"/operator/v1/feeds/catalogue/groups", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.ready.OperatorToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	var receipt struct {
		Sequence string `json:"sequence"`
	}
	if err := json.Unmarshal(text, &receipt); err != nil || res.StatusCode != http.StatusOK {
		s.Fatalf("status %d: %s", res.StatusCode, bytes.TrimSpace(text))
	}
	return receipt.Sequence
}

func (c coin) row() string { return c.hex() + ".0" }

func (v shown) lists(coins ...coin) bool {
	want := make([]string, len(coins))
	for i, c := range coins {
		want[i] = c.row()
	}
	slices.Sort(want)
	return slices.Equal(slices.Sorted(maps.Keys(v.Rows)), want) && v.Count == fmt.Sprint(len(coins))
}

func (v shown) live() bool { return v.State == "live" && v.Connected && v.Through == v.HighWater }

// The live demonstration (BRC-193 s7): two independent clients in a real browser, of a real overlayd dev.
func TestC8_BrowserDemonstration(t *testing.T) {
	const what = "a second client shows what was newly admitted without a reload, and one that was cut off what it missed"
	node, ok := nodeProgram(t, what)
	if !ok {
		return
	}
	chromium, ok := chromiumProgram(t, what)
	if !ok {
		return
	}
	s := &show{T: t}
	_, s.ready = e2e.Dev(t, t.TempDir(), "--sample", "none")
	a, b, c := mint(0), mint(0), mint(0)
	for _, x := range []coin{a, b, c} {
		s.append(x.put("jazz"))
	}
	s.driver = startNode(t, node, "demo.mjs", chromium, t.TempDir(), s.ready.BaseURL+"/demo/")
	clients := []string{"first", "second"}

	for _, client := range clients {
		v := s.until(client, "the snapshot", func(v shown) bool { return v.live() && v.lists(a, b, c) })
		if v.Rows[a.row()] != "snapshot" || v.Through != "3" || len(v.Changes) != 0 {
			t.Errorf("the %s client: %+v", client, v)
		}
	}

	// Newly admitted: both show it, no page was loaded again.
	d := mint(0)
	admitted := shownChange{s.append(d.put("jazz")), "live", []string{"output " + d.row()}}
	for _, client := range clients {
		v := s.until(client, "the new output", func(v shown) bool { return v.live() && v.lists(a, b, c, d) })
		if v.Rows[d.row()] != "live" || len(v.Changes) != 1 || !v.Changes[0].equal(admitted) {
			t.Errorf("the %s client: %+v", client, v)
		}
	}

	// The second is cut off, and misses a replacement and a listing.
	s.flip("second")
	before := s.until("second", "that it is cut off", func(v shown) bool { return v.State == "offline" && !v.Connected })
	e, f := mint(0, a), mint(0)
	replaced := shownChange{s.append(a.spent(e), e.put("jazz")), "live", []string{"spend " + a.row(), "withdraw " + a.row(), "output " + e.row()}}
	listed := shownChange{s.append(f.put("jazz")), "live", []string{"output " + f.row()}}
	v := s.until("first", "both changes", func(v shown) bool { return v.live() && v.lists(b, c, d, e, f) })
	if len(v.Changes) != 3 || !v.Changes[0].equal(listed) || !v.Changes[1].equal(replaced) || v.Recovered != "0" {
		t.Errorf("the first client: %+v", v)
	}
	if v := s.look("second"); !v.lists(a, b, c, d) || v.Through != before.Through || len(v.Changes) != 1 {
		t.Errorf("the second client was cut off, but shows %+v", v)
	}

	// It comes back and shows exactly what it missed, in order, as that.
	s.flip("second")
	v = s.until("second", "what it missed", func(v shown) bool { return v.live() && v.lists(b, c, d, e, f) })
	replaced.How, listed.How = "missed", "missed"
	if len(v.Changes) != 3 || !v.Changes[0].equal(listed) || !v.Changes[1].equal(replaced) || !v.Changes[2].equal(admitted) || v.Recovered != "2" {
		t.Errorf("the second client: %+v", v)
	}
	want := map[string]string{b.row(): "snapshot", c.row(): "snapshot", d.row(): "live", e.row(): "missed", f.row(): "missed"}
	if !maps.Equal(v.Rows, want) {
		t.Errorf("the second client marks %v, want %v", v.Rows, want)
	}

	// From then on it is live again.
	g := mint(0)
	s.append(g.put("jazz"))
	for _, client := range clients {
		v := s.until(client, "a further output", func(v shown) bool { return v.live() && v.lists(b, c, d, e, f, g) })
		if v.Rows[g.row()] != "live" {
			t.Errorf("the %s client: %+v", client, v)
		}
	}
	t.Logf("driven in Chromium %s by playwright-core %s", s.driver.versions["chromium"], s.driver.versions["playwright"])
}

func (c shownChange) equal(o shownChange) bool {
	return c.Sequence == o.Sequence && c.How == o.How && slices.Equal(c.Told, o.Told)
}
