package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// importRule says what one part of the program must not reach. Paths are
// folders of this module ("lookup"), standard packages ("net/http") or modules
// ("github.com/labstack/echo"); each stands for itself and all below it.
type importRule struct {
	from   string
	reason string
	never  []string // these must not be reached
	only   []string // when set, of this module and of other modules only these may be reached; the standard library is free
	except []string // folders below from that the rule leaves out
}

// Other people's modules that rules speak of.
const (
	pgx     = "github.com/jackc/pgx"
	tern    = "github.com/jackc/tern"
	echo    = "github.com/labstack/echo"
	goSDK   = "github.com/bsv-blockchain/go-sdk"
	strict  = "github.com/go-json-experiment/json"
	curve   = "github.com/decred/dcrd/dcrec/secp256k1"
	sqlite  = "modernc.org/sqlite"
	cobra   = "github.com/spf13/cobra"
	koanf   = "github.com/knadh/koanf"
	metrics = "github.com/prometheus/client_golang"
)

// importRules is the picture of the program, downwards: programs, then HTTP,
// then sessions, then fences and feeds, then bytes. What is not written here
// is allowed.
func importRules() []importRule {
	program := []string{"cmd/overlayd", "internal/operator", "internal/httpserve", "internal/config", cobra, koanf}
	return []importRule{
		{
			from:   ".",
			reason: "nothing that ships may depend on the help for tests; the one logger is log/slog",
			never:  []string{"internal/pgtest", "internal/testkit", "internal/house", "reconcile/storetest", "reconcile/verify/verifytest", "testing", "log"},
			except: []string{"internal/pgtest", "internal/testkit", "internal/house", "reconcile/storetest", "reconcile/verify/verifytest"},
		},
		{
			from:   "livefeed",
			reason: "a feed knows neither sessions, nor fences, nor principals, nor HTTP: another program may feed it",
			never:  append(slices.Clone(program), "lookup", "openfence", "brc104", "client", "reconcile", "net/http", echo),
		},
		{
			from:   "openfence",
			reason: "a fence works inside its caller's transaction and remembers digests: all it needs is the driver",
			only:   []string{pgx, "internal/canon", strict, curve, goSDK},
			never:  []string{"net/http", pgx + "/v5/pgxpool"},
		},
		{
			from:   "lookup",
			reason: "the provider is mounted by a program and never looks back at it, nor at the other end of the wire",
			never:  append(slices.Clone(program), "client", "reconcile", "internal/localpg", "internal/sample", sqlite),
		},
		{
			from:   "brc104",
			reason: "HTTP authentication knows nothing of lookups, feeds or databases",
			never:  append(slices.Clone(program), "lookup", "livefeed", "openfence", "client", "reconcile", pgx),
		},
		{
			from:   "client",
			reason: "the other end of the wire shares nothing with the provider but the shapes on it",
			never:  append(slices.Clone(program), "lookup", "livefeed", "openfence", "internal/schema", "internal/localpg", pgx, tern, echo),
		},
		{
			from:   "client",
			reason: "following comes first: who reconciles builds on it, and it acts on no wallet",
			never:  []string{"reconcile", goSDK + "/wallet", goSDK + "/transaction/broadcaster"},
		},
		{
			from:   "client",
			reason: "a program with a store of its own must not have to build SQLite",
			never:  []string{sqlite},
			except: []string{"client/sqlitestate"},
		},
		{
			from:   "reconcile",
			reason: "the other end of the wire shares nothing with the provider but the shapes on it",
			never:  append(slices.Clone(program), "lookup", "livefeed", "openfence", "internal/schema", "internal/localpg", echo),
		},
		{
			from:   "reconcile",
			reason: "knowledge signs, broadcasts and pays nothing",
			never:  []string{goSDK + "/wallet", goSDK + "/transaction/broadcaster"},
		},
		{
			from:   "reconcile",
			reason: "the rules know nothing of how batches arrive",
			never:  []string{"client", "net/http"},
			except: []string{"reconcile/live", "reconcile/verify", "reconcile/packet"},
		},
		{
			from:   "reconcile/verify",
			reason: "checking evidence knows nothing of how it arrived",
			never:  []string{"client"},
		},
		{
			from:   "reconcile",
			reason: "a program with a store of its own must not have to build another",
			never:  []string{sqlite},
			except: []string{"reconcile/sqlitestore", "reconcile/packet"},
		},
		{
			from:   "reconcile",
			reason: "a program with a store of its own must not have to build another",
			never:  []string{pgx},
			except: []string{"reconcile/pgstore", "reconcile/packet"},
		},
		{
			from:   "reconcile/spend",
			reason: "selection is arithmetic on plain values",
			only:   []string{"reconcile/spend", "internal/failpoint"},
		},
		{
			from:   "testvectors",
			reason: "other modules read the vectors: they must not have to build this one",
			only:   []string{"testvectors"},
		},
		{
			from:   "internal/canon",
			reason: "strict JSON stands at the bottom",
			only:   []string{strict, curve, goSDK},
			never:  []string{"net/http", goSDK + "/transaction"},
		},
		{
			from:   "internal/wire",
			reason: "shapes and their checks: no network, no database",
			only:   []string{"internal/canon", strict, curve, goSDK, "golang.org/x/net/idna"},
			never:  []string{"net/http", goSDK + "/transaction"},
		},
		{
			from:   "internal/beef",
			reason: "the one door for BEEF opens on bytes alone",
			only:   []string{goSDK},
			never:  []string{"net/http"},
		},
		{
			from:   "internal/schema",
			reason: "migrations run before anything else of the program does",
			only:   []string{pgx, tern},
		},
		{
			from:   "internal/localpg",
			reason: "a private Postgres is a process and a folder: what runs on it is not its business",
			never:  append(slices.Clone(program), "livefeed", "lookup", "openfence", "internal/schema", echo),
		},
		{
			from:   "internal/sample",
			reason: "samples are bytes that go in by the front door, like anyone's",
			never:  append(slices.Clone(program), "livefeed", "lookup", "openfence", "client", pgx, "net/http"),
		},
		{
			from:   "internal/httpserve",
			reason: "it serves any handler",
			never:  []string{"lookup", "livefeed", "openfence", "internal/operator", "client", pgx, cobra, koanf},
		},
		{
			from:   "internal/config",
			reason: "settings are values: reading them starts nothing",
			never:  []string{"lookup", "livefeed", "openfence", "internal/operator", "client", pgx, echo},
		},
		{
			from:   "internal/operator",
			reason: "the operator API is wired by a program and sees neither its flags nor its files",
			never:  []string{"cmd/overlayd", "client", "internal/config", "internal/localpg", "internal/sample", cobra, koanf, sqlite},
		},
		{
			from:   "internal/house",
			reason: "what judges the tree must not depend on it",
			only:   []string{"internal/house"},
		},
	}
}

// direct are imports that only the named folders may make themselves.
func direct() map[string]struct {
	in     []string
	reason string
} {
	type allowed = struct {
		in     []string
		reason string
	}
	return map[string]allowed{
		goSDK + "/transaction":           {[]string{"internal/beef", "internal/sample", "reconcile/verify"}, "transactions are read in internal/beef and made in internal/sample; a chain tracker is asked in reconcile/verify"},
		cobra:                            {[]string{"cmd/overlayd"}, "flags belong to the program"},
		koanf:                            {[]string{"cmd/overlayd", "internal/config"}, "files and variables are read in one place"},
		sqlite:                           {[]string{"client/sqlitestate", "reconcile/sqlitestore"}, "SQLite is one store among others"},
		tern:                             {[]string{"internal/schema"}, "migrations have one home"},
		metrics + "/prometheus/promauto": {nil, "metrics are registered with the registry that the caller gives, never with a global one"},
	}
}

// CheckImports reports imports that run against the picture. A rule follows
// the imports of shipped files through the packages of this module, and
// reports the way it went.
func CheckImports(t *Tree) []string {
	graph := map[string][]string{} // folder -> import paths of its shipped files
	for _, f := range t.Files {
		if !f.Test {
			graph[f.Dir] = append(graph[f.Dir], f.Imports()...)
		}
	}
	for dir, imports := range graph {
		slices.Sort(imports)
		graph[dir] = slices.Compact(imports)
	}
	var wrong []string
	for _, rule := range importRules() {
		for _, dir := range t.Dirs() {
			if !within(dir, rule.from) || slices.ContainsFunc(rule.except, func(e string) bool { return within(dir, e) }) {
				continue
			}
			wrong = append(wrong, rule.follow(graph, dir)...)
		}
	}
	limits := direct()
	for _, dir := range t.Dirs() {
		for _, imported := range graph[dir] {
			for what, limit := range limits {
				if within(imported, what) && !slices.ContainsFunc(limit.in, func(d string) bool { return within(dir, d) }) {
					wrong = append(wrong, fmt.Sprintf("%s imports %s: %s", dir, imported, limit.reason))
				}
			}
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// follow walks the packages of this module from dir on and reports what the
// rule forbids.
func (r importRule) follow(graph map[string][]string, dir string) []string {
	var wrong []string
	seen := map[string]bool{dir: true}
	type step struct{ dir, way string }
	for queue := []step{{dir, dir}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, imported := range graph[at.dir] {
			target, inside := local(imported)
			way := at.way + " -> " + target
			if r.forbids(target, inside) {
				wrong = append(wrong, fmt.Sprintf("%s: %s", way, r.reason))
				continue
			}
			if inside && !seen[target] {
				seen[target] = true
				queue = append(queue, step{target, way})
			}
		}
	}
	return wrong
}

func (r importRule) forbids(target string, inside bool) bool {
	// A part of the program may always use its own folders.
	if r.from != "." && inside && within(target, r.from) {
		return false
	}
	// "log" is a rule about that package, not about log/slog below it.
	if slices.ContainsFunc(r.never, func(n string) bool { return target == n || n != "log" && within(target, n) }) {
		return true
	}
	if r.only == nil || !inside && !strings.Contains(strings.Split(target, "/")[0], ".") {
		return false
	}
	return !slices.ContainsFunc(r.only, func(o string) bool { return within(target, o) })
}

// local turns an import path into a folder of this module.
func local(imported string) (target string, inside bool) {
	if imported == Module {
		return ".", true
	}
	if rest, ok := strings.CutPrefix(imported, Module+"/"); ok {
		return rest, true
	}
	return imported, false
}

// within reports whether p is dir or lies below it.
func within(p, dir string) bool {
	return dir == "." || p == dir || strings.HasPrefix(path.Clean(p), dir+"/")
}
