package operator

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/lookup"
)

// quotasView is what clients hold of what the quotas let them.
type quotasView struct {
	Services []serviceUsageView `json:"services"`
	// Unavailable are feeds whose database did not answer: their services are not listed.
	Unavailable []string      `json:"unavailable,omitempty"`
	Node        nodeUsageView `json:"node"`
}

// serviceUsageView is of the whole deployment.
type serviceUsageView struct {
	Service          string `json:"service"`
	Feed             string `json:"feed"`
	Sessions         int64  `json:"sessions"`
	MaxSessions      int64  `json:"maxSessions"`
	RetainedBytes    int64  `json:"retainedBytes"`
	MaxRetainedBytes int64  `json:"maxRetainedBytes"`
}

// nodeUsageView is of the process that answers.
type nodeUsageView struct {
	Waiters            int               `json:"waiters"`
	MaxWaiters         int               `json:"maxWaiters"`
	Requests           int               `json:"requests"`
	MaxRequests        int               `json:"maxRequests"`
	RequestsWaiting    int               `json:"requestsWaiting"`
	MaxRequestsWaiting int               `json:"maxRequestsWaiting"`
	BodyBytes          int               `json:"bodyBytes"` // of answers that their peers have not taken yet
	MaxBodyBytes       int               `json:"maxBodyBytes"`
	Clients            int               `json:"clients"`
	MaxClients         int               `json:"maxClients"`
	Quotas             limitsView        `json:"quotas"`
	Refusals           map[string]uint64 `json:"refusals"` // since its start, by quota
}

// limitsView are all quotas in force, by their names in the configuration.
type limitsView struct {
	OpensPerSecond        float64 `json:"opensPerSecond"`
	OpenBurst             int     `json:"openBurst"`
	ServiceOpensPerSecond float64 `json:"serviceOpensPerSecond"`
	ServiceOpenBurst      int     `json:"serviceOpenBurst"`
	Clients               int     `json:"clients"`
	Waiters               int     `json:"waiters"`
	WaitersPerClient      int     `json:"waitersPerClient"`
	Requests              int     `json:"requests"`
	RequestsWaiting       int     `json:"requestsWaiting"`
	RequestWaitMs         int     `json:"requestWaitMs"`
	BodyBytes             int     `json:"bodyBytes"`
	BodyBytesPerClient    int     `json:"bodyBytesPerClient"`
	BodyBytesPerSecond    int     `json:"bodyBytesPerSecond"`
	SessionsPerClient     int64   `json:"sessionsPerClient"`
	Sessions              int64   `json:"sessions"`
	RetainedBytes         int64   `json:"retainedBytes"`
}

// quotas answers GET /operator/v1/quotas.
func (a *API) quotas(c echo.Context) error {
	u, err := a.access.Usage(c.Request().Context())
	if err != nil {
		return err
	}
	v := quotasView{
		Services: make([]serviceUsageView, 0, len(u.Services)), Unavailable: u.Unavailable,
		Node: nodeUsageView{
			Waiters: u.Node.Waiters, MaxWaiters: u.Node.MaxWaiters, Requests: u.Node.Requests, MaxRequests: u.Node.MaxRequests,
			RequestsWaiting: u.Node.RequestsWaiting, MaxRequestsWaiting: u.Node.MaxRequestsWaiting,
			BodyBytes: u.Node.BodyBytes, MaxBodyBytes: u.Node.MaxBodyBytes,
			Clients: u.Node.Clients, MaxClients: u.Node.MaxClients, Quotas: limitsOf(u.Node.Quotas), Refusals: u.Node.Refusals,
		},
	}
	for _, s := range u.Services {
		v.Services = append(v.Services, serviceUsageView(s))
	}
	return c.JSON(http.StatusOK, v)
}

func limitsOf(q lookup.Quotas) limitsView {
	return limitsView{
		OpensPerSecond: q.OpensPerSecond, OpenBurst: q.OpenBurst,
		ServiceOpensPerSecond: q.ServiceOpensPerSecond, ServiceOpenBurst: q.ServiceOpenBurst, Clients: q.Clients,
		Waiters: q.Waiters, WaitersPerClient: q.WaitersPerClient,
		Requests: q.Requests, RequestsWaiting: q.RequestsWaiting, RequestWaitMs: q.RequestWaitMs,
		BodyBytes: q.BodyBytes, BodyBytesPerClient: q.BodyBytesPerClient, BodyBytesPerSecond: q.BodyBytesPerSecond,
		SessionsPerClient: q.SessionsPerClient, Sessions: q.Sessions, RetainedBytes: q.RetainedBytes,
	}
}
