package lookup

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// TestH12_MaximaBelowAnExistingRow: a start under which a row that is there already could never be delivered is refused, names the
// row, and leaves the limits as they were; a row less, and it starts.
func TestH12_MaximaBelowAnExistingRow(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	wide := mint("wide", 0)
	n.append(wide.put(genre(0), `,"context":{"schema":"urn:test:wide","bytes":"`+base64.StdEncoding.EncodeToString(make([]byte, 90_000))+`"}`))
	n.append(mint("slim", 0).put(genre(1), ""))
	before, err := n.feed.Limits(t.Context(), n.pool)
	if err != nil {
		t.Fatal(err)
	}
	narrow := func(bytes uint32) error {
		s := n.provider.services[testService].Service
		s.MaxResponseBytes = bytes
		_, err := New(t.Context(), Config{
			Store: n.store, Pool: n.pool, BaseURL: n.base, LocalDevelopment: true, Chain: testChain(), Identity: n.provider.identity,
			Services: []Service{s}, Log: n.provider.log,
		})
		return err
	}
	err = narrow(wire.MinResponseBytes)
	if livefeed.CodeOf(err) != livefeed.Limited || !strings.Contains(err.Error(), wide.point().String()) || !strings.Contains(err.Error(), "maxResponseBytes") {
		t.Fatalf("%v", err)
	}
	after, err := n.feed.Limits(t.Context(), n.pool)
	if err != nil || len(after) != len(before) || after[0] != before[0] {
		t.Fatalf("%v, %+v instead of %+v", err, after, before)
	}
	if err := narrow(256 << 10); err != nil {
		t.Fatal(err)
	}
	n.append(wide.withdrawn("evicted"))
	if err := narrow(wire.MinResponseBytes); err != nil {
		t.Fatal(err)
	}
}
