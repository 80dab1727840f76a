package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/spf13/cobra"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/client/sqlitestate"
)

const followLong = `Follow opens a lookup service, pages its snapshot, then stays with it: every change
is verified against the protocol, recorded in the state directory together with the
position after it, and only then printed. Killed at any point and started again with
the same --state, it goes on where it was; nothing is lost, and nothing is recorded
twice.

A service that knows its callers (brc103) is followed with --identity: every request is
signed with that key, and no answer is believed that the provider's own key has not signed.
stderr names the public key, which is what an operator grants. What one identity is told, and
what everybody is, are kept apart in the state. The provider's key is the one of
--expect-identity, or the first one seen, and never another afterwards.

stdout has one JSON object a line, in order. A line that was recorded but whose page
was not printed to its end when the process died is printed again by the next run, so
a consumer that must count keeps the ids. "sequence" is the provider's, as a string.

  {"event":"resumed","generation":1,"phase":"live","sequence":"41","highWater":"41","expiresAt":"..."}
        this run goes on with what the state holds
  {"event":"opened","generation":1,"sequence":"40","epoch":"...","expiresAt":"..."}
        a snapshot at that sequence begins
  {"event":"output","generation":1,"phase":"snapshot","sequence":"40","id":"...","group":[1,1],
   "outpoint":"txid.0","beefBytes":677,"context":{"schema":"...","bytes":120},"verification":"pending"}
        the provider lists this output; "context" only when there is one
  {"event":"spend",...,"outpoint":"txid.0","spendingTxid":"...","beefBytes":801,"verification":"pending"}
        the provider has a transaction that spends it
  {"event":"withdraw",...,"outpoint":"txid.0","reason":"spent"}
        the provider lists it no longer
  {"event":"invalidated",...,"contextId":"...","reason":"..."}
        assessments made in that context no longer hold
  {"event":"snapshot-complete","generation":1,"sequence":"40"}
        the snapshot is whole; after a reset also "replaces":1 and "gone":2, the number of rows
        that only the replaced generation had
  {"event":"live","generation":1,"sequence":"40","highWater":"41"}
        from here on lines are changes
  {"event":"reset"|"expired"|"context-changed"|"unauthorized"|"equivocation"|"refused"|"closed",
   "generation":1,"reason":"..."}
        the generation is over; its rows stay in the state, stale, until another one is complete
  {"event":"waiting","reason":"...","retryInMs":480}
        a request failed in a way that may pass

"group":[2,3] is the second of three observations of one indivisible change. "pending" means
what it says: evidence is recorded, and not verified. With --reconcile it is.
` + reconcileLong + `
Exit codes: 0 after --until-live, --max-batches or an interrupt; 1 when it cannot go on; 2 usage.`

type followFlags struct {
	state, query, identity, onReset string
	expect                          []string
	untilLive, localDevelopment     bool
	reconcileFlags
	maxBatches int
	retryFor   time.Duration
	limits     client.Limits
}

func newFollowCommand(e *env) *cobra.Command {
	var f followFlags
	c := &cobra.Command{
		Use:   "follow URL SERVICE | --reconcile URL... SERVICE",
		Short: "Follow a service as a verifying client, or several providers at once with --reconcile",
		Long:  followLong,
		Example: "  overlayd follow http://127.0.0.1:8080 ls_catalogue --state ./state\n" +
			`  overlayd follow https://overlay.example.com/api ls_catalogue --query '{"match":{"genre":"jazz"}}' --until-live` + "\n" +
			"  overlayd follow http://127.0.0.1:8080 ls_catalogue_members --identity ./me.key --state ./state\n" +
			"  overlayd follow --reconcile http://127.0.0.1:8080 ls_catalogue --roots .overlayd/roots.ndjson\n" +
			"  overlayd follow --reconcile https://one.example.com https://two.example.com ls_catalogue --headers ./headers.bin --state ./wallet",
		Args: func(c *cobra.Command, args []string) error {
			if f.reconcile {
				return cobra.MinimumNArgs(2)(c, args)
			}
			return cobra.ExactArgs(2)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if f.reconcile {
				last := len(args) - 1
				return followReconcile(c.Context(), e, args[:last], args[last], f)
			}
			if name := reconcileOnly(c); name != "" {
				return usagef("--%s is for follow --reconcile", name)
			}
			return follow(c.Context(), e, args[0], args[1], f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.state, "state", "", "directory of the durable state (default: a temporary one, removed at the end)")
	flags.StringVar(&f.query, "query", "{}", "the query, as JSON")
	flags.StringVar(&f.identity, "identity", "", "`file` with the private key that signs the requests, for a service that knows its callers")
	flags.StringArrayVar(&f.expect, "expect-identity", nil, "the provider's identity `key` (default: the one first seen, kept in the state); with several URLs once for each, in their order")
	flags.StringVar(&f.onReset, "on-reset", "reopen", "after a reset or expiry: reopen (a new generation) or stop")
	flags.BoolVar(&f.untilLive, "until-live", false, "end once everything the provider knows of is recorded")
	flags.IntVar(&f.maxBatches, "max-batches", 0, "end after that many recorded answers (0: never)")
	flags.DurationVar(&f.retryFor, "retry-for", 0, "give up when no good answer came for that long (0: never)")
	flags.Uint32Var(&f.limits.MaxBytes, "max-bytes", 1<<20, "budget of one answer, in bytes")
	flags.Uint32Var(&f.limits.MaxObservations, "max-observations", 256, "budget of one answer, in observations")
	flags.Uint32Var(&f.limits.WaitMs, "wait-ms", 20000, "how long a live read may wait at the provider, in milliseconds")
	flags.BoolVar(&f.localDevelopment, "local-development", false, "allow an http URL of another machine")
	f.register(flags)
	return c
}

func follow(ctx context.Context, e *env, url, service string, f followFlags) (err error) {
	o := client.Options{
		BaseURL: url, Service: service, Query: []byte(f.query),
		UntilLive: f.untilLive, MaxBatches: f.maxBatches, RetryFor: f.retryFor, Limits: f.limits,
		LocalDevelopment: f.localDevelopment, Transport: followTransport(),
	}
	if o.OnReset, err = f.policy(); err != nil {
		return err
	}
	if f.maxBatches < 0 {
		return usagef("--max-batches is %d; use 0 for no end, or a positive number", f.maxBatches)
	}
	if len(f.expect) > 1 {
		return usagef("--expect-identity is there %d times for one URL", len(f.expect))
	}
	o.Identity = strings.Join(f.expect, "")
	if o.Key, err = f.key(e); err != nil {
		return err
	}
	dir := f.state
	if dir == "" {
		if dir, err = os.MkdirTemp("", "overlayd-follow-"); err != nil {
			return fmt.Errorf("make a temporary state: %w", err)
		}
		defer os.RemoveAll(dir)
		fmt.Fprintln(e.stderr, "overlayd: without --state the state is temporary: the next run begins anew")
		o.CloseSession = true
	}
	state, err := sqlitestate.Open(ctx, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	o.State = state
	out := json.NewEncoder(e.stdout)
	out.SetEscapeHTML(false)
	o.On = func(_ context.Context, event client.Event) error {
		for _, line := range followLines(event) {
			if err := out.Encode(line); err != nil {
				return fmt.Errorf("write an event: %w", err)
			}
		}
		return nil
	}
	return followEnd(ctx, client.Follow(ctx, o))
}

// followEnd is what a run ends with: an interrupt is a good end.
func followEnd(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return nil // asked to stop
	case errors.Is(err, client.ErrSigned):
		return fmt.Errorf("%w: name its file with --identity", err)
	case errors.Is(err, client.ErrPublic):
		return fmt.Errorf("%w: leave out --identity", err)
	}
	return err
}

// policy is what --on-reset asks for.
func (f *followFlags) policy() (client.Policy, error) {
	switch f.onReset {
	case "reopen":
		return client.Reopen, nil
	case "stop":
		return client.Stop, nil
	}
	return client.Stop, usagef("--on-reset is %q; use reopen or stop", f.onReset)
}

// key is the key of --identity, which it announces; nil without one.
func (f *followFlags) key(e *env) (*secp256k1.PrivateKey, error) {
	if f.identity == "" {
		return nil, nil
	}
	key, err := signingKey(f.identity)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(e.stderr, "overlayd: requests are signed by %x\n", key.PubKey().SerializeCompressed())
	return key, nil
}

// signingKey reads the private key that signs a follower's requests.
func signingKey(path string) (*secp256k1.PrivateKey, error) {
	text, err := readSecret("--identity", path)
	if err != nil {
		return nil, err
	}
	key, err := parseIdentity(path, text)
	if err != nil {
		return nil, err
	}
	return secp256k1.PrivKeyFromBytes(key.Serialize()), nil
}

// followTransport is a transport that goes through the proxy the environment
// names; the client's own one does not look there.
func followTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// followLine is one line of output. Sequences and times are strings, as on the
// wire: they may exceed what a JSON number holds exactly.
type followLine struct {
	Event        string         `json:"event"`
	Generation   uint64         `json:"generation,omitempty"`
	Phase        string         `json:"phase,omitempty"`
	Sequence     *uint64        `json:"sequence,string,omitempty"`
	HighWater    *uint64        `json:"highWater,string,omitempty"`
	Epoch        string         `json:"epoch,omitempty"`
	ExpiresAt    uint64         `json:"expiresAt,string,omitempty"`
	ID           string         `json:"id,omitempty"`
	Group        *[2]int        `json:"group,omitempty"`
	Outpoint     string         `json:"outpoint,omitempty"`
	SpendingTxID string         `json:"spendingTxid,omitempty"`
	BEEFBytes    int            `json:"beefBytes,omitempty"`
	Context      *followContext `json:"context,omitempty"`
	ContextID    string         `json:"contextId,omitempty"`
	Reason       string         `json:"reason,omitempty"`
	Verification string         `json:"verification,omitempty"`
	Replaces     uint64         `json:"replaces,omitempty"`
	Gone         *uint64        `json:"gone,omitempty"`
	RetryInMs    *int64         `json:"retryInMs,omitempty"`
}

type followContext struct {
	Schema string `json:"schema"`
	Bytes  int    `json:"bytes"`
}

// followLines are the lines of an event: one for each observation of a group.
func followLines(event client.Event) []followLine {
	switch ev := event.(type) {
	case client.Resumed:
		return []followLine{{Event: "resumed", Generation: ev.Generation, Phase: string(ev.Phase),
			Sequence: &ev.Through, HighWater: &ev.HighWater, ExpiresAt: ev.ExpiresAt}}
	case client.Opened:
		return []followLine{{Event: "opened", Generation: ev.Generation, Sequence: &ev.W, Epoch: ev.Epoch, ExpiresAt: ev.ExpiresAt}}
	case client.Group:
		return followGroup(ev)
	case client.SnapshotComplete:
		line := followLine{Event: "snapshot-complete", Generation: ev.Generation, Sequence: &ev.W}
		if ev.Replaces != 0 {
			line.Replaces, line.Gone = ev.Replaces, &ev.Unseen
		}
		return []followLine{line}
	case client.Live:
		return []followLine{{Event: "live", Generation: ev.Generation, Sequence: &ev.Through, HighWater: &ev.HighWater}}
	case client.Ended:
		return []followLine{{Event: followEnding(ev.Code), Generation: ev.Generation, Reason: ev.Reason}}
	case client.Waiting:
		ms := ev.For.Milliseconds()
		return []followLine{{Event: "waiting", Reason: ev.Err.Error(), RetryInMs: &ms}}
	}
	return nil
}

func followGroup(g client.Group) []followLine {
	lines := make([]followLine, len(g.Observations))
	for i := range g.Observations {
		o, line := &g.Observations[i], &lines[i]
		*line = followLine{Generation: g.Generation, Phase: "live", Sequence: &g.Sequence, ID: o.ID, Group: &[2]int{i + 1, len(lines)}}
		if g.Snapshot {
			line.Phase = "snapshot"
		}
		switch {
		case o.Output != nil:
			evidence := &o.Output.Evidence
			line.Event, line.Outpoint = "output", followOutpoint(evidence.TxID, evidence.OutputIndex)
			line.BEEFBytes, line.Verification = len(evidence.BEEF), "pending"
			if c := o.Output.Context; c != nil {
				line.Context = &followContext{Schema: c.Schema, Bytes: len(c.Bytes)}
			}
		case o.Spend != nil:
			line.Event, line.Outpoint = "spend", followOutpoint(o.Spend.Previous.TxID, o.Spend.Previous.OutputIndex)
			line.SpendingTxID, line.BEEFBytes, line.Verification = o.Spend.SpendingTxID, len(o.Spend.BEEF), "pending"
		case o.Withdraw != nil:
			line.Event, line.Outpoint = "withdraw", followOutpoint(o.Withdraw.Outpoint.TxID, o.Withdraw.Outpoint.OutputIndex)
			line.Reason = o.Withdraw.Reason
		case o.Invalidated != nil:
			line.Event, line.ContextID, line.Reason = "invalidated", o.Invalidated.ContextID, o.Invalidated.Reason
		}
	}
	return lines
}

func followOutpoint(txid string, index uint32) string { return fmt.Sprintf("%s.%d", txid, index) }

func followEnding(c client.Code) string {
	switch c {
	case client.CodeResetRequired:
		return "reset"
	case client.CodeCancelled:
		return "closed"
	case client.CodeExpired, client.CodeContextChanged, client.CodeUnauthorized, client.CodeEquivocation:
		return string(c)
	}
	return "refused"
}
