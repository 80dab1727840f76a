package fleet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
)

// longPoll is the longest that a poll may sleep. One that ends long before it was woken.
const longPoll = 25 * time.Second

// TestN1_W2_AGroupWakesPollsOnOtherNodes: by its notification, with no look at the heads in between; and without any.
func TestN1_W2_AGroupWakesPollsOnOtherNodes(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"notified":  "database: {pollMs: 60000}",
		"poll only": "database: {notifications: false, pollMs: 50}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 2, settings{more: more})
			here, there := f.nodes[0].of(), f.nodes[1]
			type reader struct {
				*e2e.Caller
				at *wire.Batch
			}
			readers := []*reader{{there.caller(), nil}, {there.caller().As('w'), nil}}
			for i, service := range []string{forAll, forSigned} {
				readers[i].at = caughtUp(t, readers[i].Caller, service)
			}
			for i := range 3 {
				var polls []*poll
				for _, r := range readers {
					polls = append(polls, there.sleeps(r.Caller, r.at, longPoll))
				}
				began := time.Now()
				sequence := here.put(fmt.Sprint("row-", i), "a")
				for k, r := range readers {
					r.at = polls[k].answer().Batch(t)
					if len(r.at.Groups) != 1 || r.at.Groups[0].Sequence != sequence {
						t.Fatalf("the poll brought %d groups through %d, not the one at %d", len(r.at.Groups), r.at.Through, sequence)
					}
				}
				if took := time.Since(began); took > longPoll/2 {
					t.Errorf("the polls were answered after %v: nothing woke them", took)
				}
			}
		})
	}
}

// TestN1_O5_AnOpenRacedOnSeveralNodes is one session with one body.
func TestN1_O5_AnOpenRacedOnSeveralNodes(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, settings{})
	f.operator.put("row", "a")
	var callers []*e2e.Caller
	for _, n := range f.nodes {
		c := n.caller()
		c.Open(forAll).Batch(t) // it knows the manifest from now on
		callers = append(callers, c)
	}
	before := f.operator.feed().Sessions
	const races, each = 5, 4
	for range races {
		body := openBody(forAll)
		answers := make([]e2e.Answer, each*len(callers))
		errs := make([]error, len(answers))
		begin := make(chan struct{})
		var running sync.WaitGroup
		for i := range answers {
			running.Go(func() {
				<-begin
				answers[i], errs[i] = open(t.Context(), callers[i%len(callers)], body)
			})
		}
		close(begin)
		running.Wait()
		for i, a := range answers {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			a.Batch(t)
			if !bytes.Equal(a.Body, answers[0].Body) {
				t.Fatalf("one Open has two answers:\n%s\n%s", a.Body, answers[0].Body)
			}
		}
	}
	if got := f.operator.feed().Sessions - before; got != races {
		t.Errorf("%d Opens made %d sessions", races, got)
	}
}

// TestN2_WhatOneNodeEnds has ended on the other, where a poll of it sleeps: whether the poll is woken by the end itself, or by what
// it waits for where nodes hear nothing of each other, or comes to its own end, it brings the refusal and nothing else.
func TestN2_WhatOneNodeEnds(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"told":      "database: {pollMs: 60000}", // no look at the heads in between
		"poll only": "database: {notifications: false}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whatOneNodeEnds(t, newFleet(t, 2, settings{more: more}), name == "told")
		})
	}
}

func whatOneNodeEnds(t *testing.T, f *fleet, told bool) {
	here, there := f.nodes[0], f.nodes[1]
	o := here.of()
	remove := func(t *testing.T, service string) {
		var list struct {
			Sessions []struct{ Ref, State string }
		}
		if err := json.Unmarshal(o.must(http.MethodGet, "/operator/v1/sessions?service="+service, ""), &list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Sessions {
			if s.State == "open" {
				o.must(http.MethodDelete, "/operator/v1/sessions/"+s.Ref, "")
			}
		}
	}
	guest := there.caller().As('g')
	grant := "/operator/v1/services/" + forListed + "/grants/" + guest.Identity()
	for i, c := range []struct {
		name    string
		service string
		caller  *e2e.Caller
		want    wire.Code
		end     func(t *testing.T, b *wire.Batch)
	}{
		{"closed", forAll, there.caller(), wire.Expired, func(t *testing.T, b *wire.Batch) {
			if a := here.caller().Close(b); a.Status != http.StatusOK {
				t.Fatalf("close: %d %s", a.Status, a.Body)
			}
		}},
		{"removed", forAll, there.caller(), wire.Unauthorized, func(t *testing.T, _ *wire.Batch) { remove(t, forAll) }},
		{"removed, signed", forSigned, there.caller().As('m'), wire.Unauthorized, func(t *testing.T, _ *wire.Batch) { remove(t, forSigned) }},
		{"grant revoked", forListed, guest, wire.Unauthorized, func(*testing.T, *wire.Batch) { o.must(http.MethodDelete, grant, "") }},
	} {
		for _, woken := range []bool{true, false} {
			if told && !woken {
				continue
			}
			t.Run(fmt.Sprintf("%s, woken: %t", c.name, woken), func(t *testing.T) {
				if c.service == forListed {
					o.must(http.MethodPut, grant, "")
				}
				b := caughtUp(t, c.caller, c.service)
				wait := longPoll
				if !woken {
					wait = time.Second
				}
				p := there.sleeps(c.caller, b, wait)
				began := time.Now()
				c.end(t, b)
				if woken && !told {
					o.put(fmt.Sprint("secret-", i), "a")
				}
				p.answer().Refused(t, c.want)
				if took := time.Since(began); took > longPoll/2 {
					t.Errorf("the poll was answered after %v: nothing woke it", took)
				}
				c.caller.Read(b, 0).Refused(t, c.want)
			})
		}
	}
}

// TestN2_ARowProhibitedOnOneNode is served by none: a poll that sleeps on the other brings its withdrawal, and a session that
// would have to show it is reset there.
func TestN2_ARowProhibitedOnOneNode(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, settings{})
	here, there := f.nodes[0].of(), f.nodes[1]
	prohibit := func(row string) string {
		e := edit{row: row}
		here.must(http.MethodPut, "/operator/v1/feeds/"+feedName+"/prohibitions/"+e.txid()+".0", `{"reason":"court order"}`)
		return e.txid()
	}
	here.put("shown", "a")
	c := there.caller()
	c.Capabilities()
	request := openBody(forAll)
	first, err := open(t.Context(), c, request)
	if err != nil {
		t.Fatal(err)
	}
	b := c.Read(first.Batch(t), 0).Batch(t)
	p := there.sleeps(c, b, longPoll)
	began := time.Now()
	txid := prohibit("shown")
	b = p.answer().Batch(t)
	if took := time.Since(began); took > longPoll/2 {
		t.Errorf("the poll was answered after %v: nothing woke it", took)
	}
	if len(b.Groups) != 1 || len(b.Groups[0].Observations) != 1 {
		t.Fatalf("the poll brought %d groups", len(b.Groups))
	}
	if w := b.Groups[0].Observations[0].Withdraw; w == nil || w.Outpoint.TxID != txid || w.Reason != "prohibited" {
		t.Errorf("the poll brought %s", b.Groups[0].Observations[0].Canonical)
	}
	// Its first answer showed the row and would be sent again.
	again, err := open(t.Context(), c, request)
	if err != nil {
		t.Fatal(err)
	}
	again.Refused(t, wire.ResetRequired)

	// A row that is prohibited before it comes does not come.
	a := c.Open(forAll).Batch(t)
	if len(a.Groups) != 0 {
		t.Errorf("a new snapshot shows %d rows", len(a.Groups))
	}
	b = c.Read(a, 0).Batch(t)
	p = there.sleeps(c, b, longPoll)
	hidden := prohibit("hidden")
	here.put("hidden", "a")
	last := here.put("next", "a")
	for b = p.answer().Batch(t); ; b = c.Read(b, time.Second).Batch(t) {
		for _, g := range b.Groups {
			for _, o := range g.Observations {
				if o.Output == nil || o.Output.Evidence.TxID == hidden {
					t.Errorf("the poll brought %s", o.Canonical)
				}
			}
		}
		if b.Through >= last {
			return
		}
	}
}
