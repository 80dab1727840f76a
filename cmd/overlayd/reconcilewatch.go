package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
)

// How often the store is looked at: soon after something happened, and sometimes
// because results of checks say nothing by themselves.
const (
	lookEvery = 200 * time.Millisecond
	lookIdle  = time.Second
)

// viewer shows what a run does: as lines or as a table. One call at a time.
type viewer interface {
	// event takes what the run tells. names has every source of it.
	event(e live.Event, names sourceNames) error
	// look takes the state of the store.
	look(s reconcile.Snapshot, names sourceNames) error
}

// sourceNames are the sources as people know them.
type sourceNames struct {
	service string // of this run
	names   map[reconcile.SourceID]string
}

// of names a source: by its URL, and by its service too when that is not the run's.
func (n sourceNames) of(id reconcile.SourceID) string { return n.names[id] }

func (n sourceNames) all(ids []reconcile.SourceID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = n.of(id)
	}
	return out
}

func (n sourceNames) origin(o live.Origin) string { return n.key(o.Key) }

func (n sourceNames) key(k reconcile.SourceKey) string {
	if k.Service != n.service {
		return k.Base + " " + k.Service
	}
	return k.Base
}

// watcher feeds a viewer with events and looks.
type watcher struct {
	store reconcile.Store
	to    viewer

	mu    sync.Mutex
	names sourceNames
	news  bool // something happened since the last look
}

func newWatcher(store reconcile.Store, service string, to viewer) *watcher {
	return &watcher{store: store, to: to, names: sourceNames{service: service, names: map[reconcile.SourceID]string{}}}
}

// on is the run's On.
func (w *watcher) on(ctx context.Context, e live.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = true
	if a, ok := e.(live.Accepted); ok && !w.knows(a) {
		s, err := w.store.Read(ctx, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(w.learn(s), s.Close()); err != nil {
			return err
		}
	}
	return w.to.event(e, w.names)
}

// knows reports whether every source of a change has its name.
func (w *watcher) knows(a live.Accepted) bool {
	for i := range a.Outputs {
		for _, id := range a.Outputs[i].Sources {
			if _, ok := w.names.names[id]; !ok {
				return false
			}
		}
	}
	return true
}

func (w *watcher) learn(s reconcile.Snapshot) error {
	list, err := s.Sources()
	for _, one := range list {
		w.names.names[one.ID] = w.names.key(one.Key)
	}
	return err
}

// run looks until ctx ends.
func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		w.mu.Lock()
		due := w.news || time.Since(last) >= lookIdle
		w.mu.Unlock()
		if !due {
			continue
		}
		last = time.Now()
		if err := w.look(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

func (w *watcher) look(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.news = false
	s, err := w.store.Read(ctx, 0)
	if err != nil {
		return err
	}
	err = w.learn(s)
	if err == nil {
		err = w.to.look(s, w.names)
	}
	return errors.Join(err, s.Close())
}
