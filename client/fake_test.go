package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ec "github.com/bsv-blockchain/go-sdk/primitives/ec"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/canon"
	"github.com/overlayd/overlayd/internal/wire"
)

// fake is a provider that speaks the protocol honestly, from memory, with hooks
// that let a test bend one answer.
type fake struct {
	t    testing.TB
	key  *ec.PrivateKey
	base string

	mu       sync.Mutex
	packet   []byte
	caps     *wire.Capabilities
	chain    wire.Chain
	epoch    string
	session  uint64 // seconds
	replay   uint64 // seconds
	maxima   wire.Limits
	rows     []wire.Output // present, in order
	log      []logged
	head     uint64
	sessions map[string]*session // by request id
	wake     chan struct{}       // closed and replaced by every append

	auth     *brc104.Server // nil: it takes no signed requests
	ring     ring           // of auth's sessions
	requests []request
	inFlight int
	most     int // greatest inFlight of one session branch

	// Hooks, set before the test starts; n counts from 1 for each endpoint.
	bend   func(endpoint string, n int, b *wire.Batch)
	answer func(w http.ResponseWriter, endpoint string, n int) bool // true: it answered
	lose   func(endpoint string, n int) bool                        // process, then cut the connection
	before func(endpoint string, n int, body []byte)
	raw    func(endpoint string, n int, body []byte) []byte
	sees   func(principal string, o wire.Output) bool                         // nil: everybody sees everything
	access func(principal string) string                                      // of a new session; nil: one of the principal's own
	stand  func(w http.ResponseWriter, r *http.Request, e string, n int) bool // somebody in between answers, and cannot sign
	forge  func(endpoint string, n int, a *reply)                             // somebody in between changes what is signed
}

type request struct {
	endpoint, digest string
	body             []byte
	signed           bool
}

type logged struct {
	sequence     uint64
	observations []wire.Observation // without id and scope
}

type session struct {
	id        string
	body      []byte // the open
	first     []byte
	scope     wire.Scope
	rows      []wire.Output
	w         uint64
	expires   uint64
	closed    bool
	ended     wire.Code
	openedFor string
	principal string // "" for an anonymous one
}

// The services of the provider: one for everybody, one that knows its callers.
const (
	service       = "ls_test"
	signedService = "ls_signed"
)

func newFake(t testing.TB) *fake {
	key, err := ec.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return &fake{
		t: t, key: key, base: "http://127.0.0.1:1", epoch: "epoch-1",
		chain:    wire.Chain{Network: "test", GenesisHash: strings.Repeat("0a", 32)},
		session:  3600,
		replay:   600,
		maxima:   wire.MaxLimits(),
		sessions: make(map[string]*session),
		wake:     make(chan struct{}),
	}
}

// serve puts the provider behind a real listener and returns its base URL.
func (f *fake) serve() string {
	server := httptest.NewUnstartedServer(f)
	f.base = "http://" + server.Listener.Addr().String()
	f.issue()
	server.Start()
	f.t.Cleanup(server.Close)
	return f.base
}

// issue signs a new manifest.
func (f *fake) issue() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := uint64(time.Now().Unix())
	rules := canon.Obj(canon.Member{Name: "attributes", Value: canon.Arr(canon.Str("artist"))})
	entry := func(name, authentication string) wire.ServiceEntry {
		return wire.ServiceEntry{
			Name: name, Kind: wire.KindLookup, RulesID: "urn:test:rules:1", RulesParameters: rules,
			RulesDigest: wire.RulesDigest("urn:test:rules:1", rules),
			Profiles: []wire.ProfileEntry{{
				ID: wire.Profile, Authentication: authentication, Payment: wire.PaymentNone,
				MaxRequestBytes: wire.MaxRequestBytes, MaxResponseBytes: f.maxima.MaxBytes,
				Parameters: wire.LookupParameters{
					ReplaySeconds: f.replay, SessionSeconds: f.session, MaxObservations: f.maxima.MaxObservations, MaxWaitMs: f.maxima.WaitMs,
				}.Value(),
			}},
		}
	}
	f.caps = &wire.Capabilities{
		Identity: hex.EncodeToString(f.key.PubKey().Compressed()), BaseURL: f.base, Chain: f.chain,
		IssuedAt: now, ExpiresAt: now + 86400,
		Services:   []wire.ServiceEntry{entry(service, wire.AuthenticationNone), entry(signedService, wire.AuthenticationBRC103)},
		Extensions: []canon.Member{wire.EpochMember(map[string]string{service: f.epoch, signedService: f.epoch})},
	}
	f.sign()
}

// edit changes the provider between two runs.
func (f *fake) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) sign() {
	packet, err := wire.SignPacket(canon.DomainCapabilities, f.caps.Value(), f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	f.packet = packet
}

// output is a row made from a number.
func output(n int) wire.Output {
	sum := sha256.Sum256(fmt.Appendf(nil, "row %d", n))
	o := wire.Output{Evidence: wire.Evidence{TxID: hex.EncodeToString(sum[:]), OutputIndex: uint32(n % 3), BEEF: fmt.Appendf(nil, "evidence of row %d", n)}}
	if n%2 == 0 {
		o.Context = &wire.Context{Schema: "urn:test:context", Bytes: fmt.Appendf(nil, "context %d", n)}
	}
	return o
}

func (f *fake) outpoint(o wire.Output) wire.Outpoint {
	return wire.Outpoint{Chain: f.chain, TxID: o.Evidence.TxID, OutputIndex: o.Evidence.OutputIndex}
}

// seed lists rows without a log, as if they had always been there.
func (f *fake) seed(n int) *fake {
	for i := range n {
		f.rows = append(f.rows, output(i))
		f.head++
	}
	return f
}

// put, remove and invalidate append one group each.
func (f *fake) put(rows ...int) {
	f.change(func() (group []wire.Observation) {
		for _, n := range rows {
			o := output(n)
			f.rows = append(f.rows, o)
			group = append(group, wire.Observation{Kind: wire.KindOutput, Output: &o})
		}
		return group
	})
}

func (f *fake) remove(n int) {
	f.change(func() []wire.Observation {
		o := output(n)
		for i := range f.rows {
			if f.rows[i].Evidence.TxID == o.Evidence.TxID {
				f.rows = append(f.rows[:i:i], f.rows[i+1:]...)
				break
			}
		}
		return []wire.Observation{
			{Kind: wire.KindSpend, Spend: &wire.Spend{Previous: f.outpoint(o), SpendingTxID: strings.Repeat("cd", 32), BEEF: fmt.Appendf(nil, "spend of row %d", n)}},
			{Kind: wire.KindWithdraw, Withdraw: &wire.Withdraw{Outpoint: f.outpoint(o), Reason: "spent"}},
		}
	})
}

func (f *fake) invalidate() {
	f.change(func() []wire.Observation {
		return []wire.Observation{{Kind: wire.KindInvalidated, Invalidated: &wire.Invalidated{ContextID: "ctx", Reason: "reorg"}}}
	})
}

// skip moves the head without anything this query sees.
func (f *fake) skip() { f.change(func() []wire.Observation { return nil }) }

func (f *fake) change(edit func() []wire.Observation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.head++
	if group := edit(); group != nil {
		f.log = append(f.log, logged{sequence: f.head, observations: group})
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

// endAll makes every open session answer with a code from now on.
func (f *fake) endAll(code wire.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		s.ended = code
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

// seen returns the requests to an endpoint so far.
func (f *fake) seen(endpoint string) []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []request
	for _, r := range f.requests {
		if r.endpoint == endpoint {
			out = append(out, r)
		}
	}
	return out
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	endpoint := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	f.mu.Lock()
	f.requests = append(f.requests, request{
		endpoint: endpoint, digest: r.Header.Get(wire.HeaderCapability), body: body, signed: !brc104.Anonymous(r),
	})
	n := 0
	for _, q := range f.requests {
		if q.endpoint == endpoint {
			n++
		}
	}
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	auth := f.auth
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.inFlight--
		f.mu.Unlock()
	}()
	if before := f.before; before != nil {
		before(endpoint, n, body)
	}
	if auth != nil && (endpoint == "auth" || !brc104.Anonymous(r)) {
		f.authenticate(auth, w, r, endpoint, n, body)
		return
	}
	f.respond(w, r, endpoint, n, body, "")
}

// respond answers a request of a principal, "" for an anonymous one.
func (f *fake) respond(w http.ResponseWriter, r *http.Request, endpoint string, n int, body []byte, principal string) {
	if endpoint != "capabilities" {
		w.Header()[http.CanonicalHeaderKey(wire.HeaderCapability)] = r.Header.Values(wire.HeaderCapability)
		w.Header()[http.CanonicalHeaderKey(wire.HeaderProfile)] = r.Header.Values(wire.HeaderProfile)
	}
	w.Header().Set("Content-Type", "application/json")
	if f.answer != nil && f.answer(w, endpoint, n) {
		return
	}
	out, fault := f.handle(r.Context(), endpoint, n, caller{r.Header.Get(wire.HeaderCapability), principal}, body)
	if f.lose != nil && f.lose(endpoint, n) {
		panic(http.ErrAbortHandler)
	}
	if fault != nil {
		refuse(w, fault)
		return
	}
	if f.raw != nil {
		out = f.raw(endpoint, n, out)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out)
}

func refuse(w http.ResponseWriter, e *wire.Error) {
	w.WriteHeader(e.Code.Status())
	_, _ = w.Write(e.AppendCanonical(nil))
}

// caller is who asks, under which manifest.
type caller struct{ digest, principal string }

func (f *fake) handle(ctx context.Context, endpoint string, n int, by caller, body []byte) ([]byte, *wire.Error) {
	switch endpoint {
	case "capabilities":
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.packet, nil
	case "open":
		return f.open(n, by, body)
	case "read":
		return f.read(ctx, n, by, body)
	case "close":
		q, err := wire.ParseClose(body)
		if err != nil {
			return nil, &wire.Error{Code: wire.Invalid, Message: "bad close"}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, s := range f.sessions {
			if s.id == q.Session {
				s.closed = true
			}
		}
		return []byte(`{"closed":true,"version":1}`), nil
	}
	return nil, &wire.Error{Code: wire.NotFound, Message: "no such path"}
}

func (f *fake) open(n int, by caller, body []byte) ([]byte, *wire.Error) {
	q, err := wire.ParseOpen(body)
	if err != nil {
		return nil, &wire.Error{Code: wire.Invalid, Message: "bad open"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[q.RequestID]; s != nil {
		switch {
		case !bytes.Equal(s.body, q.Canonical):
			return nil, &wire.Error{Code: wire.Conflict, Message: "another open"}
		case s.openedFor != by.digest:
			return nil, &wire.Error{Code: wire.ContextChanged, Message: "another digest"}
		case s.closed || s.ended != "":
			return nil, &wire.Error{Code: wire.Expired, Message: "closed"}
		}
		return s.first, nil
	}
	if (q.Service == signedService) != (by.principal != "") {
		return nil, &wire.Error{Code: wire.Unauthorized, Message: "not for this caller"}
	}
	if by.digest != f.caps.Digest() {
		return nil, &wire.Error{Code: wire.ContextChanged, Message: "another manifest is current"}
	}
	now := uint64(time.Now().Unix())
	s := &session{
		id: fmt.Sprintf("session-%d", len(f.sessions)+1), body: q.Canonical, w: f.head, expires: now + f.session, openedFor: by.digest, principal: by.principal,
		scope: wire.Scope{
			Chain: f.chain, Provider: wire.Origin(f.base), Service: q.Service, QueryDigest: wire.QueryDigest(q.Service, q.Query),
			RulesDigest: f.caps.Services[0].RulesDigest, Access: "public", Epoch: f.epoch,
		},
	}
	if by.principal != "" {
		s.scope.Provider, s.scope.Access = f.caps.Identity, f.accessOf(by.principal)
	}
	for _, o := range f.rows {
		if f.shows(s, o) {
			s.rows = append(s.rows, o)
		}
	}
	b, fault := f.snapshot(s, 0, q.Limits.Min(f.maxima))
	if fault != nil {
		return nil, fault
	}
	if f.bend != nil {
		f.bend("open", n, b)
	}
	s.first = b.AppendCanonical(nil)
	f.sessions[q.RequestID] = s
	return s.first, nil
}

func (f *fake) batch(s *session, limits wire.Limits) *wire.Batch {
	return &wire.Batch{Session: s.id, Scope: s.scope, ExpiresAt: s.expires, ReplayUntil: s.expires + f.replay, Limits: limits}
}

// snapshot makes the page from a row number; every row is its own group.
func (f *fake) snapshot(s *session, from int, limits wire.Limits) (*wire.Batch, *wire.Error) {
	b := f.batch(s, limits)
	b.Phase, b.Through, b.HighWater = wire.PhaseSnapshot, s.w, max(f.head, s.w)
	at, size := from, len(b.AppendCanonical(nil))+128
	for ; at < len(s.rows) && at-from < int(limits.MaxObservations); at++ {
		id := fmt.Sprintf("%s-row-%d", s.id, at)
		b.Groups = append(b.Groups, wire.Group{ID: id, Sequence: s.w, Observations: []wire.Observation{
			{ID: id + "-o", Scope: s.scope, Kind: wire.KindOutput, Output: &s.rows[at]},
		}})
		if size += len(b.Groups[at-from].AppendCanonical(nil)) + 1; size > int(limits.MaxBytes) {
			b.Groups = b.Groups[:at-from]
			if at == from {
				need := uint32(size + 64)
				return nil, &wire.Error{Code: wire.Limited, Message: "the next group does not fit", Limit: &wire.Limit{Kind: wire.LimitGroup, MinimumBytes: &need}}
			}
			break
		}
	}
	b.Cursor = fmt.Sprintf("%s snapshot %d", s.id, at)
	if at == len(s.rows) {
		b.SnapshotComplete, b.Cursor = true, fmt.Sprintf("%s live %d", s.id, s.w)
	}
	return b, nil
}

func (f *fake) read(ctx context.Context, n int, by caller, body []byte) ([]byte, *wire.Error) {
	q, err := wire.ParseRead(body)
	if err != nil {
		return nil, &wire.Error{Code: wire.Invalid, Message: "bad read"}
	}
	limits := q.Limits.Min(f.maxima)
	deadline := time.NewTimer(time.Duration(limits.WaitMs) * time.Millisecond)
	defer deadline.Stop()
	for late := false; ; {
		f.mu.Lock()
		b, fault := f.page(q, by, limits)
		wake := f.wake
		if fault == nil && b.Phase == wire.PhaseLive && len(b.Groups) == 0 && limits.WaitMs > 0 && !late {
			f.mu.Unlock()
			select {
			case <-wake:
			case <-deadline.C:
				late = true
			case <-ctx.Done():
				panic(http.ErrAbortHandler)
			}
			continue
		}
		defer f.mu.Unlock()
		if fault != nil {
			return nil, fault
		}
		if f.bend != nil {
			f.bend("read", n, b)
		}
		return b.AppendCanonical(nil), nil
	}
}

func (f *fake) page(q *wire.Read, by caller, limits wire.Limits) (*wire.Batch, *wire.Error) {
	var s *session
	for _, candidate := range f.sessions {
		if candidate.id == q.Session {
			s = candidate
		}
	}
	reset := &wire.Error{Code: wire.ResetRequired, Message: "open a new snapshot"}
	switch {
	case s == nil || s.principal != by.principal:
		return nil, reset
	case s.ended != "":
		return nil, &wire.Error{Code: s.ended, Message: "it is over"}
	case s.closed:
		return nil, &wire.Error{Code: wire.Expired, Message: "closed"}
	case uint64(time.Now().Unix()) >= s.expires:
		return nil, reset
	case by.digest != s.openedFor:
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
		return f.snapshot(s, int(at), limits)
	}
	b := f.batch(s, limits)
	b.Phase, b.SnapshotComplete, b.Through, b.HighWater = wire.PhaseLive, true, f.head, f.head
	room := int(limits.MaxObservations)
	for _, l := range f.log {
		if l.sequence <= at || l.observations[0].Output != nil && !f.shows(s, *l.observations[0].Output) {
			continue
		}
		if len(l.observations) > room {
			if len(b.Groups) == 0 {
				need := uint32(len(l.observations))
				return nil, &wire.Error{Code: wire.Limited, Message: "the next group does not fit", Limit: &wire.Limit{Kind: wire.LimitGroup, MinimumObservations: &need}}
			}
			b.Through = l.sequence - 1
			break
		}
		room -= len(l.observations)
		g := wire.Group{ID: fmt.Sprintf("live-%d", l.sequence), Sequence: l.sequence}
		for i, o := range l.observations {
			o.ID, o.Scope = fmt.Sprintf("live-%d-%d", l.sequence, i), s.scope
			g.Observations = append(g.Observations, o)
		}
		b.Groups = append(b.Groups, g)
	}
	b.Cursor = fmt.Sprintf("%s live %d", s.id, b.Through)
	return b, nil
}

// local answers requests in this process, without a socket, so that a test may
// run on a fake clock.
type local struct{ *fake }

func (l local) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
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
	l.ServeHTTP(rec, r)
	resp = rec.Result()
	resp.Request = r
	return resp, nil
}

// evidenceText is how a row's evidence shows on the wire.
func evidenceText(o wire.Output) string {
	return base64.StdEncoding.EncodeToString(o.Evidence.BEEF)
}
