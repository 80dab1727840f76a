package lookup

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// TestW1_AnEndIsHeardWhileAPollBegins: the session ends after the poll has looked it up and before it sleeps. Who registers only
// then sleeps until its deadline.
func TestW1_AnEndIsHeardWhileAPollBegins(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	for _, m := range []moment{beforeBuild, beforeSleep} {
		b := n.live(`{"match":{"genre":"jazz"}}`)
		var once sync.Once
		stop := n.during(m, func() { once.Do(func() { n.shut(b) }) })
		began := time.Now()
		n.request(readPath, readBody(b.Session, b.Cursor, wait(25000))).refused(t, wire.Expired)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("closed at moment %d, the poll ended after %s", m, took)
		}
		stop()
	}
}

// TestW2_EndingsAreToldInHints: however many sessions end at once, what is told fits in hints and arrives whole; what does not fit
// into the memory set aside for it is not told, and nothing else is taken for a hint.
func TestW2_EndingsAreToldInHints(t *testing.T) {
	t.Parallel()
	e := newEndings()
	id := func(i int) (id [32]byte) {
		id[0], id[1], id[2] = byte(i), byte(i>>8), byte(i>>16)
		return id
	}
	var list []ended
	for i := range mostEndings + 100 {
		list = append(list, ended{id: id(i)})
	}
	e.add(list[:1000])
	e.add(list[1000:])
	hints := e.take()
	if len(e.take()) != 0 {
		t.Error("what was taken is still there")
	}
	p := &Provider{closing: newClosing()}
	heard := make([]*vigil, len(list))
	for i := range list {
		heard[i] = &vigil{}
		p.closing.watch(heard[i], id(i))
	}
	woken := func(v *vigil) bool { return v.since == byEnd }
	for _, hint := range []string{"", "ended:", "ended:&", "other:" + strings.TrimPrefix(hints[0], endingsPrefix), strings.TrimPrefix(hints[0], endingsPrefix), hints[0][:len(endingsPrefix)+40]} {
		p.hinted(hint)
	}
	for i, v := range heard {
		if woken(v) {
			t.Fatalf("poll %d was woken by nothing", i)
		}
	}
	for _, hint := range hints {
		if len(hint) > livefeed.MaxHint {
			t.Errorf("a hint of %d bytes", len(hint))
		}
		p.hinted(hint)
	}
	for i, v := range heard {
		if woken(v) != (i < mostEndings) {
			t.Fatalf("poll %d: %t", i, woken(v))
		}
		p.closing.leave(v)
	}
	if len(p.closing.polls) != 0 {
		t.Errorf("%d sessions still have polls", len(p.closing.polls))
	}
}
