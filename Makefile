# overlayd: everything a contributor runs. `make help` lists it.

GO ?= go
# Packages to work on: make test PKG=./livefeed/...
PKG ?= ./...
# More flags for go test: make test TESTFLAGS='-run TestL1_ -v -count=1'
TESTFLAGS ?=
# How long each fuzz target runs, and which: make fuzz FUZZTIME=10s FUZZ=BEEF
FUZZTIME ?= 60s
FUZZ ?=
# How often make race runs every test on each number of processors.
RACECOUNT ?= 3
# How many operations make model checks, and the seed of its first case (0 draws one): make model MODELSTEPS=500000
MODELSTEPS ?= 50000
MODELSEED ?= 0
# How long make soak measures, after half a minute that it does not: make soak SOAKTIME=30s
SOAKTIME ?= 3m
# How long make crash plays (builds come on top), the seed that chooses the scenarios of a short run (0 draws one), and scenarios to
# play alone, by a pattern of their names: make crash CRASH='full disk'
CRASHTIME ?= 7m
CRASHSEED ?= 0
CRASH ?=
# How often make kills kills at each point, and how many outputs make bench-reconcile retains besides 1 k and 100 k.
KILLS ?= 20
RETAINED ?= 0
# How long make fleet kills nodes, how many followers make herd has, and how many polls make idle.
FLEETTIME ?= 2m
HERD ?= 2000
IDLE ?= 10000
# How many rows the sessions of make memory scan, and how many groups are committed beside its slow readers.
MEMORYROWS ?= 1000000
MEMORYGROUPS ?= 10000
# Flags of make bench-compare: COMPAREFLAGS='-readers 1,100 -shared 10 -html /tmp/compare.html'
COMPAREFLAGS ?=
# Which benchmarks: make bench BENCH=Append
BENCH ?= .

# A private Postgres for the run, unless one is given; stopped at its end.
# These are built, not `go run`: a signal must reach the program itself.
WITHPG = bin/withpg --
GOTEST = bin/gotest

.DEFAULT_GOAL := help
.PHONY: help build run test test-modules race fuzz model soak crash kills fleet herd idle memory shuffle vectors bench bench-fences bench-reconcile bench-timers bench-brc104 bench-compare interop-deps lint fmt conformance compose-check clean tools check-go check-postgres

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: check-go ## build bin/overlayd (the Dockerfile builds a static one)
	$(GO) build -o bin/overlayd ./cmd/overlayd

run: check-go ## run a whole provider on this machine (overlayd dev)
	$(GO) run ./cmd/overlayd dev

test: tools check-postgres ## run every test, with the race detector, on a private Postgres
	$(WITHPG) $(GOTEST) -ran bin/ran -race -timeout 20m $(TESTFLAGS) $(PKG)
	$(if $(filter ./...,$(PKG)),$(GO) run ./internal/house/cmd/conformance $(if $(findstring -run,$(TESTFLAGS))$(findstring -skip,$(TESTFLAGS)),-race,-ran bin/ran))
	$(if $(filter ./...,$(PKG)),@echo "The tests of modules of their own (bench/compare) are run by make test-modules.")

test-modules: check-go ## vet and test the modules of their own (bench/brc104, bench/compare; needs the network once)
	cd bench/brc104 && $(GO) vet ./...
	cd bench/compare && $(GO) vet ./... && $(GO) test -race -count=1 ./...

race: tools check-postgres ## run every test again and again (RACECOUNT) on 1, 2 and 4 processors
	$(WITHPG) $(GOTEST) -race -timeout 30m -cpu 1,2,4 -count $(RACECOUNT) $(TESTFLAGS) $(PKG)

fuzz: check-go ## run every fuzz target for FUZZTIME (60s) and print a table
	$(GO) run ./internal/house/cmd/fuzz -time $(FUZZTIME) -only '$(FUZZ)'

model: tools check-postgres ## drive the provider at random beside a model of it, MODELSTEPS operations
	$(WITHPG) $(GO) test ./internal/model -run Model -count=1 -v -timeout 6h $(TESTFLAGS) -args -modelsteps=$(MODELSTEPS) -modelseed=$(MODELSEED)

soak: check-go check-postgres ## run writers, sessions and compaction for SOAKTIME (3m): what is stored must not grow
	$(GO) run ./internal/soak/cmd/soak -time $(SOAKTIME)

crash: check-go check-postgres ## kill overlayd and Postgres at the worst moments, and judge what was promised (CRASHTIME=60s: a part of it)
	$(GO) test -tags crash -run '^TestLab$$' -count=1 -timeout 30m -v ./internal/crash -lab.time $(CRASHTIME) -lab.seed $(CRASHSEED) -lab.only '$(CRASH)'

kills: tools check-postgres ## kill a reconciling follower at each of its commits, KILLS times on each store, and judge its store
	$(WITHPG) $(GO) test -tags failpoint -run '^TestR7_C3_KillTable$$' -count=1 -parallel 6 -timeout 60m -v ./reconcile/live -args -kills $(KILLS)

fleet: tools check-postgres ## kill one of three nodes every 10 s for FLEETTIME (2m) under writers and followers, and judge what these hold
	$(WITHPG) $(GO) test -run '^TestN3_NodesAreKilledUnderLoad$$' -count=1 -timeout 60m -v ./internal/fleet \
		-args -fleet.time $(FLEETTIME) -fleet.every 10s -fleet.followers 200 -fleet.writers 8 -fleet.pause 1s -fleet.shelves 19

herd: tools check-postgres ## kill the only node under HERD (2000) followers: how they come back, and what the database is asked
	$(WITHPG) $(GO) test -run '^TestN3_AHerdComesBack$$' -count=1 -timeout 60m -v ./internal/fleet -args -herd.followers $(HERD) -herd.shelves 49

idle: tools check-postgres ## keep IDLE (10000) signed polls waiting for 20 s: memory, processor and statements (ulimit -n above IDLE)
	$(WITHPG) $(GO) test -run '^TestN7_IdlePolls$$' -count=1 -timeout 90m -v ./internal/fleet \
		-args -idle.waiters $(IDLE) -idle.wait 25s -idle.time 20s -idle.ramp 4s

memory: tools check-postgres ## scan MEMORYROWS (1000000) rows in 16 sessions, then commit beside 100 readers of a byte a second: resident memory
	$(WITHPG) $(GO) test -run '^TestN8_' -count=1 -parallel 1 -timeout 3h -v ./internal/fleet -args -memory.rows $(MEMORYROWS) \
		-memory.groups $(MEMORYGROUPS) -memory.readers 100 -memory.bodies 128 -memory.ratio 0.9

shuffle: check-go ## verify 1000 random histories in 20 orders of work each, with restarts: all must end alike
	$(GO) test -run '^TestR3_Shuffle$$' -count=1 -timeout 90m -v ./reconcile/shuffle -args -histories 1000 -orders 20

vectors: check-go ## write testvectors/reconcile anew
	$(GO) run ./internal/sample/cmd/vectors -w

bench: tools check-postgres ## run the benchmarks, on a private Postgres that flushes its commits
	bin/withpg -durable -- $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 30m $(TESTFLAGS) $(PKG)

bench-fences: tools check-postgres ## compare Opens beside 0, 1 M and 10 M fences: the buffers they touch may not grow
	$(WITHPG) $(GO) test -run '^$$' -bench OpenFences -benchtime 1x -timeout 60m ./lookup -args -fences 10000000

bench-reconcile: tools check-postgres ## what receipt, acceptance and one change cost on SQLite and Postgres, beside 1 k, 100 k and RETAINED outputs
	$(WITHPG) $(GO) test -p 1 -run '^$$' -bench Reconcile -benchtime 20x -timeout 1h ./reconcile/sqlitestore ./reconcile/pgstore
	$(WITHPG) $(GO) test -run '^$$' -bench Reconcile -benchtime 60x -timeout 4h ./reconcile/storetest -args -retained $(RETAINED)
	$(GO) test -run '^$$' -bench ScriptChecks -benchtime 20s -count 3 ./reconcile/verify

bench-timers: tools check-postgres ## let 100 k timers fall due at once beside readers
	$(WITHPG) $(GO) test -run '^$$' -bench TimersDueAtOnce -benchtime 1x -timeout 60m ./lookup -args -timers 100000

bench-brc104: check-go ## compare signed requests with the official middleware (a module of its own; needs the network once)
	cd bench/brc104 && $(GO) run . -check

bench-compare: check-go check-postgres ## compare delivery to 1, 100 and 500 readers with etcd's watch (a module of its own; needs the network once)
	cd bench/compare && $(GO) run . $(COMPAREFLAGS)

interop-deps: ## install what the tests with Node and Chromium drive (interop/node)
	npm ci --prefix interop/node --no-audit --no-fund --loglevel=error

lint: check-go ## gofmt, go vet, staticcheck, go mod tidy: report only, change nothing
	@unformatted=$$(gofmt -l $$($(GO) list -f '{{.Dir}}' ./...)); \
	if [ -n "$$unformatted" ]; then echo "gofmt would change (make fmt):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff
	$(GO) mod verify

fmt: check-go ## format the Go files
	gofmt -w $$($(GO) list -f '{{.Dir}}' ./...)

conformance: check-go ## write the columns of tests in docs/conformance.md
	$(GO) run ./internal/house/cmd/conformance -w

compose-check: ## check docker-compose.yml without an engine
	@if command -v docker-compose >/dev/null 2>&1; then compose=docker-compose; \
	elif docker compose version >/dev/null 2>&1; then compose='docker compose'; \
	else echo "make compose-check needs docker-compose (Debian: apt-get install docker-compose)" >&2; exit 1; fi; \
	$$compose -f docker-compose.yml config -q && echo "docker-compose.yml is fine ($$compose)"

clean: ## remove what was built
	rm -rf bin

tools: check-go
	@$(GO) build -o bin/ ./internal/pgtest/cmd/withpg ./internal/house/cmd/gotest

check-go:
	@command -v $(GO) >/dev/null 2>&1 || { echo "Go is missing: install the version that go.mod names, or a newer one" >&2; exit 1; }

# A server is looked for in the same places as overlayd dev does. Without one,
# a copy is downloaded, which needs the network: say so before it happens.
check-postgres:
	@if [ -z "$$OVERLAYD_TEST_DATABASE_URL$$OVERLAYD_DATABASE_URL" ] && ! command -v initdb >/dev/null 2>&1 \
		&& ! ls /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb /usr/local/opt/postgresql*/bin/initdb /opt/homebrew/opt/postgresql*/bin/initdb >/dev/null 2>&1 \
		&& ! { command -v pg_config >/dev/null 2>&1 && [ -x "$$(pg_config --bindir)/initdb" ]; }; then \
		echo "No Postgres server was found (Debian: apt-get install postgresql; macOS: brew install postgresql): one will be downloaded for the tests." >&2; \
	fi
