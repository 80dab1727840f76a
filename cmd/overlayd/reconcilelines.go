package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/live"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// maxLooked bounds how many pending things one look takes in.
const maxLooked = 1000

// knowledgeLine is one line of output of follow --reconcile.
type knowledgeLine struct {
	Event      string   `json:"event"`
	Source     string   `json:"source,omitempty"`
	Generation uint64   `json:"generation,omitempty"`
	Phase      string   `json:"phase,omitempty"`
	Groups     int      `json:"groups,omitempty"`
	Group      string   `json:"group,omitempty"`
	Sequence   *uint64  `json:"sequence,string,omitempty"`
	HighWater  *uint64  `json:"highWater,string,omitempty"`
	Outpoint   string   `json:"outpoint,omitempty"`
	TxID       string   `json:"txid,omitempty"`
	State      string   `json:"state,omitempty"`
	Was        string   `json:"was,omitempty"`
	By         string   `json:"by,omitempty"`
	Context    string   `json:"context,omitempty"`
	Height     *uint64  `json:"height,string,omitempty"`
	Received   *uint64  `json:"received,string,omitempty"`
	Accepted   *uint64  `json:"accepted,string,omitempty"`
	Sources    []string `json:"sources,omitzero"`
	Code       string   `json:"code,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	Waiting    []string `json:"waiting,omitempty"`
	RetryInMs  *int64   `json:"retryInMs,omitempty"`
}

// lineViewer writes one JSON object a line.
type lineViewer struct {
	out *json.Encoder

	begun   bool
	told    uint64                     // accepted revision of the last change; 0: none yet
	seen    uint64                     // accepted revision of the last look
	phases  map[string]bool            // generations that were said to be live, by source and number
	pending map[spend.Outpoint]bool    // outputs whose last line says pending
	groups  map[pendingGroup]pendingAs // groups whose last line says pending
}

type pendingGroup struct {
	source     reconcile.SourceID
	generation uint64
	id         string
}

type pendingAs struct {
	reason string
	first  spend.Outpoint
}

func newLineViewer(w io.Writer) *lineViewer {
	v := &lineViewer{out: json.NewEncoder(w), phases: map[string]bool{}, pending: map[spend.Outpoint]bool{}, groups: map[pendingGroup]pendingAs{}}
	v.out.SetEscapeHTML(false)
	return v
}

func (v *lineViewer) write(line knowledgeLine) error {
	if err := v.out.Encode(line); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	return nil
}

func (v *lineViewer) event(e live.Event, names sourceNames) error {
	switch e := e.(type) {
	case live.Received:
		if e.Groups == 0 && !e.Complete {
			return nil
		}
		return v.write(knowledgeLine{
			Event: "source", Source: names.origin(e.Source), Generation: e.Generation, Phase: string(e.Phase), Groups: e.Groups,
			Sequence: &e.Through, HighWater: &e.HighWater, Received: &e.Revision.Received,
		})
	case live.Accepted:
		v.told = e.Revision.Accepted
		for i := range e.Outputs {
			if err := v.output(&e.Outputs[i], e.Revision.Accepted, names); err != nil {
				return err
			}
		}
		for i := range e.Transactions {
			tx := &e.Transactions[i]
			if tx.Pending || tx.Status != spend.Conflicting && tx.Status != spend.DependentConflict {
				continue
			}
			line := knowledgeLine{Event: "conflict", TxID: tx.ID.String(), State: tx.Status.String(), Accepted: &e.Revision.Accepted}
			if tx.Reason != spend.NoReason {
				line.Reason = tx.Reason.String()
			}
			if tx.Other != (spend.TxID{}) {
				line.By = tx.Other.String()
			}
			if err := v.write(line); err != nil {
				return err
			}
		}
	case live.SourceReset:
		return v.write(knowledgeLine{Event: "reset", Source: names.origin(e.Source), Generation: e.Generation, Code: string(e.Code), Reason: e.Reason})
	case live.Quarantined:
		return v.write(knowledgeLine{Event: "quarantined", Source: names.origin(e.Source), Generation: e.Generation, Reason: e.Reason})
	case live.SourceStale:
		return v.write(knowledgeLine{Event: "stopped", Source: names.origin(e.Source), Reason: e.Err.Error()})
	case live.Context:
		return v.write(knowledgeLine{Event: "context", Context: e.ID, Height: &e.Height})
	case live.Waiting:
		ms := e.For.Milliseconds()
		line := knowledgeLine{Event: "waiting", Reason: e.Err.Error(), RetryInMs: &ms}
		if e.Source != (live.Origin{}) {
			line.Source = names.origin(e.Source)
		}
		return v.write(line)
	case live.Lagging:
		return v.write(knowledgeLine{Event: "lagging", Reason: e.Err.Error(), Accepted: &e.Accepted})
	}
	return nil
}

func (v *lineViewer) output(o *reconcile.OutputChange, accepted uint64, names sourceNames) error {
	line := knowledgeLine{
		Event: "output", Outpoint: o.Outpoint.String(), State: string(o.State), Was: string(o.Was), Accepted: &accepted, Sources: names.all(o.Sources),
	}
	if spender(o.State, o.By) {
		line.By = o.By.String()
	}
	if o.State == reconcile.Pending {
		v.pending[o.Outpoint] = true
	} else {
		delete(v.pending, o.Outpoint)
	}
	return v.write(line)
}

// spender reports whether by spends, or would spend, an output in that state.
func spender(s reconcile.OutputState, by spend.TxID) bool {
	return by != (spend.TxID{}) && (s == reconcile.Spent || s == reconcile.Pending)
}

// look says what no change says: where the store is at the beginning, which snapshots
// are whole, and what waits.
func (v *lineViewer) look(s reconcile.Snapshot, names sourceNames) error {
	at := s.Revision()
	if !v.begun {
		v.begun = true
		height := s.Context().View.TipHeight
		if err := v.write(knowledgeLine{Event: "store", Received: &at.Received, Accepted: &at.Accepted, Context: s.Context().ID, Height: &height}); err != nil {
			return err
		}
	}
	list, err := s.Sources()
	if err != nil {
		return err
	}
	for _, one := range list {
		k := fmt.Sprintf("%d %d", one.ID, one.Latest.Number)
		if !one.Latest.Received || one.Latest.Ending != nil || v.phases[k] {
			continue
		}
		v.phases[k] = true
		err := v.write(knowledgeLine{Event: "live", Source: names.of(one.ID), Generation: one.Latest.Number, Sequence: &one.Latest.W})
		if err != nil {
			return err
		}
	}
	if err := v.waiting(s, names); err != nil {
		return err
	}
	// Changes up to this snapshot may not have been told yet: then what it says comes
	// too early, and is said at the next look.
	same := v.told == at.Accepted || v.told == 0 && v.seen == at.Accepted
	v.seen = at.Accepted
	if !same {
		return nil
	}
	return v.outputs(s, names)
}

// waiting writes the groups whose evidence was looked at and is not enough.
func (v *lineViewer) waiting(s reconcile.Snapshot, names sourceNames) error {
	now := map[pendingGroup]pendingAs{}
	n := 0
	for g, err := range s.PendingGroups() {
		if err != nil {
			return err
		}
		if n++; n > maxLooked {
			break
		}
		if g.Settled || g.Reason == "" && len(g.Waiting) == 0 { // nobody has looked at it yet
			continue
		}
		k, as := pendingGroup{g.Source, g.Generation, g.ID}, pendingAs{reason: g.Reason}
		if len(g.Waiting) > 0 {
			as.first = g.Waiting[0]
		}
		now[k] = as
		if v.groups[k] == as {
			continue
		}
		line := knowledgeLine{
			Event: "pending", Source: names.of(g.Source), Generation: g.Generation, Group: g.ID, Sequence: &g.Sequence, Reason: g.Reason,
			Waiting: outpoints(g.Waiting),
		}
		if err := v.write(line); err != nil {
			return err
		}
	}
	v.groups = now
	return nil
}

func outpoints(list []spend.Outpoint) (out []string) {
	for _, o := range list {
		out = append(out, o.String())
	}
	return out
}

// outputs writes the outputs that became pending, and those that are so no longer
// without a change that said so.
func (v *lineViewer) outputs(s reconcile.Snapshot, names sourceNames) error {
	accepted := s.Revision().Accepted
	write := func(o reconcile.Output, was reconcile.OutputState) error {
		return v.output(&reconcile.OutputChange{Outpoint: o.Outpoint, State: o.State, Was: was, By: o.By, Sources: o.Sources}, accepted, names)
	}
	now := map[spend.Outpoint]bool{}
	for o, err := range s.Outputs(reconcile.Pending) {
		if err != nil {
			return err
		}
		if len(now) == maxLooked {
			break
		}
		now[o.Outpoint] = true
		if v.pending[o.Outpoint] {
			continue
		}
		if err := write(o, ""); err != nil {
			return err
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(v.pending), spend.Outpoint.Compare) {
		if now[o] {
			continue
		}
		out, err := s.Output(o)
		if err != nil {
			return err
		}
		if out.State == reconcile.Pending {
			continue
		}
		if err := write(out, reconcile.Pending); err != nil {
			return err
		}
	}
	return nil
}
