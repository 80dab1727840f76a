package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/overlayd/overlayd/internal/beef"
	"github.com/overlayd/overlayd/reconcile"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// Config configures a [Verifier]. Zero fields mean their defaults.
type Config struct {
	// Workers is how many jobs a [Pool] runs at once. Zero means GOMAXPROCS.
	Workers int
	// JobTimeout is how long one candidate may take; it is looked at between
	// inputs. Beyond it the candidate is limited. Zero means 30 s.
	JobTimeout time.Duration
	// Cache is how many transactions' results are remembered. Zero means 65536,
	// negative none.
	Cache int
	// Dependencies is how many outpoints a result lists. Zero means 1024.
	Dependencies int
	// Log takes what sources must not see. Zero: slog.Default.
	Log *slog.Logger
}

// Verifier checks candidates. It is safe for concurrent use.
type Verifier struct {
	c     Config
	cache *lru
}

// New makes a Verifier.
func New(c Config) *Verifier {
	if c.Workers <= 0 {
		c.Workers = runtime.GOMAXPROCS(0)
	}
	if c.JobTimeout <= 0 {
		c.JobTimeout = 30 * time.Second
	}
	if c.Cache == 0 {
		c.Cache = 65536
	}
	if c.Dependencies <= 0 {
		c.Dependencies = 1024
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Verifier{c: c, cache: newLRU(c.Cache)}
}

// errTimeout is the cause of a job's own deadline.
var errTimeout = errors.New("the job has taken its time")

// Check verifies one candidate on the caller's goroutine. A result of cancelled
// means that ctx ended first: it says nothing and is not to be recorded.
func (v *Verifier) Check(ctx context.Context, e reconcile.Evidence) reconcile.Result {
	ctx, stop := context.WithTimeoutCause(ctx, v.c.JobTimeout, errTimeout)
	defer stop()
	c := &check{v: v, e: &e, valid: map[spend.TxID]bool{}, anchored: map[spend.TxID]bool{}, prepared: make([]*beef.Prepared, len(e.Txs))}
	status, reason := c.run(ctx)
	r := reconcile.Result{
		Source: e.Job.Source, Generation: e.Job.Generation, Group: e.Job.Group, Index: e.Job.Index, Variant: e.Job.Variant, Context: e.Job.Context,
		Status: status, Reason: reason, Facts: c.facts, Dependencies: c.dependencies,
	}
	if len(r.Dependencies) > v.c.Dependencies {
		r.Dependencies = r.Dependencies[:v.c.Dependencies]
	}
	return r
}

// check is one candidate under way.
type check struct {
	v            *Verifier
	e            *reconcile.Evidence
	valid        map[spend.TxID]bool // what is decided: from before, or on the way
	anchored     map[spend.TxID]bool
	prepared     []*beef.Prepared // of e.Txs, when it was needed
	facts        []reconcile.Fact
	dependencies []spend.Outpoint
}

// run gives the outcome.
func (c *check) run(ctx context.Context) (status reconcile.ResultStatus, reason string) {
	e := c.e
	if e.Fault.Status != "" {
		return e.Fault.Status, e.Fault.Reason
	}
	for _, f := range e.Decided {
		c.valid[f.TxID] = f.Valid
	}
	target := -1
	for i := range e.Txs {
		if e.Txs[i].ID == e.Job.Target {
			target = i
		}
		c.anchored[e.Txs[i].ID] = e.Txs[i].Anchored
	}
	if target < 0 {
		return reconcile.Unresolved, fmt.Sprintf("the raw bytes of %s are not known", e.Job.Target)
	}
	if status, reason := c.named(target); status != "" {
		return status, reason
	}
	// Parents come first. What stands behind the target is not its ancestor: the
	// store wants to know of it too, and it says nothing about the candidate.
	last := target == len(e.Txs)-1
	if last {
		if valid, decided := c.valid[e.Job.Target]; e.Txs[target].Anchored || decided && valid {
			return reconcile.Verified, ""
		}
		if len(e.Missing) > 0 {
			c.dependencies = e.Missing
			return reconcile.Unresolved, fmt.Sprintf("missing %s", e.Missing[0])
		}
	}
	for i := range e.Txs {
		s, r := c.decide(ctx, i)
		if s != "" && (last || s == reconcile.Cancelled || s == reconcile.Limited) {
			return s, r
		}
		if i == target {
			status, reason = s, r
		}
	}
	if status != "" {
		return status, reason
	}
	return reconcile.Verified, ""
}

// prepare reads a transaction once.
func (c *check) prepare(i int) (*beef.Prepared, error) {
	if c.prepared[i] == nil {
		p, err := beef.Prepare(c.e.Txs[i].Raw)
		if err != nil {
			return nil, err
		}
		if p.TxID != c.e.Txs[i].ID {
			return nil, fmt.Errorf("the raw bytes of %s are those of %x", c.e.Txs[i].ID, p.TxID)
		}
		c.prepared[i] = p
	}
	return c.prepared[i], nil
}

// named holds the target against what the observation says of it. What it says
// wrongly is its own fault, not the transaction's.
func (c *check) named(target int) (status reconcile.ResultStatus, reason string) {
	p, err := c.prepare(target)
	if err != nil {
		return c.damaged(err)
	}
	for _, in := range p.Inputs {
		c.dependencies = append(c.dependencies, spend.Outpoint{TxID: in.Prev, Index: in.Index})
	}
	want := c.e.Want
	if want.Output != nil && uint64(*want.Output) >= uint64(len(p.Outputs)) {
		return reconcile.Invalid, fmt.Sprintf("output %d, but transaction %x has %d", *want.Output, p.TxID, len(p.Outputs))
	}
	if want.Previous != nil {
		for _, o := range c.dependencies {
			if o == *want.Previous {
				return "", ""
			}
		}
		return reconcile.Invalid, fmt.Sprintf("transaction %x does not spend %s", p.TxID, *want.Previous)
	}
	return "", ""
}

// damaged is evidence whose bytes are not those that were received.
func (c *check) damaged(err error) (reconcile.ResultStatus, string) {
	c.v.c.Log.Error("a transaction of the store cannot be read", "target", c.e.Job.Target.String(), "error", err)
	return reconcile.Unresolved, "a transaction of the store cannot be read"
}

// decide runs the i-th transaction, unless it needs no running. An empty status
// means that it stands.
func (c *check) decide(ctx context.Context, i int) (status reconcile.ResultStatus, reason string) {
	tx := &c.e.Txs[i]
	if tx.Anchored {
		return "", ""
	}
	if valid, decided := c.valid[tx.ID]; decided {
		if !valid {
			return reconcile.Invalid, fmt.Sprintf("transaction %s is invalid", tx.ID)
		}
		return "", ""
	}
	if err := ctx.Err(); err != nil {
		return c.ended(ctx)
	}
	valid, why, cached := c.v.cache.get(tx.ID)
	if !cached {
		p, err := c.prepare(i)
		if err != nil {
			return c.damaged(err)
		}
		if status, reason := c.complete(tx, p); status != "" {
			return status, reason
		}
		switch err := judge(ctx, p, tx.Parents); {
		case err == nil:
			valid = true
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
			return c.ended(ctx)
		case errors.Is(err, beef.ErrLimit):
			return reconcile.Limited, reasonOf(err)
		default:
			why = reasonOf(err)
		}
		c.v.cache.put(tx.ID, valid, why)
	}
	c.valid[tx.ID] = valid
	c.facts = append(c.facts, reconcile.Fact{TxID: tx.ID, Valid: valid})
	if !valid {
		return reconcile.Invalid, why
	}
	return "", ""
}

// ended says why a context ended.
func (c *check) ended(ctx context.Context) (reconcile.ResultStatus, string) {
	if errors.Is(context.Cause(ctx), errTimeout) {
		return reconcile.Limited, fmt.Sprintf("over the bound JobTimeout of %s", c.v.c.JobTimeout)
	}
	return reconcile.Cancelled, "cancelled"
}

// complete says whether every parent's output is known, and no parent is invalid.
func (c *check) complete(tx *reconcile.Prepared, p *beef.Prepared) (status reconcile.ResultStatus, reason string) {
	if p.Coinbase {
		c.dependencies = nil
		return reconcile.Unresolved, fmt.Sprintf("coinbase %s stands in no block of the chain", tx.ID)
	}
	var missing []spend.Outpoint
	for n, in := range p.Inputs {
		if valid, decided := c.valid[in.Prev]; decided && !valid && !c.anchored[in.Prev] {
			return reconcile.Invalid, fmt.Sprintf("ancestor %x is invalid", in.Prev)
		}
		if n >= len(tx.Parents) || !tx.Parents[n].Known {
			missing = append(missing, spend.Outpoint{TxID: in.Prev, Index: in.Index})
		}
	}
	if len(missing) == 0 {
		return "", ""
	}
	c.dependencies = missing
	return reconcile.Unresolved, fmt.Sprintf("missing %s", missing[0])
}

// fail is what is wrong with a transaction itself.
type fail string

func (f fail) Error() string { return string(f) }

// judge runs one transaction against the outputs it spends: the cheap rules
// first, then its scripts. An error of ctx says nothing about it.
func judge(ctx context.Context, p *beef.Prepared, parents []reconcile.Coin) error {
	if len(p.Inputs) == 0 {
		return fail(fmt.Sprintf("transaction %x spends nothing", p.TxID))
	}
	seen := make(map[spend.Outpoint]bool, len(p.Inputs))
	var in, out uint64
	for n, i := range p.Inputs {
		o := spend.Outpoint{TxID: i.Prev, Index: i.Index}
		if seen[o] {
			return fail(fmt.Sprintf("transaction %x spends %s twice", p.TxID, o))
		}
		seen[o] = true
		if parents[n].Satoshis > math.MaxUint64-in {
			return fail(fmt.Sprintf("the values that %x spends overflow", p.TxID))
		}
		in += parents[n].Satoshis
	}
	for _, o := range p.Outputs {
		if o.Satoshis > math.MaxUint64-out {
			return fail(fmt.Sprintf("the values of %x overflow", p.TxID))
		}
		out += o.Satoshis
	}
	if out > in {
		return fail(fmt.Sprintf("transaction %x spends %d satoshis and has %d", p.TxID, in, out))
	}
	for n := range p.Inputs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.Execute(n, parents[n].Script, parents[n].Satoshis); err != nil {
			return err
		}
	}
	return nil
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*beef.Error](err); ok {
		return e.Reason
	}
	return err.Error()
}
