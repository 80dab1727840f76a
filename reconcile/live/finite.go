package live

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Finite is a source that answers a question and promises nothing about what comes
// after: each answer is a generation of its own, whole, at sequence 0. What an
// answer leaves out is not listed any more; that says nothing of a spend.
type Finite struct {
	// BaseURL, Service and Query say what is asked of whom; with Label they are the
	// source. All may be empty but one of Label and BaseURL.
	BaseURL string
	Service string
	Query   []byte
	Label   string
	// Every is the time between an answer and the next question. 0 means a minute.
	Every time.Duration
	// Fetch asks once. Its errors may pass: it is asked again, later and later.
	Fetch func(ctx context.Context) ([]Listed, error)
}

// Listed is one output of an answer.
type Listed struct {
	TxID        spend.TxID
	OutputIndex uint32
	BEEF        []byte
}

// codeRefreshed is what the generation before a new answer ends with.
const codeRefreshed = "refreshed"

func (f *Finite) key() reconcile.SourceKey {
	k := reconcile.SourceKey{Kind: kindFinite, Base: f.BaseURL, Service: f.Service, Label: f.Label}
	if len(f.Query) > 0 {
		sum := sha256.Sum256(f.Query)
		k.QueryDigest = hex.EncodeToString(sum[:])
	}
	return k
}

// scope is what every answer is within: local words, no peer's.
func (f *Finite) scope() []byte {
	k := f.key()
	return canon.Obj(
		canon.Member{Name: "adapter", Value: canon.Str(kindFinite)},
		canon.Member{Name: "base", Value: canon.Str(k.Base)},
		canon.Member{Name: "label", Value: canon.Str(k.Label)},
		canon.Member{Name: "queryDigest", Value: canon.Str(k.QueryDigest)},
		canon.Member{Name: "service", Value: canon.Str(k.Service)},
	).AppendCanonical(nil)
}

// refresh asks until it is told to end; one question at a time, one generation at a
// time.
func (s *source) refresh(ctx context.Context) error {
	f, r := s.finite, s.runner
	if err := s.enter(ctx, f.key()); err != nil {
		return err
	}
	var failures backoff
	for asked := time.Now(); ; {
		listed, err := f.Fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			d := failures.next(max(f.Every, time.Second))
			if limit := r.config.RetryFor; limit > 0 && time.Since(asked)+d > limit {
				return &client.GaveUpError{Err: err}
			}
			if err := r.tell(ctx, Waiting{Source: s.origin(), Err: err, For: d}); err != nil {
				return err
			}
			if err := sleep(ctx, d); err != nil {
				return err
			}
			continue
		}
		failures.reset()
		if err := s.capture(ctx, listed); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if r.config.UntilLive {
			return nil
		}
		if err := sleep(ctx, f.Every); err != nil {
			return err
		}
		asked = time.Now()
	}
}

// capture records one answer as the next generation.
func (s *source) capture(ctx context.Context, listed []Listed) error {
	r, id := s.runner, s.origin().ID
	whole := context.WithoutCancel(ctx)
	g, err := r.store.Generation(whole, id)
	if err != nil {
		return failed(err)
	}
	number := g.Number
	if g.Number == 0 || g.Ending != nil || g.Received {
		if g.Number != 0 && g.Ending == nil {
			err := r.store.End(whole, reconcile.Ending{
				Source: id, Generation: g.Number, Code: codeRefreshed, Reason: "another answer takes its place", At: uint64(time.Now().Unix()),
			}, reconcile.Attach{})
			if err != nil {
				return failed(err)
			}
		}
		if number, err = r.store.Begin(whole, id, reconcile.Attach{}); err != nil {
			return failed(err)
		}
	}
	f := s.finite
	batch := reconcile.Batch{
		Source: id, Generation: number, Scope: f.scope(), Phase: reconcile.PhaseFinite, Complete: true,
		Groups: []reconcile.Group{answer(number, listed)},
		Provenance: reconcile.Provenance{
			Adapter: kindFinite, Authentication: "configured-transport", Peer: cmp.Or(f.BaseURL, f.Label), ReceivedAt: uint64(time.Now().Unix()),
		},
	}
	done, err := r.receive(ctx, s, batch, reconcile.Attach{})
	if err != nil {
		return err
	}
	if !done.Took() {
		return fmt.Errorf("the answer was refused (%s): %s", done.Status, done.Reason)
	}
	err = r.tell(ctx, Received{
		Source: s.origin(), Generation: number, Phase: reconcile.PhaseFinite, Complete: true, Groups: 1, Revision: done.Revision,
	})
	if err != nil {
		return err
	}
	if g, err = r.store.Generation(ctx, id); err != nil {
		return failed(err)
	}
	if g.Number != number || g.Ending != nil {
		return errOver
	}
	return nil
}

// answer is an answer as one group. An output that is there twice counts once.
func answer(generation uint64, listed []Listed) reconcile.Group {
	g := reconcile.Group{ID: fmt.Sprintf("answer-%d", generation)}
	seen := map[spend.Outpoint]bool{}
	for _, l := range listed {
		at := spend.Outpoint{TxID: l.TxID, Index: l.OutputIndex}
		if seen[at] {
			continue
		}
		seen[at] = true
		id := fmt.Sprintf("answer-%d-%s", generation, at)
		g.Observations = append(g.Observations, reconcile.Observation{
			ID: id, Kind: wire.KindOutput, Outpoint: at, Effect: reconcile.Present, Target: l.TxID,
			BEEF: l.BEEF, Variant: sha256.Sum256(l.BEEF),
			Canonical: canon.Obj(
				canon.Member{Name: "id", Value: canon.Str(id)},
				canon.Member{Name: "kind", Value: canon.Str(wire.KindOutput)},
				canon.Member{Name: "payload", Value: canon.Obj(canon.Member{Name: "evidence", Value: canon.Obj(
					canon.Member{Name: "beef", Value: canon.Str(base64.StdEncoding.EncodeToString(l.BEEF))},
					canon.Member{Name: "outputIndex", Value: canon.Num(int64(l.OutputIndex))},
					canon.Member{Name: "txid", Value: canon.Str(l.TxID.String())},
				)})},
			).AppendCanonical(nil),
		})
	}
	return g
}
