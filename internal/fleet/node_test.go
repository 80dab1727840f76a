package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/pgtest"
	"github.com/overlayd/overlayd/internal/testkit"
)

const (
	token   = "fleet-operator-token"
	genesis = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"

	feedName  = "catalogue"
	forAll    = "ls_catalogue" // everybody, unsigned
	forSigned = "ls_members"   // whoever proves an identity
	forListed = "ls_guests"    // whom the operator admits
)

// settings are what the nodes of a fleet are told. The zero value is ready.
type settings struct {
	database string // "": one of the test's own
	host     string // of the base URL; "": 127.0.0.1
	service  string // more of every service, as "maxWaitMs: 1000"
	quotas   string // more quotas, as "bodyBytes: 8388608"
	more     string // more lines
}

// fleet is several nodes of one provider.
type fleet struct {
	t        *testing.T
	database string
	nodes    []*node
	public   *balancer
	operator *operator // of all nodes, through a balancer
}

// node is one overlayd, which may be ended and started again at its place.
type node struct {
	t                *testing.T
	dir              string
	database         string
	public, operator string
	process          *e2e.Process // nil: not started yet
}

// newFleet starts n nodes on one database. They end with the test.
func newFleet(t *testing.T, n int, s settings) *fleet {
	t.Helper()
	f := &fleet{t: t, database: s.database}
	if f.database == "" {
		f.database = pgtest.New(t).URL
	}
	var public, private []string
	for range n {
		one := &node{t: t, dir: t.TempDir(), database: f.database, public: freeAddress(t), operator: freeAddress(t)}
		f.nodes = append(f.nodes, one)
		public, private = append(public, one.public), append(private, one.operator)
	}
	f.public = newBalancer(t, public...)
	f.operator = newOperator(t, newBalancer(t, private...).address())
	for _, one := range f.nodes {
		f.configure(one, s)
		one.launch()
	}
	for _, one := range f.nodes {
		one.ready()
	}
	return f
}

// configure writes what a node reads when it starts. All are one provider: one base URL, one identity.
func (f *fleet) configure(n *node, s settings) {
	f.t.Helper()
	host := s.host
	if host == "" {
		host = "127.0.0.1"
	}
	_, port, err := net.SplitHostPort(f.public.address())
	if err != nil {
		f.t.Fatal(err)
	}
	service := func(name, who string) string {
		return fmt.Sprintf(`  - {name: %s, feed: %s, %s, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [shelf]}}, %s}`,
			name, feedName, who, s.service)
	}
	for name, text := range map[string]string{
		"identity.key":   strings.Repeat("0", 63) + "1\n",
		"operator.token": token + "\n",
		"overlayd.yaml": fmt.Sprintf(`
baseURL: http://%s:%s/api
localDevelopment: true
listen: %s
operator: {listen: %s, tokenFile: operator.token}
identity: {keyFile: identity.key}
chain: {network: main, genesisHash: "%s"}
stateFile: state
quotas: {opensPerSecond: 100000, openBurst: 100000, serviceOpensPerSecond: 100000, serviceOpenBurst: 100000, waiters: 100000,
  waitersPerClient: 100000, sessionsPerClient: 1000000, sessions: 1000000, requestsWaiting: 100000, requestWaitMs: 60000, %s}
services:
%s
%s
%s
%s
`, host, port, n.public, n.operator, genesis, s.quotas, service(forAll, "authentication: none"), service(forSigned, "authentication: brc103"),
			service(forListed, "authentication: brc103, access: list"), s.more),
	} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
}

// base is the base URL through the balancer.
func (f *fleet) base() string { return "http://" + f.public.address() + "/api" }

// base is the base URL past the balancer.
func (n *node) base() string { return "http://" + n.public + "/api" }

// launch begins to start the node.
func (n *node) launch() {
	n.t.Helper()
	n.process = e2e.StartWith(n.t, e2e.Options{Dir: n.dir, Env: []string{"OVERLAYD_DATABASE_URL=" + n.database}}, "serve", "--config", "overlayd.yaml")
}

// ready waits until the node serves.
func (n *node) ready() {
	n.t.Helper()
	testkit.Eventually(n.t, "the node is ready", n.serves)
}

func (n *node) serves() bool {
	response, err := http.Get("http://" + n.operator + "/readyz")
	if err != nil {
		return false
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read
	return response.StatusCode == http.StatusOK
}

// start starts the node again.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.ready()
}

// kill ends the node as kill -9 does.
func (n *node) kill() { n.process.Kill() }

// stop asks the node to stop, which it must do in good order.
func (n *node) stop() {
	n.t.Helper()
	n.process.Signal(syscall.SIGTERM)
	if code := n.process.Wait(); code != 0 {
		n.t.Fatalf("the node ended with %d; it logged\n%s", code, n.process.Stderr())
	}
}

// freeAddress is an address that nothing of this machine takes while a node that was killed is down: connections draw their own
// ports above these, and no two nodes get one.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		if _, taken := ports.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return l.Addr().String()
	}
	t.Fatal("no port is free between 12000 and 32000")
	return ""
}

// ports are those that freeAddress gave out.
var ports sync.Map
