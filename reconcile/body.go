package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/reconcile/spend"
)

// body writes canonical JSON. Names are given in their order; observations and
// scopes are canonical already and go in as they are.
type body struct{ b []byte }

func (w *body) raw(s string) *body { w.b = append(w.b, s...); return w }

// name begins a member; the first one of an object has no comma before it.
func (w *body) name(n string) *body {
	if last := w.b[len(w.b)-1]; last != '{' {
		w.b = append(w.b, ',')
	}
	return w.raw(`"`).raw(n).raw(`":`)
}

func (w *body) str(n, s string) *body {
	w.name(n)
	w.b = canon.AppendString(w.b, s)
	return w
}

// u64 writes a number as the wire does, a decimal string.
func (w *body) u64(n string, v uint64) *body {
	return w.name(n).raw(`"`).raw(strconv.FormatUint(v, 10)).raw(`"`)
}

func (w *body) bool(n string, v bool) *body { return w.name(n).raw(strconv.FormatBool(v)) }

func (w *body) hex(n string, v []byte) *body {
	return w.name(n).raw(`"`).raw(hex.EncodeToString(v)).raw(`"`)
}

func (w *body) json(n string, v []byte) *body {
	w.name(n)
	if len(v) == 0 {
		return w.raw("null")
	}
	w.b = append(w.b, v...)
	return w
}

func array[T any](w *body, n string, list []T, each func(*T)) *body {
	w.name(n).raw("[")
	for i := range list {
		if i > 0 {
			w.raw(",")
		}
		each(&list[i])
	}
	return w.raw("]")
}

// digest is the key of a body.
func digest(b []byte) (k Key) {
	d, err := hex.DecodeString(canon.Digest(canon.DomainKnowledgeMutation, b))
	if err != nil || copy(k[:], d) != len(k) {
		panic("a digest is 32 bytes in hex")
	}
	return k
}

// Key covers the batch; see Mutation.
func (m Receive) Key() Key { return digest(m.body()) }

func (m Receive) body() []byte {
	w := &body{}
	b := &m.Batch
	w.raw("{").name("batch").raw("{")
	if c := b.Checkpoint; c != nil {
		session, cursor := sha256.Sum256([]byte(c.Session)), sha256.Sum256([]byte(c.Cursor))
		w.name("checkpoint").raw("{").hex("cursor", cursor[:]).u64("expiresAt", c.ExpiresAt).u64("replayUntil", c.ReplayUntil).
			hex("session", session[:]).raw("}")
	}
	w.name("coverage").raw("{").bool("complete", b.Complete).u64("generation", b.Generation).u64("highWater", b.HighWater).
		str("phase", string(b.Phase)).json("scope", b.Scope).u64("source", uint64(b.Source)).u64("through", b.Through).raw("}")
	array(w, "groups", b.Groups, func(g *Group) {
		w.raw("{").str("id", g.ID)
		array(w, "observations", g.Observations, func(o *Observation) {
			if len(o.Canonical) == 0 {
				w.raw("null")
			}
			w.b = append(w.b, o.Canonical...)
		})
		w.u64("sequence", g.Sequence).raw("}")
	})
	p := &b.Provenance
	w.name("provenance").raw("{").str("adapter", p.Adapter).str("authentication", p.Authentication).str("peer", p.Peer).
		u64("receivedAt", p.ReceivedAt).raw("}")
	return w.raw("}").str("kind", m.kind()).raw("}").b
}

// Key covers the group and its results; see Mutation.
func (m Accept) Key() Key { return digest(m.body()) }

func (m Accept) body() []byte {
	w := &body{}
	w.raw("{").str("contextId", m.Context).u64("generation", m.Generation).str("groupId", m.GroupID).str("kind", m.kind())
	array(w, "results", m.Results, func(r *Result) {
		w.raw("{").str("contextId", r.Context)
		array(w, "dependencies", r.Dependencies, func(o *spend.Outpoint) { w.raw(`"`).raw(o.String()).raw(`"`) })
		w.u64("index", r.Index).str("reason", r.Reason).str("status", string(r.Status)).hex("variantId", r.Variant[:]).raw("}")
	})
	return w.json("scope", m.Scope).u64("source", uint64(m.Source)).raw("}").b
}

// Key covers the context; see Mutation. Going back to a context that was in force
// before is another mutation when Now is.
func (m ContextChange) Key() Key { return digest(m.body()) }

func (m ContextChange) body() []byte {
	w := &body{}
	c := &m.Context
	w.raw("{").name("context").raw("{").str("id", c.ID).u64("now", c.Now).str("policyDigest", c.PolicyDigest)
	w.name("view").raw("{").str("chainPolicyDigest", c.View.PolicyDigest).u64("medianTimePast", c.View.MedianTimePast).
		str("tipHash", c.View.TipHash).u64("tipHeight", c.View.TipHeight).raw("}}")
	return w.str("kind", m.kind()).str("prepared", m.Prepared).raw("}").b
}

// Key covers the request; see Mutation.
func (m Reconcile) Key() Key { return digest(m.body()) }

func (m Reconcile) body() []byte {
	w := &body{}
	return w.raw("{").bool("all", m.All).str("contextId", m.Context).str("kind", m.kind()).str("reason", m.Reason).
		u64("received", m.Received).raw("}").b
}

// Key covers the request; see Mutation.
func (m Invalidate) Key() Key { return digest(m.body()) }

func (m Invalidate) body() []byte {
	w := &body{}
	w.raw("{")
	array(w, "assessmentIds", m.Assessments, func(id *[32]byte) { w.raw(`"`).raw(hex.EncodeToString(id[:])).raw(`"`) })
	return w.str("kind", m.kind()).u64("now", m.Now).str("reason", m.Reason).raw("}").b
}

func (Receive) kind() string       { return "receive" }
func (Accept) kind() string        { return "accept" }
func (ContextChange) kind() string { return "context" }
func (Reconcile) kind() string     { return "reconcile" }
func (Invalidate) kind() string    { return "invalidate" }
