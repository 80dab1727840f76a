package livefeed

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

func TestL6_AdmissionIsExact(t *testing.T) {
	t.Parallel()
	context := &Context{Schema: "urn:x:\"1\"", Bytes: make([]byte, 10)}
	edits := []Edit{
		put(1, func(e *Edit) { e.Context = context }),
		spend(2),
		{Op: Withdraw, Reason: "a\"b"},
		{Op: Invalidate, ContextID: "\x01", Reason: "r"},
	}
	n := needOf(edits)
	base := int64(base64.StdEncoding.EncodedLen(len(edits[0].BEEF)) + base64.StdEncoding.EncodedLen(len(edits[1].BEEF)) + 16 +
		len(`"urn:x:\"1\""`) + len(`"a\"b"`) + len(`"\u0001"`) + len(`"r"`))
	spare := int64(2 * 2 * len(`""`)) // the empty texts of put and spend count two bytes each: nothing is counted short
	if n.observations != 5 || n.bytes < base || n.bytes > base+2*spare {
		t.Fatalf("%+v, want 5 observations and about %d bytes", n, base)
	}
	limit := AdmissionLimit{Service: "s", MaxObservations: 5, EnvelopeBytes: 100, ObservationBytes: 10, MaxBytes: uint32(100 + 5*10 + n.bytes)}
	refuses := func(change func(*AdmissionLimit)) bool {
		l := limit
		change(&l)
		err := n.admit([]AdmissionLimit{l}, 1000)
		return err != nil && err.Code == Limited && strings.Contains(err.Reason, "s delivers at most")
	}
	for name, x := range map[string]struct {
		change func(*AdmissionLimit)
		want   bool
	}{
		"exact fit":           {func(l *AdmissionLimit) {}, false},
		"a byte less":         {func(l *AdmissionLimit) { l.MaxBytes-- }, true},
		"a larger envelope":   {func(l *AdmissionLimit) { l.EnvelopeBytes++ }, true},
		"larger observations": {func(l *AdmissionLimit) { l.ObservationBytes++ }, true},
		"an observation less": {func(l *AdmissionLimit) { l.MaxObservations-- }, true},
		"until later":         {func(l *AdmissionLimit) { l.MaxBytes--; l.Until = 1001 }, true},
		"until now":           {func(l *AdmissionLimit) { l.MaxBytes--; l.Until = 1000 }, false},
	} {
		if got := refuses(x.change); got != x.want {
			t.Errorf("%s: refused %v, want %v", name, got, x.want)
		}
	}
	if err := (need{observations: 1025}).admit(nil, 1); err == nil {
		t.Error("nothing bounds a feed that no service shows")
	}
	if err := (need{observations: 1024, bytes: 1 << 20}).admit(nil, 1); err != nil {
		t.Error(err)
	}
}

// TestL6_WhatCannotBeDeliveredIsRefused at the append, by the smallest maxima in force, under the head lock.
func TestL6_WhatCannotBeDeliveredIsRefused(t *testing.T) {
	t.Parallel()
	db, n, f := startQuietFeed(t)
	other := startStore(t, db).ensure(t, "catalogue")
	now := f.cut(t).Now
	wide := AdmissionLimit{Service: "wide", MaxBytes: 1 << 20, MaxObservations: 100, EnvelopeBytes: 1000, ObservationBytes: 500}
	narrow := AdmissionLimit{Service: "narrow", MaxBytes: 65536, MaxObservations: 3, EnvelopeBytes: 1000, ObservationBytes: 500}
	promised := narrow
	promised.Service, promised.MaxObservations, promised.Until = "promised", 2, now+100

	set := func(list ...AdmissionLimit) {
		t.Helper()
		if err := f.SetLimits(t.Context(), n.pool, list); err != nil {
			t.Fatal(err)
		}
		got, err := other.Limits(t.Context(), n.pool)
		if err != nil || len(got) != len(list) {
			t.Fatalf("%+v, %v; want %+v", got, err, list)
		}
	}
	i := 0
	try := func(want ErrorCode, edits ...Edit) {
		t.Helper()
		for _, f := range []*Feed{f, other} {
			i++
			_, err := f.Append(t.Context(), group(fmt.Sprint(i), edits...))
			if CodeOf(err) != want || (want == 0 && err != nil) {
				t.Errorf("%d edits: %v, want %v", len(edits), err, want)
			}
		}
	}
	three := []Edit{put(1), put(2), put(3)}
	four := append(three, put(4))
	set(wide)
	try(0, four...)
	set(wide, narrow)
	try(Limited, four...)
	try(0, three...)
	try(Limited, spend(1), spend(2))
	try(0, spend(1), withdraw(2))
	try(Limited, put(1, beefOf(strings.Repeat("x", 50_000))))
	set(narrow, promised, wide)
	try(Limited, three...)
	if err := f.Advance(t.Context(), n.pool, now+100); err != nil {
		t.Fatal(err)
	}
	try(0, three...)

	// The same limit twice is one, and the one that binds longer counts.
	promised.Until = now + 200
	later := promised
	later.Until = now + 300
	if err := f.SetLimits(t.Context(), n.pool, []AdmissionLimit{promised, later, promised}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Limits(t.Context(), n.pool); err != nil || len(got) != 1 || got[0] != later {
		t.Errorf("%+v, %v", got, err)
	}
	later.Until = 0
	if err := f.SetLimits(t.Context(), n.pool, []AdmissionLimit{promised, later}); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Limits(t.Context(), n.pool); err != nil || len(got) != 1 || got[0] != later {
		t.Errorf("%+v, %v", got, err)
	}
	set()
	try(0, four...)
	if err := f.SetLimits(t.Context(), n.pool, []AdmissionLimit{{Service: "none"}}); err == nil {
		t.Error("a limit of nothing was taken")
	}
	f.checkStored(t)
}
