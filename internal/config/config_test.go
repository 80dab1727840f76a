package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// complete is a configuration serve would take.
const complete = `
baseURL: https://overlay.example.com/api
plainListener: true
chain:
  network: main
  genesisHash: "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"
identity: {keyFile: identity.key}
operator: {tokenFile: operator.token}
database: {url: "postgres://u:hush@db.example.com/overlay?sslmode=verify-full"}
services:
  - name: ls_catalogue
    feed: catalogue
    rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [artist, genre]}}
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "overlayd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// faults are the sentences of a joined error.
func faults(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestLayersWinInOrderAndRememberWhereFrom(t *testing.T) {
	t.Parallel()
	path := write(t, complete+"listen: 127.0.0.1:1\nmanifestSeconds: 60\ncors: {origins: [https://a.example]}\nshutdownSeconds: 7\n")
	l, err := Load(Input{
		Command:  "dev",
		Defaults: map[string]any{"listen": "127.0.0.1:9", "localDevelopment": true, "operator.listen": "127.0.0.1:10"},
		File:     path,
		Environ: []string{
			"OVERLAYD_MANIFESTSECONDS=61", "OVERLAYD_SHUTDOWNSECONDS=8", "HOME=/nowhere", "OVERLAYD_DATABASE_MAXCONNECTIONS=9",
			"OVERLAYD_CORS_ORIGINS=https://b.example, https://c.example", "OVERLAYD_LOG_LEVEL=", "OVERLAYD_CONFIG=x",
		},
		Foreign: []string{"CONFIG"},
		Flags:   map[string]Flag{"shutdownSeconds": {"shutdown", "9"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key       string
		got, want any
		origin    Origin
	}{
		{"operator.listen", l.Operator.Listen, "127.0.0.1:10", "default of dev"},
		{"localDevelopment", l.LocalDevelopment, true, "default of dev"},
		{"listen", l.Listen, "127.0.0.1:1", Origin("file " + path)},
		{"manifestSeconds", l.ManifestSeconds, uint64(61), "environment OVERLAYD_MANIFESTSECONDS"},
		{"database.maxConnections", l.Database.MaxConnections, uint32(9), "environment OVERLAYD_DATABASE_MAXCONNECTIONS"},
		{"database.writerConnections", l.Database.WriterConnections, uint32(6), "default"},
		{"shutdownSeconds", l.ShutdownSeconds, uint64(9), "flag --shutdown"},
		{"log.level", l.Log.Level, "info", "default"},
		{"cors.origins", strings.Join(l.CORS.Origins, "|"), "https://b.example|https://c.example", "environment OVERLAYD_CORS_ORIGINS"},
	} {
		if c.got != c.want || l.Origin(c.key) != c.origin {
			t.Errorf("%s = %v from %q, want %v from %q", c.key, c.got, l.Origin(c.key), c.want, c.origin)
		}
	}
	s := l.Services[0]
	if s.Name != "ls_catalogue" || s.Feed != "catalogue" || s.Authentication != "none" || s.Access != "open" || s.SessionSeconds != 86400 ||
		s.ReplaySeconds != 3600 || s.MaxRequestBytes != 1048576 || s.MaxResponseBytes != 4194304 || s.MaxObservations != 1024 || s.MaxWaitMs != 25000 {
		t.Errorf("service %+v has other defaults than the contract's", s)
	}
	if p, err := s.Rules.ParametersJSON(); err != nil || string(p) != `{"attributes":["artist","genre"]}` {
		t.Errorf("parameters %s, %v", p, err)
	}
	if err := l.Validate(); err != nil {
		t.Errorf("a complete configuration is refused: %v", err)
	}
}

func TestFeedFollowsTheName(t *testing.T) {
	t.Parallel()
	l, err := Load(Input{File: write(t, "feeds: [{name: spare}]\nservices: [{name: ls_a}, {name: ls_b, feed: shared}, {name: ls_c, feed: shared}]")})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(l.FeedNames(), " "); got != "ls_a shared spare" {
		t.Errorf("feeds %q", got)
	}
}

func TestG1_WhatNobodyKnowsIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file    string
		environ []string
		flags   map[string]Flag
		want    []string // one a fault, each a part of it
	}{
		"unknown keys, all of them": {
			file: "colour: blue\nbaseUrl: x\noperator: {port: 1}\nservices:\n  - name: a\n    sesionSeconds: 5\n",
			want: []string{"baseUrl is not a setting; write baseURL", "colour is not a setting", "operator.port is", "services[0].sesionSeconds is not"},
		},
		"a dotted key":         {file: "chain.network: main\n", want: []string{"chain.network is not a setting"}},
		"text for a number":    {file: "manifestSeconds: soon\n", want: []string{"manifestSeconds must be a whole number"}},
		"a fraction":           {file: "manifestSeconds: 1.5\n", want: []string{"manifestSeconds must be a whole number"}},
		"below zero":           {file: "services: [{maxWaitMs: -1}]\n", want: []string{"services[0].maxWaitMs must be a whole number from 0 to 4294967295"}},
		"above 32 bits":        {file: "services: [{maxWaitMs: 4294967296}]\n", want: []string{"services[0].maxWaitMs must be"}},
		"a number for text":    {file: "chain: {genesisHash: 0000}\n", want: []string{"chain.genesisHash must be text; put it in quotes"}},
		"no value":             {file: "services:\n", want: []string{"services has no value"}},
		"a rate that is none":  {file: "quotas: {opensPerSecond: .inf, serviceOpensPerSecond: fast}\n", want: []string{"quotas.opensPerSecond must be a number", "quotas.serviceOpensPerSecond must be a number"}},
		"a rate in a variable": {environ: []string{"OVERLAYD_QUOTAS_OPENSPERSECOND=NaN"}, want: []string{"OVERLAYD_QUOTAS_OPENSPERSECOND is \"NaN\": write a number"}},
		"an object for a list": {file: "services: {name: a}\n", want: []string{"services must be a list"}},
		"a text for an object": {file: "chain: main\n", want: []string{"chain must hold settings"}},
		"a word for a truth":   {file: "localDevelopment: maybe\n", want: []string{"localDevelopment must be true or false"}},
		"a date in parameters": {file: "services: [{rules: {parameters: {a: [{b: 2001-01-01}]}}}]\n", want: []string{"services[0].rules.parameters.a[0].b is nothing JSON"}},
		"a private key":        {file: "identity: {key: abc}\n", want: []string{"identity.key does not belong in a file that others may read; set OVERLAYD_IDENTITY_KEY"}},
		"a key twice":          {file: "listen: a\nlisten: b\n", want: []string{"already defined"}},
		"no YAML":              {file: "{", want: []string{"cannot be read"}},
		"variables": {
			environ: []string{"OVERLAYD_BASE_URL=x", "OVERLAYD_MANIFESTSECONDS=soon", "OVERLAYD_SERVICES=x", "OVERLAYD_LOCALDEVELOPMENT=yes"},
			want: []string{"variable OVERLAYD_BASE_URL is not", "OVERLAYD_MANIFESTSECONDS is \"soon\": write a whole number",
				"variable OVERLAYD_SERVICES is not", "OVERLAYD_LOCALDEVELOPMENT is \"yes\": write true or false"},
		},
		"what an orchestrator sets": {environ: []string{"OVERLAYD_SERVICE_HOST=10.0.0.1", "OVERLAYD_PORT=tcp://10.0.0.1:80", "OVERLAYD_PORT_80_TCP=x", "OVERLAYD_TEST_DATABASE_URL=x"}},
		"a flag":                    {flags: map[string]Flag{"manifestSeconds": {"manifest", "-3"}}, want: []string{"--manifest is \"-3\": write a whole number"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{Environ: c.environ, Flags: c.flags}
			if c.file != "" {
				in.File = write(t, c.file)
			}
			_, err := Load(in)
			got := faults(err)
			if name == "a key twice" || name == "no YAML" { // the parser's own words
				if err == nil || !strings.Contains(err.Error(), c.want[0]) {
					t.Errorf("error %v", err)
				}
				return
			}
			if len(got) != len(c.want) {
				t.Fatalf("faults %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("fault %q does not say %q", got[i], want)
				}
			}
		})
	}
	if _, err := Load(Input{File: filepath.Join(t.TempDir(), "none.yaml")}); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestH12_WhatCannotBeServedIsRefusedWithOneSentenceEach(t *testing.T) {
	t.Parallel()
	change := func(old, new string) string { return strings.Replace(complete, old, new, 1) }
	service := func(more string) string { return complete + "    " + more + "\n" }
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"complete":                      {complete, nil},
		"no base":                       {change("baseURL: https://overlay.example.com/api", ""), []string{"baseURL is missing"}},
		"http":                          {change("https://overlay.example.com/api", "http://127.0.0.1:8080"), []string{"is plain http; use https, or set localDevelopment: true"}},
		"http on a development machine": {change("https://overlay.example.com/api", "http://127.0.0.1:8080") + "localDevelopment: true\n", nil},
		"not canonical":                 {change("https://overlay.example.com/api", "https://overlay.example.com:443/api/"), []string{"write https://overlay.example.com/api"}},
		"not a base":                    {change("https://overlay.example.com/api", "https://overlay.example.com/a?b"), []string{"baseURL https://overlay.example.com/a?b is not usable"}},
		"plain listener":                {change("plainListener: true", ""), []string{"set plainListener: true"}},
		"tls":                           {change("plainListener: true", "tls: {certFile: a, keyFile: b}"), nil},
		"half of tls":                   {change("plainListener: true", "tls: {certFile: a}"), []string{"set both tls.certFile and tls.keyFile"}},
		"tls and plain":                 {complete + "tls: {certFile: a, keyFile: b}\n", []string{"plainListener and tls contradict each other"}},
		"tls and http": {change("https://overlay.example.com/api\nplainListener: true", "http://127.0.0.1:8080\ntls: {certFile: a, keyFile: b}") + "localDevelopment: true\n",
			[]string{"baseURL is http but listen speaks TLS"}},
		"no chain":     {change("network: main", "network: ''"), []string{"chain.network is missing"}},
		"bad genesis":  {change("26f\"", "26F\""), []string{"chain.genesisHash is not a block hash"}},
		"volatile key": {change("keyFile: identity.key", ""), []string{"identity.keyFile is missing"}},
		"no token":     {change("tokenFile: operator.token", ""), []string{"operator.tokenFile is missing"}},
		"no database":  {change(`url: "postgres://u:hush@db.example.com/overlay?sslmode=verify-full"`, ""), []string{"database.url is missing"}},
		"small pools":  {change("database: {", "database: {maxConnections: 3, writerConnections: 2, "), []string{"database.maxConnections is 3; set it to 4..1000", "database.writerConnections is 2"}},
		"limits": {change("database: {", "database: {pollMs: 9, ") + "limits: {queueBytes: 1, scanRows: 1, scanBytes: 1}\n",
			[]string{"database.pollMs is 9; set it to 10..60000 milliseconds", "limits.queueBytes is 1", "limits.scanRows is 1", "limits.scanBytes is 1"}},
		"limits of the tail": {complete + "limits: {tailGroups: 65537, tailBytes: 1073741825}\n",
			[]string{"limits.tailGroups is 65537; set it to 0..65536", "limits.tailBytes is 1073741825; set it to 0..1073741824 bytes"}},
		"no tail":                         {complete + "limits: {tailGroups: 0, tailBytes: 0}\n", nil},
		"retention":                       {complete + "retention: {everySeconds: 3601}\n", []string{"retention.everySeconds is 3601; set it to 0..3600 seconds"}},
		"retention by others":             {complete + "retention: {everySeconds: 0}\n", nil},
		"manifestSeconds zero":            {complete + "manifestSeconds: 0\n", []string{"manifestSeconds is 0; set it to 1..31536000 seconds"}},
		"shutdownSeconds zero":            {complete + "shutdownSeconds: 0\n", []string{"shutdownSeconds is 0"}},
		"one port twice":                  {complete + "listen: 127.0.0.1:8081\n", []string{"listen and operator.listen are both"}},
		"no port":                         {complete + "listen: localhost\n", []string{`listen "localhost" is no address`}},
		"origins":                         {complete + "cors: {origins: ['*', 'https://a.example/', 'https://a.example:8443']}\n", []string{`cors.origins[0] "*"`, `cors.origins[1] "https://a.example/"`}},
		"proxies":                         {complete + "trustedProxies: [10.0.0.0/8, '::1', proxy.example]\n", []string{`trustedProxies[2] "proxy.example"`}},
		"log":                             {complete + "log: {level: loud, format: pretty}\n", []string{`log.level is "loud"`, `log.format is "pretty"`}},
		"feeds twice, one without a name": {complete + "feeds: [{name: a}, {name: a}, {name: .b}]\n", []string{"feeds[1].name a is listed twice", `feeds[2].name ".b"`}},
		"no services":                     {complete[:strings.Index(complete, "services:")], []string{"services holds 0 entries"}},
		"services twice":                  {complete + "  - {name: ls_catalogue, rules: {id: 'urn:x'}}\n", []string{"services[1] (ls_catalogue): the name is used twice"}},
		"brc103":                          {service("authentication: brc103"), nil},
		"brc103 with a list":              {service("authentication: brc103\n    access: list\n    hidden: true"), nil},
		"brc103 with another access":      {service("authentication: brc103\n    access: members"), []string{`access "members" is unknown; set it to open or list`}},
		"unknown authentication":          {service("authentication: basic"), []string{`authentication "basic" is unknown; set it to none or brc103`}},
		"list without brc103":             {service("access: list"), []string{`access "list" needs authentication: brc103`}},
		"hidden without brc103":           {service("hidden: true"), []string{"hidden needs authentication: brc103"}},
		"no rules":                        {change(`id: "urn:overlayd:rules:attributes:1", `, ""), []string{"rules.id is missing"}},
		"spans":                           {service("sessionSeconds: 0\n    replaySeconds: 0"), []string{"sessionSeconds is 0", "replaySeconds is 0"}},
		"a few seconds":                   {service("sessionSeconds: 1\n    replaySeconds: 1") + "manifestSeconds: 2\n", nil},
		"maxima too small": {
			service("maxRequestBytes: 4095\n    maxResponseBytes: 65535\n    maxObservations: 0\n    maxWaitMs: 0"),
			[]string{"maxRequestBytes is 4095; set it to 4096..1048576 bytes", "maxResponseBytes is 65535; set it to 65536..4194304 bytes", "maxObservations is 0; set it to 1..1024"},
		},
		"maxima too large": {
			service("maxRequestBytes: 1048577\n    maxResponseBytes: 4194305\n    maxObservations: 1025\n    maxWaitMs: 25001"),
			[]string{"maxRequestBytes is 1048577", "maxResponseBytes is 4194305", "maxObservations is 1025", "maxWaitMs is 25001; set it to 0..25000 milliseconds"},
		},
		"the least maxima": {service("maxRequestBytes: 4096\n    maxResponseBytes: 65536\n    maxObservations: 1\n    maxWaitMs: 0"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := Load(Input{File: write(t, c.file)})
			if err != nil {
				t.Fatal(err)
			}
			got := faults(l.Validate())
			if len(got) != len(c.want) {
				t.Fatalf("faults %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("fault %q does not say %q", got[i], want)
				}
			}
		})
	}
}

func TestG3_PrintedConfigurationIsInForceAndHoldsNoSecret(t *testing.T) {
	t.Parallel()
	path := write(t, complete)
	l, err := Load(Input{File: path, Environ: []string{"OVERLAYD_LISTEN=127.0.0.1:5"}, Flags: map[string]Flag{"log.level": {"log-level", "warn"}}})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := l.WriteYAML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"listen: 127.0.0.1:5 # environment OVERLAYD_LISTEN\n",
		"  level: warn # flag --log-level\n",
		"baseURL: https://overlay.example.com/api # file " + path + "\n",
		"  url: postgres://u:xxxxx@db.example.com/overlay?sslmode=verify-full # file " + path + "\n",
		"manifestSeconds: 86400 # default\n",
		"    maxWaitMs: 25000 # default\n",
		"    feed: catalogue # file " + path + "\n",
		"trustedProxies: [] # default\n",
		"stateFile: \"\" # default\n",
		"  everySeconds: 30 # default\n",
		"  opensPerSecond: 20 # default\n",
		"  sessionsPerClient: 256 # default\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "hush") {
		t.Errorf("the password is printed:\n%s", text)
	}
	if strings.Contains(text, " key:") {
		t.Errorf("a key that is not set is printed:\n%s", text)
	}
	// What is printed is a file that means the same.
	again, err := Load(Input{File: write(t, strings.Replace(text, "xxxxx", "hush", 1))})
	if err != nil {
		t.Fatal(err)
	}
	var second strings.Builder
	if err := again.WriteYAML(&second); err != nil {
		t.Fatal(err)
	}
	strip := func(s string) string {
		var b strings.Builder
		for line := range strings.Lines(s) {
			line, _, _ = strings.Cut(line, " #")
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
		return b.String()
	}
	if strip(second.String()) != strip(text) {
		t.Errorf("printed and read again:\n%s\nwas\n%s", second.String(), text)
	}
}

func TestG3_Redacted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:p%40ss@h/db":                     "postgres://u:xxxxx@h/db",
		"postgres://u@h/db?password=x&sslmode=disable": "postgres://u@h/db?password=xxxxx&sslmode=disable",
		"host=h password='a b' user=u":                 "host=h password=xxxxx user=u",
		"host=h PASSWORD = x sslpassword=y":            "host=h PASSWORD = xxxxx sslpassword=xxxxx",
		"":                                             "",
	} {
		if got := Redacted(in); got != want {
			t.Errorf("Redacted(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestG3_AnIdentityKeyComesFromTheEnvironmentAndIsMasked(t *testing.T) {
	t.Parallel()
	path := write(t, strings.Replace(complete, "identity: {keyFile: identity.key}\n", "", 1))
	l, err := Load(Input{File: path, Environ: []string{"OVERLAYD_IDENTITY_KEY=hush"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Validate(); err != nil || l.Identity.Key != "hush" {
		t.Errorf("key %q, %v", l.Identity.Key, err)
	}
	var b strings.Builder
	if err := l.WriteYAML(&b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Contains(strings.ReplaceAll(text, "u:hush@", ""), "hush") ||
		!strings.Contains(text, "  key: xxxxx # environment OVERLAYD_IDENTITY_KEY\n") {
		t.Errorf("printed:\n%s", text)
	}
}
