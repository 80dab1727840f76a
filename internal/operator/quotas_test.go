package operator

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/lookup"
)

const quotasPath = "/operator/v1/quotas"

// usage is what the API shows of the quotas, which must be of the closed shape.
func (s *server) usage() (v quotasView) {
	s.t.Helper()
	status, text, _ := s.ask(http.MethodGet, quotasPath, "")
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); status != http.StatusOK || err != nil {
		s.t.Fatalf("%d %s, %v", status, text, err)
	}
	return v
}

func TestO10_OperatorShowsWhatQuotasLetAndRefused(t *testing.T) {
	t.Parallel()
	s := startWith(t, lookup.Quotas{SessionsPerClient: 2, Sessions: 1000, RetainedBytes: 1 << 20, OpensPerSecond: 0.5, OpenBurst: 4, Waiters: 7})
	names := map[string]bool{
		"opensPerSecond": true, "serviceOpensPerSecond": true, "clients": true, "waiters": true, "waitersPerClient": true,
		"requests": true, "requestsWaiting": true, "bodyBytes": true, "bodyBytesPerClient": true, "sessionsPerClient": true, "sessions": true, "retainedBytes": true,
	}
	idle := s.usage()
	if len(idle.Services) != 2 || idle.Services[0] != (serviceUsageView{members, "catalogue", 0, 1000, 0, 1 << 20}) ||
		idle.Services[1] != (serviceUsageView{everybody, "catalogue", 0, 1000, 0, 1 << 20}) {
		t.Errorf("services %+v", idle.Services)
	}
	n := idle.Node
	if n.Waiters != 0 || n.MaxWaiters != 7 || n.Requests != 0 || n.MaxRequests < 1 || n.RequestsWaiting != 0 || n.MaxRequestsWaiting != lookup.DefaultRequestsWaiting ||
		n.Clients != 0 || n.MaxClients != lookup.DefaultClients {
		t.Errorf("node %+v", n)
	}
	if q := n.Quotas; q.OpensPerSecond != 0.5 || q.OpenBurst != 4 || q.SessionsPerClient != 2 || q.Waiters != 7 || q.Requests != n.MaxRequests ||
		q.RequestWaitMs != lookup.DefaultRequestWaitMs || q.WaitersPerClient != lookup.DefaultWaitersPerClient {
		t.Errorf("quotas %+v", q)
	}
	for name, count := range n.Refusals {
		if !names[name] || count != 0 {
			t.Errorf("refusals of %s: %d", name, count)
		}
	}
	if len(n.Refusals) != len(names) {
		t.Errorf("refusals %v", n.Refusals)
	}

	anybody := e2e.NewCaller(t, s.base)
	first := anybody.Open(everybody).Batch(t)
	anybody.Open(everybody).Batch(t)
	anybody.Open(everybody).Refused(t, wire.Limited)
	anybody.Open(everybody).Refused(t, wire.Limited)
	anybody.Open(everybody).Refused(t, wire.Unavailable) // the burst of four is over
	held := s.usage()
	if u := held.Services[1]; u.Sessions != 2 || u.RetainedBytes < 200 || held.Services[0].Sessions != 0 || held.Node.Clients != 1 {
		t.Errorf("held %+v, %d clients", held.Services, held.Node.Clients)
	}
	want := maps.Clone(n.Refusals)
	want["sessionsPerClient"], want["opensPerSecond"] = 2, 1
	if !maps.Equal(held.Node.Refusals, want) {
		t.Errorf("refusals %v, want %v", held.Node.Refusals, want)
	}
	anybody.Close(first)
	if u := s.usage().Services[1]; u.Sessions != 1 || u.RetainedBytes >= held.Services[1].RetainedBytes || u.RetainedBytes <= 0 {
		t.Errorf("after a close %+v, before %+v", u, held.Services[1])
	}

	status, body, header := s.ask(http.MethodPost, quotasPath, "{}")
	s.refused(status, body, 405, wire.Invalid)
	if header.Get("Allow") == "" {
		t.Error("no Allow")
	}
	status, body, _ = s.askAs("", http.MethodGet, quotasPath, "")
	s.refused(status, body, 401, wire.Unauthorized)
}

func TestO10_AnOperatorsQuestionAboutQuotasSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.pool.Close()
	status, body, _ := s.ask(http.MethodGet, quotasPath, "")
	if e := s.refused(status, body, 503, wire.Unavailable); !e.Retryable {
		t.Errorf("not retryable: %s", body)
	}
}
