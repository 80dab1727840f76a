package lookup

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// onlyRules are rules of a test: one attribute, whose name is fixed by the IRI.
type onlyRules struct{ id string }

func (r onlyRules) ID() string { return r.id }
func (r onlyRules) Contract(json.RawMessage) (Contract, error) {
	return attributesContract{declared: map[string]bool{"genre": true}}, nil
}

// TestS10_AChangedServiceIsNeverReinterpreted restarts the provider with another idea of its service. What was opened under the old
// one goes on exactly as it was promised, or is reset-required; nothing new is opened on it.
func TestS10_AChangedServiceIsNeverReinterpreted(t *testing.T) {
	t.Parallel()
	second := func(s *Service) Service { // another service that keeps the feed in the configuration
		other := *s
		other.Name = "ls_other"
		return other
	}
	for name, c := range map[string]struct {
		before func(*Service)
		change func(*Service) []Service // what is configured afterwards
		base   string                   // "" = as before
		lives  bool
		fresh  wire.Code // of a new Open under the old manifest; "" = it is served
		anew   wire.Code // of a new Open under the new one
	}{
		"nothing": {change: func(s *Service) []Service { return []Service{*s} }, lives: true},
		"other parameters": {change: func(s *Service) []Service {
			s.RulesParameters = json.RawMessage(`{"attributes":["artist"]}`)
			return []Service{*s}
		}, lives: true, fresh: wire.ContextChanged, anew: wire.Invalid}, // genre is no attribute any more
		"parameters in another order": {change: func(s *Service) []Service {
			s.RulesParameters = json.RawMessage(`{"attributes":["genre","artist"]}`)
			return []Service{*s}
		}, lives: true, fresh: wire.ContextChanged},
		"other rules": {change: func(s *Service) []Service {
			s.RulesID = "urn:test:rules:2"
			return []Service{*s}
		}, lives: true, fresh: wire.ContextChanged},
		"rules that are not installed any more": {before: func(s *Service) { s.RulesID = "urn:test:rules:1" },
			change: func(s *Service) []Service {
				s.RulesID = ""
				return []Service{*s}
			}, fresh: wire.ContextChanged},
		"another feed": {change: func(s *Service) []Service {
			s.Feed = "elsewhere"
			return []Service{*s}
		}, fresh: wire.ResetRequired},
		"another feed, the old one still shown": {change: func(s *Service) []Service {
			other := second(s)
			s.Feed = "elsewhere"
			return []Service{*s, other}
		}, lives: true, fresh: wire.ResetRequired},
		"authentication": {change: func(s *Service) []Service {
			s.Authentication = wire.AuthenticationBRC103
			return []Service{*s}
		}, fresh: wire.Unauthorized, anew: wire.Unauthorized},
		"removed with its feed": {change: func(s *Service) []Service {
			s.Name, s.Feed = "ls_other", "elsewhere"
			return []Service{*s}
		}, fresh: wire.NotFound, anew: wire.NotFound},
		"removed": {change: func(s *Service) []Service { return []Service{second(s)} }, lives: true, fresh: wire.NotFound, anew: wire.NotFound},
		"smaller maxima": {change: func(s *Service) []Service {
			s.MaxResponseBytes, s.MaxObservations, s.MaxWaitMs, s.SessionSeconds = 65536, 1, 5, 10
			return []Service{*s}
		}, lives: true, fresh: wire.ContextChanged},
		"greater maxima": {before: func(s *Service) { s.MaxObservations = 7 }, change: func(s *Service) []Service {
			s.MaxObservations = 1024
			return []Service{*s}
		}, lives: true, fresh: wire.ContextChanged},
		"another base URL": {change: func(s *Service) []Service { return []Service{*s} }, base: "https://other.example.org/api",
			lives: true, fresh: wire.ContextChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := identityKey(t)
			rules := []Rules{onlyRules{"urn:test:rules:1"}, onlyRules{"urn:test:rules:2"}}
			var service Service
			n := start(t, setup{identity: key, rules: rules, service: func(s *Service) {
				if c.before != nil {
					c.before(s)
				}
				service = *s
			}})
			coins := n.stock(6) // jazz: 0, 2, 4
			n.digest = n.capability()
			const jazz = `{"match":{"genre":"jazz"}}`
			a := ask{id: newID(), query: jazz, limits: few(2)}
			first := n.request(openPath, a.body())
			b := first.batch(t)
			page := n.request(readPath, readBody(b.Session, b.Cursor, few(100))).batch(t)
			live := n.live(jazz)
			n.append(coins[2].withdrawn("gone"), coins[1].put(`{"genre":["jazz"]}`, ""), mint("more", 0).put(genre(0), ""))
			log := n.request(readPath, readBody(live.Session, live.Cursor, few(100))).batch(t)
			n.halt()

			base := c.base
			if base == "" {
				base = n.provider.baseURL
			}
			if name == "rules that are not installed any more" {
				rules = nil
			}
			m := start(t, setup{db: n.db, identity: key, rules: rules, base: base, services: c.change(&service)})
			path := func(s string) string { return m.provider.BasePath() + s }
			m.digest = n.digest
			retry := m.request(path(openPath), a.body())
			pageAgain := m.request(path(readPath), readBody(b.Session, b.Cursor, few(100)))
			logAgain := m.request(path(readPath), readBody(live.Session, live.Cursor, few(100)))
			if !c.lives {
				for _, r := range []reply{retry, pageAgain, logAgain} {
					r.refused(t, wire.ResetRequired)
				}
			} else {
				if !bytes.Equal(retry.body, first.body) {
					t.Fatalf("the retry differs: %s", retry.body)
				}
				for what, was := range map[string][2]*wire.Batch{"page": {page, pageAgain.batch(t)}, "log": {log, logAgain.batch(t)}} {
					if !slices.Equal(ids(was[0]), ids(was[1])) || was[0].Scope != was[1].Scope || was[0].Limits != was[1].Limits || was[0].ExpiresAt != was[1].ExpiresAt {
						t.Fatalf("the %s differs: %v %+v\n%v %+v", what, ids(was[0]), was[0].Limits, ids(was[1]), was[1].Limits)
					}
				}
			}
			fences := m.count("open_fence")
			fresh := m.request(path(openPath), ask{query: jazz}.body())
			if c.fresh != "" {
				fresh.refused(t, c.fresh)
				if m.count("open_fence") != fences {
					t.Fatal("a refused Open left a fence")
				}
			} else {
				fresh.batch(t)
			}
			m.digest = manifestOf(t, m)
			anew := m.request(path(openPath), ask{query: jazz}.body())
			if c.anew != "" {
				anew.refused(t, c.anew)
				return
			}
			if got := anew.batch(t); got.Scope == live.Scope && got.Limits == live.Limits && c.fresh != "" {
				t.Fatal("a new contract has the old scope and limits")
			}
		})
	}
}

// manifestOf is the digest of the manifest that a node serves now, wherever its base is.
func manifestOf(t *testing.T, n *node) string {
	t.Helper()
	packet, err := n.provider.current(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := wire.VerifyCapabilities(packet)
	if err != nil {
		t.Fatal(err)
	}
	return c.Digest()
}

// TestS10_AnOldPromiseStillBindsTheFeed: what an old session may receive is still what groups are measured by, until it is over.
func TestS10_AnOldPromiseStillBindsTheFeed(t *testing.T) {
	t.Parallel()
	key := identityKey(t)
	n := start(t, setup{identity: key, service: func(s *Service) { s.MaxResponseBytes = 65536 }})
	b := n.live(`{}`)
	old := capabilityHeader(n.capability())
	n.halt()
	m := start(t, setup{db: n.db, identity: key, base: n.provider.baseURL})
	wideGroup := mint("wide", 60_000).put(genre(0), "")
	if _, err := m.tryAppend(wideGroup); livefeed.CodeOf(err) != livefeed.Limited {
		t.Fatalf("a group that an old session could never receive is admitted: %v", err)
	}
	m.append(mint("narrow", 0).put(genre(0), ""))
	if got := m.request(readPath, readBody(b.Session, b.Cursor, wide), old).batch(t); len(got.Groups) != 1 || got.Limits.MaxBytes != 65536 {
		t.Fatalf("%+v", got.Limits)
	}
	m.advance(b.ExpiresAt + 3600)
	if _, err := m.tryAppend(wideGroup); err != nil {
		t.Fatalf("nobody is promised the old maxima any more: %v", err)
	}
}
