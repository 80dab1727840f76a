package model_test

import (
	"fmt"

	"github.com/overlayd/overlayd/livefeed"
)

// rotating begins a new epoch, or asks again for one that began.
func (d *drive) rotating() error {
	n, at := d.node()
	mode := livefeed.Retire
	if d.chance(3) {
		mode = livefeed.Break
	}
	if len(d.rotations) > 0 && d.chance(3) {
		old := d.rotations[d.n(len(d.rotations))]
		d.say("%s the epoch again on node %d; the first time it was %s", mode, at, old.mode)
		got, err := n.feed.Rotate(d.ctx, old.key, mode, "again")
		if mode != old.mode {
			if livefeed.CodeOf(err) != livefeed.Conflict {
				return fmt.Errorf("it was answered %+v, %v; want conflict", got, err)
			}
			return nil
		}
		want := old.answer
		want.Replayed = true
		if err != nil || got != want {
			return fmt.Errorf("it was answered %+v, %v; want %+v", got, err, want)
		}
		return nil
	}
	d.say("%s the epoch on node %d", mode, at)
	key := newKey()
	got, err := n.feed.Rotate(d.ctx, key, mode, "an operator's reason")
	if err != nil {
		return err
	}
	d.turn++
	if got.Turn != uint64(d.turn) || got.Mode != mode || got.Replayed || d.digests[got.Epoch] != "" {
		return fmt.Errorf("it was answered %+v; want turn %d and a new epoch", got, d.turn)
	}
	if mode == livefeed.Break {
		d.broken = d.turn
	}
	d.rotations = append(d.rotations, rotation{key, mode, got})
	d.epoch = got.Epoch
	other, _ := d.node()
	return d.learnEpoch(other)
}
