package interop

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
	"github.com/overlayd/overlayd/internal/wire"
)

const (
	capabilitiesPath = "/overlay/v1/capabilities"
	openPath         = "/overlay/v1/lookup/open"
	readPath         = "/overlay/v1/lookup/read"
	closePath        = "/overlay/v1/lookup/close"
)

// scenarios are what every client is put through, in this order.
func scenarios() []scenario {
	return []scenario{
		{"handshake", handshake},
		{"eight first calls at once", coldStart},
		{"open, and the same open again", openAgain},
		{"snapshot pages", snapshotPages},
		{"long poll woken by an append", wokenPoll},
		{"another call on the device during its poll", sameDevice},
		{"second device of the identity during the poll", secondDevice},
		{"planted handshake during the poll", plantedHandshake},
		{"server restart during the poll", restartDuringPoll},
		{"session nonce expired", expiredNonce},
		{"session nonce unknown", unknownNonce},
		{"grant revoked during the poll", revokedDuringPoll},
		{"every error status", everyError},
		{"database outage, and after", outage},
		{"close", closing},
	}
}

type scenario struct {
	name string
	run  func(*scene)
}

// scene is one scenario in front of one client.
type scene struct {
	*testing.T
	kit    *kit
	client official
	genre  string // of this scene's rows, so that others do not disturb it
}

// person is an identity and the devices on which it is signed in.
type person struct {
	s        *scene
	key      []byte
	identity [33]byte
	hex      string
	digest   string // of the capabilities
	unsigned int    // answers without a signature that the scenario allows
	first    device
}

// person draws an identity with one device.
func (s *scene) person() *person {
	s.Helper()
	key, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		s.Fatal(err)
	}
	p := &person{s: s, key: key.Serialize(), identity: [33]byte(key.PubKey().SerializeCompressed())}
	p.hex = hex.EncodeToString(p.identity[:])
	p.first = s.client.device(s.T, p.key)
	s.Cleanup(p.allSigned)
	return p
}

// allSigned asserts that every answer to the identity's own requests was signed, errors included (row H4).
func (p *person) allSigned() {
	_, rest := p.s.kit.answered(p.hex)
	unsigned := 0
	for _, e := range rest {
		if !e.signed {
			unsigned++
		}
	}
	if unsigned != p.unsigned || len(rest) == 0 {
		p.s.Errorf("%d answers were not signed, want %d: %+v", unsigned, p.unsigned, rest)
	}
}

func (p *person) handshakes() int {
	n, _ := p.s.kit.answered(p.hex)
	return n
}

// on sends one request from a device and returns what the client made of the answer.
func (p *person) on(d device, method, path, body string, headers map[string]string) answer {
	p.s.Helper()
	a, err := settle(p.s.Context(), d, call{method, p.s.kit.base() + path, headers, body})
	if err != nil {
		p.s.Fatalf("%s: %v", path, err)
	}
	return a
}

// selected are the headers of every endpoint but discovery.
func (p *person) selected() map[string]string {
	p.s.Helper()
	if p.digest == "" {
		a := p.on(p.first, http.MethodGet, capabilitiesPath, "", nil)
		if a.Status != http.StatusOK {
			p.s.Fatalf("capabilities: status %d: %s", a.Status, a.Body)
		}
		c, err := wire.VerifyCapabilities([]byte(a.Body))
		if err != nil {
			p.s.Fatal(err)
		}
		p.digest = c.Digest()
	}
	return map[string]string{"Content-Type": "application/json", wire.HeaderCapability: p.digest, wire.HeaderProfile: wire.Profile}
}

// post sends a lookup request from the first device.
func (p *person) post(path, body string) answer {
	p.s.Helper()
	return p.on(p.first, http.MethodPost, path, body, p.selected())
}

// later sends a lookup request without waiting for its answer.
func (p *person) later(d device, path, body string) *pending {
	p.s.Helper()
	c := call{http.MethodPost, p.s.kit.base() + path, p.selected(), body}
	r := &pending{p: p, done: make(chan struct{})}
	ctx := p.s.Context()
	go func() { // settle bounds it
		defer close(r.done)
		r.answer, r.err = settle(ctx, d, c)
	}()
	return r
}

// pending is a request under way.
type pending struct {
	p      *person
	done   chan struct{}
	answer answer // set once done is closed, as err is
	err    error
}

func (r *pending) wait() answer {
	r.p.s.Helper()
	<-r.done
	if r.err != nil {
		r.p.s.Fatal(r.err)
	}
	return r.answer
}

// poll begins a long poll behind b on a device and returns when it waits at the provider.
func (p *person) poll(d device, b *wire.Batch) *pending {
	p.s.Helper()
	r := p.later(d, readPath, read(b, wire.MaxLimits()))
	p.s.kit.polls(p.s.T, 1)
	return r
}

func limitsJSON(l wire.Limits) string {
	return fmt.Sprintf(`{"maxBytes":%d,"maxObservations":%d,"waitMs":%d}`, l.MaxBytes, l.MaxObservations, l.WaitMs)
}

var wide = wire.Limits{MaxBytes: wire.MaxResponseBytes, MaxObservations: wire.MaxObservations}

// open is an Open of this scene's rows.
func (s *scene) open(service, id string, l wire.Limits) string {
	return fmt.Sprintf(`{"version":1,"requestId":"%s","service":"%s","query":{"match":{"genre":"%s"}},"limits":%s}`,
		id, service, s.genre, limitsJSON(l))
}

func read(b *wire.Batch, l wire.Limits) string {
	session, _ := json.Marshal(b.Session) //nolint:errcheck // strings marshal
	cursor, _ := json.Marshal(b.Cursor)   //nolint:errcheck // strings marshal
	return fmt.Sprintf(`{"version":1,"session":%s,"cursor":%s,"limits":%s}`, session, cursor, limitsJSON(l))
}

func closeBody(b *wire.Batch) string {
	session, _ := json.Marshal(b.Session) //nolint:errcheck // strings marshal
	return fmt.Sprintf(`{"version":1,"session":%s}`, session)
}

// live opens a service and returns the boundary of the snapshot, which must fit one page.
func (p *person) live(service string) *wire.Batch {
	p.s.Helper()
	b := p.post(openPath, p.s.open(service, newID(), wide)).batch(p.s.T)
	if !b.SnapshotComplete {
		p.s.Fatal("the snapshot is not complete")
	}
	return b
}

// append lists a new output in this scene's genre.
func (s *scene) append() coin {
	s.Helper()
	c := mint(0)
	s.kit.append(s.T, c.put(s.genre))
	return c
}

// tells asserts that a live batch tells exactly the listing of c.
func (s *scene) tells(b *wire.Batch, c coin) {
	s.Helper()
	if b.Phase != wire.PhaseLive || len(b.Groups) != 1 || len(b.Groups[0].Observations) != 1 {
		s.Fatalf("a %s batch of %d groups, want one live output", b.Phase, len(b.Groups))
	}
	o := b.Groups[0].Observations[0]
	if o.Output == nil || o.Output.Evidence.TxID != c.hex() || !bytes.Equal(o.Output.Evidence.BEEF, c.beef) {
		s.Fatalf("told %+v, want the output of %s", o, c.hex())
	}
}

func handshake(s *scene) {
	p := s.person()
	a := p.on(p.first, http.MethodGet, capabilitiesPath, "", nil)
	c, err := wire.VerifyCapabilities([]byte(a.Body))
	if err != nil {
		s.Fatal(err)
	}
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1", n)
	}
	if got := a.Headers[strings.ToLower(brc104.HeaderIdentityKey)]; got != "" && got != c.Identity {
		s.Errorf("the client speaks with %s, the manifest is of %s", got, c.Identity)
	}
}

func coldStart(s *scene) {
	p := s.person()
	var all sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		all.Go(func() {
			a, err := settle(s.Context(), p.first, call{http.MethodGet, s.kit.base() + capabilitiesPath, nil, ""})
			if err == nil && a.Status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", a.Status, a.Body)
			}
			errs <- err
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			s.Error(err)
		}
	}
}

func openAgain(s *scene) {
	p := s.person()
	c := s.append()
	id := newID()
	first := p.post(openPath, s.open(openService, id, wide))
	b := first.batch(s.T)
	if b.Phase != wire.PhaseSnapshot || !b.SnapshotComplete || len(b.Groups) != 1 || b.Groups[0].Observations[0].Output.Evidence.TxID != c.hex() {
		s.Fatalf("%+v", b)
	}
	if want := hex.EncodeToString(s.kit.identity.PubKey().Compressed()); b.Scope.Provider != want || !strings.HasPrefix(b.Scope.Access, "p:") {
		s.Errorf("scope %+v, want the provider's identity %s and a principal's partition", b.Scope, want)
	}
	if first.Headers[wire.HeaderCapability] != p.digest || first.Headers[wire.HeaderProfile] != wire.Profile {
		s.Errorf("the selection is not echoed: %v", first.Headers)
	}
	s.append() // is not in the saved first body
	if again := p.post(openPath, s.open(openService, id, wide)); again.Body != first.Body {
		s.Error("the repeated open has another body")
	}
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1", n)
	}
}

func snapshotPages(s *scene) {
	p := s.person()
	want := map[string]bool{}
	for i := range 7 {
		c := mint(i % 2 * 100_000) // pages of some hundred kilobytes
		s.kit.append(s.T, c.put(s.genre))
		want[c.hex()] = true
	}
	few := wire.Limits{MaxBytes: wire.MaxResponseBytes, MaxObservations: 3}
	b := p.post(openPath, s.open(openService, newID(), few)).batch(s.T)
	pages := 1
	for {
		for _, g := range b.Groups {
			for _, o := range g.Observations {
				if !want[o.Output.Evidence.TxID] {
					s.Fatalf("told %s twice, or out of nothing", o.Output.Evidence.TxID)
				}
				delete(want, o.Output.Evidence.TxID)
			}
		}
		if b.SnapshotComplete {
			break
		}
		pages++
		b = p.post(readPath, read(b, few)).batch(s.T)
	}
	if pages != 3 || len(want) != 0 {
		s.Errorf("%d pages, %d outputs were not told", pages, len(want))
	}
}

func wokenPoll(s *scene) {
	p := s.person()
	b := p.live(openService)
	for range 3 {
		poll := p.poll(p.first, b)
		c := s.append()
		b = poll.wait().batch(s.T)
		s.tells(b, c)
	}
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1", n)
	}
}

func sameDevice(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	p.post(openPath, s.open(openService, newID(), wide)).batch(s.T)
	c := s.append()
	s.tells(poll.wait().batch(s.T), c)
}

func secondDevice(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	second := s.client.device(s.T, p.key)
	// The other device opens for itself, and reads the very session too.
	p.on(second, http.MethodPost, openPath, s.open(openService, newID(), wide), p.selected()).batch(s.T)
	if again := p.on(second, http.MethodPost, readPath, read(b, wide), p.selected()).batch(s.T); len(again.Groups) != 0 {
		s.Errorf("%+v", again)
	}
	c := s.append()
	s.tells(poll.wait().batch(s.T), c)
	if n := p.handshakes(); n != 2 {
		s.Errorf("%d handshakes, want 2", n)
	}
}

func plantedHandshake(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	// Anyone may begin a session in anyone's name: nothing of it is signed.
	public, err := secp256k1.ParsePubKey(p.identity[:])
	if err != nil {
		s.Fatal(err)
	}
	for range 3 {
		plant(s, public)
	}
	c := s.append()
	b = poll.wait().batch(s.T)
	s.tells(b, c)
	p.post(readPath, read(b, wide)).batch(s.T)
	if n := p.handshakes(); n != 4 {
		s.Errorf("%d handshakes, want one of the identity's own and three planted", n)
	}
}

// plant sends an unsigned initialRequest in the name of a public key.
func plant(s *scene, public *secp256k1.PublicKey) {
	s.Helper()
	nonce := strings.Repeat("A", 64)
	body := fmt.Sprintf(`{"version":"0.1","messageType":"initialRequest","identityKey":"%x","initialNonce":"%s",`+
		`"requestedCertificates":{"certifiers":[],"types":{}}}`, public.SerializeCompressed(), nonce)
	ctx, cancel := context.WithTimeout(s.Context(), callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.kit.base()+brc104.HandshakePath, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // nothing is written
	if res.StatusCode != http.StatusOK {
		s.Fatalf("a handshake in somebody's name: status %d", res.StatusCode)
	}
}

func restartDuringPoll(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	s.kit.restart()
	b = poll.wait().batch(s.T) // a whole, signed batch, as empty as one that waited to its end
	if len(b.Groups) != 0 {
		s.Errorf("%+v", b)
	}
	c := s.append()
	b = p.post(readPath, read(b, wide)).batch(s.T)
	s.tells(b, c)
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1: the session goes on after a restart", n)
	}
	poll = p.poll(p.first, b)
	c = s.append()
	s.tells(poll.wait().batch(s.T), c)
}

// expiredNonce lets a session expire that a device has used, and asserts that it begins another.
func expiredNonce(s *scene) {
	const life = 2 * time.Second
	p := s.person()
	c := call{http.MethodPost, s.kit.base() + openPath, p.selected(), s.open(openService, newID(), wide)}
	var d device
	for tries, used := 0, false; !used; tries++ {
		// On a machine so busy that the session is over before its first use, another one is granted.
		if tries == 10 {
			s.Fatalf("no session of %v was used in time", life)
		}
		d = s.client.device(s.T, p.key)
		before := p.handshakes()
		s.kit.shortLived(life)
		a, err := settle(s.Context(), d, c)
		used = err == nil && a.Status == http.StatusOK && p.handshakes() == before+1
		if !used {
			s.Logf("not used in time: %v", err)
			p.unsigned++
		}
	}
	before := p.handshakes()
	time.Sleep(life) // there is no other way for the provider's own clock to get there
	p.unsigned++
	for range 2 {
		p.on(d, c.Method, openPath, c.Body, c.Headers).batch(s.T)
		if n := p.handshakes(); n != before+1 {
			s.Errorf("%d handshakes, want %d", n, before+1)
		}
	}
}

func unknownNonce(s *scene) {
	p := s.person()
	b := p.live(openService)
	s.kit.forget()
	c := s.append()
	p.unsigned = 1
	s.tells(p.post(readPath, read(b, wide)).batch(s.T), c)
	if n := p.handshakes(); n != 2 {
		s.Errorf("%d handshakes, want 2", n)
	}
}

func revokedDuringPoll(s *scene) {
	p := s.person()
	s.kit.grant(s.T, p.identity)
	b := p.live(membersService)
	poll := p.poll(p.first, b)
	if changed, err := s.kit.provider.Revoke(s.Context(), membersService, p.identity); err != nil || !changed {
		s.Fatalf("revoked %v, %v", changed, err)
	}
	poll.wait().refused(s.T, wire.Unauthorized)
	s.kit.grant(s.T, p.identity)
	p.post(readPath, read(b, wide)).refused(s.T, wire.Unauthorized)
	p.live(membersService)
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1: a signed refusal is no reason to begin another session", n)
	}
}

func everyError(s *scene) {
	p := s.person()
	c := s.append()
	b := p.live(openService)
	told := map[int]bool{}
	refused := func(a answer, code wire.Code) *wire.Error {
		s.Helper()
		told[a.Status] = true
		return a.refused(s.T, code)
	}
	refused(p.post(openPath, `{"version":1}`), wire.Invalid)
	refused(p.post(openPath, `not JSON`), wire.Invalid)
	refused(p.on(p.first, http.MethodPost, capabilitiesPath, "{}", map[string]string{"Content-Type": "application/json"}), wire.Invalid)
	refused(p.post(openPath, s.open(membersService, newID(), wide)), wire.Unauthorized)
	refused(p.post(openPath, s.open(publicService, newID(), wide)), wire.Unauthorized)
	refused(p.post(openPath, s.open("ls_nothing", newID(), wide)), wire.NotFound)
	id := newID()
	p.post(openPath, s.open(openService, id, wide)).batch(s.T)
	refused(p.post(openPath, s.open(openService, id, wire.Limits{MaxBytes: 70000, MaxObservations: 1})), wire.Conflict)
	forged := *b
	forged.Cursor = b.Cursor[:len(b.Cursor)-4] + "AAAA"
	refused(p.post(readPath, read(&forged, wide)), wire.ResetRequired)
	refused(p.post(openPath, strings.Replace(s.open(openService, newID(), wide), `"limits"`,
		`"requiredRulesDigest":"`+strings.Repeat("0", 64)+`","limits"`, 1)), wire.ContextChanged)
	other := p.selected()
	other[wire.HeaderProfile] = "https://example.org/another-profile"
	refused(p.on(p.first, http.MethodPost, openPath, s.open(openService, newID(), wide), other), wire.Unsupported)
	tight := refused(p.post(openPath, s.open(openService, newID(), wire.Limits{MaxBytes: 100, MaxObservations: 1})), wire.Limited)
	if tight.Limit == nil || tight.Limit.Kind != wire.LimitEnvelope {
		s.Errorf("limit %+v", tight.Limit)
	}
	ended := p.live(openService)
	p.post(closePath, closeBody(ended))
	refused(p.post(readPath, read(ended, wide)), wire.Expired)
	end := s.kit.outage()
	away := refused(p.post(readPath, read(b, wide)), wire.Unavailable)
	end()
	if !away.Retryable || away.RetryAfterMs == nil {
		s.Errorf("an outage is told as %+v", away)
	}
	if want := []int{400, 401, 404, 409, 410, 413, 422, 503}; slices.ContainsFunc(want, func(n int) bool { return !told[n] }) {
		s.Errorf("told the statuses %v, want all of %v", told, want)
	}
	// None of it has harmed the client or the session.
	spender := mint(0, c)
	s.kit.append(s.T, c.spent(spender), spender.put(s.genre))
	after := p.again(b).batch(s.T)
	if len(after.Groups) != 1 || len(after.Groups[0].Observations) != 3 {
		s.Errorf("%+v", after.Groups)
	}
	if n := p.handshakes(); n != 1 {
		s.Errorf("%d handshakes, want 1", n)
	}
}

// again reads behind b, and comes back as long as it is told to: after an outage, connections that died in it must first be
// found out.
func (p *person) again(b *wire.Batch) answer {
	p.s.Helper()
	for {
		a := p.post(readPath, read(b, wide))
		if a.Status != http.StatusServiceUnavailable {
			return a
		}
		if e := a.refused(p.s.T, wire.Unavailable); !e.Retryable {
			p.s.Fatalf("%+v", e)
		}
	}
}

// outage takes the database away while a poll waits.
func outage(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	end := s.kit.outage()
	p.post(readPath, read(b, wide)).refused(s.T, wire.Unavailable)
	end()
	c := s.append()
	told := poll.wait()
	if told.Status == http.StatusServiceUnavailable { // it looked while there was nothing to look at
		told.refused(s.T, wire.Unavailable)
		told = p.again(b)
	}
	s.tells(told.batch(s.T), c)
}

func closing(s *scene) {
	p := s.person()
	b := p.live(openService)
	poll := p.poll(p.first, b)
	for range 2 {
		a := p.on(s.client.device(s.T, p.key), http.MethodPost, closePath, closeBody(b), p.selected())
		if a.Status != http.StatusOK || a.Body != `{"closed":true,"version":1}` {
			s.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	poll.wait().refused(s.T, wire.Expired)
	p.post(readPath, read(b, wide)).refused(s.T, wire.Expired)
	s.kit.polls(s.T, 0)
}
