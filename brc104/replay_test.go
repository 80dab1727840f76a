package brc104

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func useOf(n uint64, issued time.Time) Use {
	u := Use{Issued: issued, Expires: issued.Add(time.Hour)}
	binary.BigEndian.PutUint64(u.Key[:], n)
	return u
}

func verdict(t testing.TB, g *MemoryGuard, u Use) Verdict {
	t.Helper()
	v, err := g.Use(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestB5_ARequestPassesOnce(t *testing.T) {
	t.Parallel()
	g := NewMemoryGuard(1000, time.Time{})
	now := time.Now()
	for i := range uint64(400) {
		if v := verdict(t, g, useOf(i, now)); v != Fresh {
			t.Fatalf("request %d: %v", i, v)
		}
	}
	for i := range uint64(400) {
		if v := verdict(t, g, useOf(i, now)); v != Replayed {
			t.Fatalf("request %d again: %v", i, v)
		}
	}
}

func TestB5_OfManyAtOnceOnePasses(t *testing.T) {
	t.Parallel()
	g := NewMemoryGuard(0, time.Time{})
	now := time.Now()
	var fresh atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := range uint64(200) {
				if v, err := g.Use(t.Context(), useOf(i, now)); err == nil && v == Fresh {
					fresh.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := fresh.Load(); n != 200 {
		t.Errorf("%d of 200 requests passed", n)
	}
}

// A guard that has forgotten something lets nothing of those sessions through again, and goes on with newer ones.
func TestB5_AFullGuardEndsSessions(t *testing.T) {
	t.Parallel()
	start := time.Now()
	clock := start
	g := newMemoryGuard(20, time.Time{}, func() time.Time { return clock })
	var used []Use
	for i := range uint64(200) {
		clock = start.Add(time.Duration(i) * time.Second)
		u := useOf(i, clock)
		if v := verdict(t, g, u); v != Fresh {
			t.Fatalf("request %d of a new session: %v", i, v)
		}
		used = append(used, u)
		for _, old := range used {
			if v := verdict(t, g, old); v == Fresh {
				t.Fatalf("after %d requests, that of %v passed again", i, old.Issued.Sub(start))
			}
		}
	}
	if v := verdict(t, g, useOf(1000, start)); v != Forgot {
		t.Errorf("a session older than the memory: %v", v)
	}
	if n := len(g.seen.newer) + len(g.seen.older); n > 20 {
		t.Errorf("%d requests remembered, room for 20", n)
	}
}

// What is forgotten because its session has expired ends no other session.
func TestB5_ExpiredSessionsAreForgottenInSilence(t *testing.T) {
	t.Parallel()
	start := time.Now()
	clock := start
	g := newMemoryGuard(20, time.Time{}, func() time.Time { return clock })
	for i := range uint64(10) {
		verdict(t, g, useOf(i, start))
	}
	clock = start.Add(2 * time.Hour)
	old := useOf(999, start.Add(30*time.Minute)) // lives on: it was begun before anything that is now forgotten expired
	old.Expires = clock.Add(time.Hour)
	for i := uint64(10); i < 25; i++ {
		if v := verdict(t, g, useOf(i, clock)); v != Fresh {
			t.Fatalf("request %d: %v", i, v)
		}
	}
	if v := verdict(t, g, old); v != Fresh {
		t.Errorf("a session that nothing was forgotten of: %v", v)
	}
}

func TestB5_AGuardThatBeginsWithTheProcess(t *testing.T) {
	t.Parallel()
	start := time.Now()
	g := NewMemoryGuard(0, start)
	if v := verdict(t, g, useOf(1, start)); v != Forgot {
		t.Errorf("a session of before: %v", v)
	}
	if v := verdict(t, g, useOf(1, start.Add(time.Millisecond))); v != Fresh {
		t.Errorf("a session begun since: %v", v)
	}
}

// The default memory stays below what its comment says.
func TestB5_MemoryOfAFullGuard(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector changes sizes: measured without it only")
		return
	}
	before := heap()
	g := NewMemoryGuard(0, time.Time{})
	now := time.Now()
	for i := range uint64(2 * DefaultReplays) {
		verdict(t, g, useOf(i*0x9e3779b97f4a7c15, now.Add(time.Duration(i))))
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d bytes for %d requests", grown, DefaultReplays)
	} else {
		t.Logf("%d bytes for up to %d requests", grown, DefaultReplays)
	}
	runtime.KeepAlive(g)
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
