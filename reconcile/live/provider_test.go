package live_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/reconcile/spend"
	"github.com/overlayd/overlayd/reconcile/verify/verifytest"
)

const service = "ls_test"

// provider speaks the protocol from memory. It believes whatever a test has it say;
// hooks bend single answers.
type provider struct {
	t    testing.TB
	key  *ec.PrivateKey
	base string

	mu       sync.Mutex
	packet   []byte
	caps     *wire.Capabilities
	chain    wire.Chain
	epoch    string
	life     uint64 // of a session, seconds
	rows     []wire.Output
	log      []logged
	head     uint64
	sessions map[string]*session // by request id
	wake     chan struct{}
	requests map[string]int // by endpoint
	inFlight int
	most     int // greatest inFlight

	// Hooks, set before a run; n counts from 1 for each endpoint.
	before func(ctx context.Context, endpoint string, n int, body []byte)
	bend   func(endpoint string, n int, b *wire.Batch)
}

type logged struct {
	sequence     uint64
	id           string
	observations []wire.Observation // without scope; without id one is made
}

type session struct {
	id      string
	body    []byte
	first   []byte
	scope   wire.Scope
	rows    []wire.Output
	w       uint64
	expires uint64
	digest  string
	ended   wire.Code
}

// newProvider makes one at a base URL that only its own transport reaches.
func newProvider(t testing.TB, name string) *provider {
	t.Helper()
	key, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{
		t: t, key: key, base: "https://" + name + ".test", epoch: "epoch-1", life: 3600,
		chain:    wire.Chain{Network: "test", GenesisHash: strings.Repeat("0a", 32)},
		sessions: map[string]*session{}, wake: make(chan struct{}), requests: map[string]int{},
	}
	p.issue()
	return p
}

// serve puts the provider behind a real listener.
func (p *provider) serve() string {
	server := httptest.NewUnstartedServer(p)
	p.base = "http://" + server.Listener.Addr().String()
	p.issue()
	server.Start()
	p.t.Cleanup(server.Close)
	return p.base
}

func (p *provider) issue() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := uint64(time.Now().Unix())
	rules := canon.Obj(canon.Member{Name: "attributes", Value: canon.Arr(canon.Str("artist"))})
	p.caps = &wire.Capabilities{
		Identity: hex.EncodeToString(p.key.PubKey().Compressed()), BaseURL: p.base, Chain: p.chain, IssuedAt: now, ExpiresAt: now + 30*86400,
		Services: []wire.ServiceEntry{{
			Name: service, Kind: wire.KindLookup, RulesID: "urn:test:rules:1", RulesParameters: rules, RulesDigest: wire.RulesDigest("urn:test:rules:1", rules),
			Profiles: []wire.ProfileEntry{{
				ID: wire.Profile, Authentication: wire.AuthenticationNone, Payment: wire.PaymentNone,
				MaxRequestBytes: wire.MaxRequestBytes, MaxResponseBytes: wire.MaxLimits().MaxBytes,
				Parameters: wire.LookupParameters{ReplaySeconds: 600, SessionSeconds: p.life, MaxObservations: wire.MaxLimits().MaxObservations, MaxWaitMs: wire.MaxLimits().WaitMs}.Value(),
			}},
		}},
		Extensions: []canon.Member{wire.EpochMember(map[string]string{service: p.epoch})},
	}
	packet, err := wire.SignPacket(canon.DomainCapabilities, p.caps.Value(), p.key)
	if err != nil {
		p.t.Error(err)
	}
	p.packet = packet
}

// row is an output with its evidence.
func row(c *verifytest.Chain, tx *verifytest.Tx, index uint32, e verifytest.Evidence) wire.Output {
	return wire.Output{Evidence: wire.Evidence{TxID: tx.ID.String(), OutputIndex: index, BEEF: c.BEEF(tx, e)}}
}

func (p *provider) outpoint(o spend.Outpoint) wire.Outpoint {
	return wire.Outpoint{Chain: p.chain, TxID: o.TxID.String(), OutputIndex: o.Index}
}

// said makes observations.
func lists(o wire.Output) wire.Observation {
	return wire.Observation{Kind: wire.KindOutput, Output: &o}
}

func (p *provider) withdraws(o spend.Outpoint, reason string) wire.Observation {
	return wire.Observation{Kind: wire.KindWithdraw, Withdraw: &wire.Withdraw{Outpoint: p.outpoint(o), Reason: reason}}
}

func (p *provider) spends(o spend.Outpoint, by *verifytest.Tx, beef []byte) wire.Observation {
	return wire.Observation{Kind: wire.KindSpend, Spend: &wire.Spend{Previous: p.outpoint(o), SpendingTxID: by.ID.String(), BEEF: beef}}
}

// seed lists rows as if they had always been there.
func (p *provider) seed(rows ...wire.Output) *provider {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range rows {
		p.rows = append(p.rows, o)
		p.head++
	}
	return p
}

// say appends one group and keeps the list of rows.
func (p *provider) say(observations ...wire.Observation) {
	p.sayAs("", observations...)
}

func (p *provider) sayAs(id string, observations ...wire.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.head++
	p.log = append(p.log, logged{sequence: p.head, id: id, observations: observations})
	for _, o := range observations {
		switch {
		case o.Output != nil:
			p.remove(o.Output.Evidence.TxID, o.Output.Evidence.OutputIndex)
			p.rows = append(p.rows, *o.Output)
		case o.Withdraw != nil:
			p.remove(o.Withdraw.Outpoint.TxID, o.Withdraw.Outpoint.OutputIndex)
		}
	}
	p.bell()
}

func (p *provider) remove(txid string, index uint32) {
	p.rows = slices.DeleteFunc(slices.Clone(p.rows), func(o wire.Output) bool {
		return o.Evidence.TxID == txid && o.Evidence.OutputIndex == index
	})
}

func (p *provider) bell() {
	close(p.wake)
	p.wake = make(chan struct{})
}

// edit changes the provider without a log.
func (p *provider) edit(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.bell()
}

// endAll makes every open session answer with a code from now on.
func (p *provider) endAll(code wire.Code) {
	p.edit(func() {
		for _, s := range p.sessions {
			s.ended = code
		}
	})
}

// truth is what the provider lists.
func (p *provider) truth() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, o := range p.rows {
		out = append(out, fmt.Sprintf("%s.%d", o.Evidence.TxID, o.Evidence.OutputIndex))
	}
	slices.Sort(out)
	return out
}

func (p *provider) seen(endpoint string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[endpoint]
}

func (p *provider) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions)
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	endpoint := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	p.mu.Lock()
	p.requests[endpoint]++
	n := p.requests[endpoint]
	p.inFlight++
	p.most = max(p.most, p.inFlight)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.inFlight--
		p.mu.Unlock()
	}()
	if p.before != nil {
		p.before(r.Context(), endpoint, n, body)
	}
	if endpoint != "capabilities" {
		w.Header()[http.CanonicalHeaderKey(wire.HeaderCapability)] = r.Header.Values(wire.HeaderCapability)
		w.Header()[http.CanonicalHeaderKey(wire.HeaderProfile)] = r.Header.Values(wire.HeaderProfile)
	}
	w.Header().Set("Content-Type", "application/json")
	out, fault := p.handle(r.Context(), endpoint, n, r.Header.Get(wire.HeaderCapability), body)
	if fault != nil {
		w.WriteHeader(fault.Code.Status())
		_, _ = w.Write(fault.AppendCanonical(nil))
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out)
}

func (p *provider) handle(ctx context.Context, endpoint string, n int, digest string, body []byte) ([]byte, *wire.Error) {
	switch endpoint {
	case "capabilities":
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.packet, nil
	case "open":
		return p.open(n, digest, body)
	case "read":
		return p.read(ctx, n, digest, body)
	case "close":
		return []byte(`{"closed":true,"version":1}`), nil
	}
	return nil, &wire.Error{Code: wire.NotFound, Message: "no such path"}
}

func (p *provider) open(n int, digest string, body []byte) ([]byte, *wire.Error) {
	q, err := wire.ParseOpen(body)
	if err != nil {
		return nil, &wire.Error{Code: wire.Invalid, Message: "bad open"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sessions[q.RequestID]; s != nil {
		switch {
		case !bytes.Equal(s.body, q.Canonical):
			return nil, &wire.Error{Code: wire.Conflict, Message: "another open"}
		case s.ended != "":
			return nil, &wire.Error{Code: wire.Expired, Message: "it is over"}
		}
		return s.first, nil
	}
	s := &session{
		id: fmt.Sprintf("session-%d", len(p.sessions)+1), body: q.Canonical, w: p.head, expires: uint64(time.Now().Unix()) + p.life, digest: digest,
		scope: wire.Scope{
			Chain: p.chain, Provider: wire.Origin(p.base), Service: q.Service, QueryDigest: wire.QueryDigest(q.Service, q.Query),
			RulesDigest: p.caps.Services[0].RulesDigest, Access: "public", Epoch: p.epoch,
		},
		rows: slices.Clone(p.rows),
	}
	b := p.snapshot(s, 0, q.Limits.Min(wire.MaxLimits()))
	if p.bend != nil {
		p.bend("open", n, b)
	}
	s.first = b.AppendCanonical(nil)
	p.sessions[q.RequestID] = s
	return s.first, nil
}

func (p *provider) batch(s *session, limits wire.Limits) *wire.Batch {
	return &wire.Batch{Session: s.id, Scope: s.scope, ExpiresAt: s.expires, ReplayUntil: s.expires + 600, Limits: limits}
}

// snapshot makes the page from a row number; every row is its own group.
func (p *provider) snapshot(s *session, from int, limits wire.Limits) *wire.Batch {
	b := p.batch(s, limits)
	b.Phase, b.Through, b.HighWater = wire.PhaseSnapshot, s.w, max(p.head, s.w)
	at := from
	for ; at < len(s.rows) && at-from < int(limits.MaxObservations); at++ {
		id := fmt.Sprintf("%s-row-%d", s.id, at)
		b.Groups = append(b.Groups, wire.Group{ID: id, Sequence: s.w, Observations: []wire.Observation{
			{ID: id + "-o", Scope: s.scope, Kind: wire.KindOutput, Output: &s.rows[at]},
		}})
	}
	b.Cursor = fmt.Sprintf("%s snapshot %d", s.id, at)
	if at == len(s.rows) {
		b.SnapshotComplete, b.Cursor = true, fmt.Sprintf("%s live %d", s.id, s.w)
	}
	return b
}

func (p *provider) read(ctx context.Context, n int, digest string, body []byte) ([]byte, *wire.Error) {
	q, err := wire.ParseRead(body)
	if err != nil {
		return nil, &wire.Error{Code: wire.Invalid, Message: "bad read"}
	}
	limits := q.Limits.Min(wire.MaxLimits())
	deadline := time.NewTimer(time.Duration(limits.WaitMs) * time.Millisecond)
	defer deadline.Stop()
	for late := false; ; {
		p.mu.Lock()
		b, fault := p.page(q, digest, limits)
		wake := p.wake
		if fault == nil && b.Phase == wire.PhaseLive && len(b.Groups) == 0 && limits.WaitMs > 0 && !late {
			p.mu.Unlock()
			select {
			case <-wake:
			case <-deadline.C:
				late = true
			case <-ctx.Done():
				panic(http.ErrAbortHandler)
			}
			continue
		}
		defer p.mu.Unlock()
		if fault != nil {
			return nil, fault
		}
		if p.bend != nil {
			p.bend("read", n, b)
		}
		return b.AppendCanonical(nil), nil
	}
}

func (p *provider) page(q *wire.Read, digest string, limits wire.Limits) (*wire.Batch, *wire.Error) {
	var s *session
	for _, candidate := range p.sessions {
		if candidate.id == q.Session {
			s = candidate
		}
	}
	reset := &wire.Error{Code: wire.ResetRequired, Message: "open a new snapshot"}
	switch {
	case s == nil:
		return nil, reset
	case s.ended != "":
		return nil, &wire.Error{Code: s.ended, Message: "it is over"}
	case uint64(time.Now().Unix()) >= s.expires:
		return nil, reset
	case digest != s.digest:
		return nil, &wire.Error{Code: wire.ContextChanged, Message: "another digest"}
	}
	part := strings.Fields(q.Cursor)
	if len(part) != 3 || part[0] != s.id {
		return nil, reset
	}
	at, err := strconv.ParseUint(part[2], 10, 64)
	if err != nil {
		return nil, reset
	}
	if part[1] == "snapshot" {
		return p.snapshot(s, int(at), limits), nil
	}
	b := p.batch(s, limits)
	b.Phase, b.SnapshotComplete, b.Through, b.HighWater = wire.PhaseLive, true, max(at, p.head), max(at, p.head)
	room := int(limits.MaxObservations)
	for _, l := range p.log {
		if l.sequence <= at {
			continue
		}
		if len(l.observations) > room && len(b.Groups) > 0 {
			b.Through = l.sequence - 1
			break
		}
		room -= len(l.observations)
		g := wire.Group{ID: l.id, Sequence: l.sequence}
		if g.ID == "" {
			g.ID = fmt.Sprintf("live-%d", l.sequence)
		}
		for i, o := range l.observations {
			o.Scope = s.scope
			if o.ID == "" {
				o.ID = fmt.Sprintf("%s-%d", g.ID, i)
			}
			g.Observations = append(g.Observations, o)
		}
		b.Groups = append(b.Groups, g)
	}
	b.Cursor = fmt.Sprintf("%s live %d", s.id, b.Through)
	return b, nil
}

// RoundTrip answers in this process, without a socket.
func (p *provider) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				panic(v)
			}
			err = io.ErrUnexpectedEOF
			if cause := r.Context().Err(); cause != nil {
				err = cause
			}
		}
	}()
	rec := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	p.ServeHTTP(rec, r)
	resp = rec.Result()
	resp.Request = r
	return resp, nil
}
