package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
)

const (
	testHex      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	testID       = "abcDEF012345_-67"
	openText     = `{"version":1,"requestId":"abcDEF012345_-67","service":"ls_a","query":{"match":{"artist":"x"}},"limits":{"maxBytes":65536,"maxObservations":1,"waitMs":0}}`
	readText     = `{"version":1,"session":"s","cursor":"c","limits":{"maxBytes":1,"maxObservations":1,"waitMs":0}}`
	closeText    = `{"version":1,"session":"s"}`
	limitsText   = `"limits":{"maxBytes":65536,"maxObservations":1,"waitMs":0}`
	criticalText = `"extensions":{"urn:x:1":1},"critical":["urn:x:1"]`
)

// with replaces one part of a text that must be there.
func with(t testing.TB, text, old, replacement string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is not once in %q", old, text)
	}
	return strings.Replace(text, old, replacement, 1)
}

// also adds members to an object text.
func also(text, members string) string { return strings.TrimSuffix(text, "}") + "," + members + "}" }

func wantCode(t testing.TB, name string, err error, want Code) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: accepted, want %s", name, want)
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Errorf("%s: %T is not a *wire.Error: %v", name, err, err)
		return
	}
	if e.Code != want {
		t.Errorf("%s: %v, want %s", name, e, want)
	}
	if e.Message == "" || len(e.Message) > 200 || e.Retryable {
		t.Errorf("%s: public part %+v", name, e)
	}
}

var parsers = map[string]struct {
	text  string
	parse func([]byte) error
}{
	"open":  {openText, func(b []byte) error { _, err := ParseOpen(b); return err }},
	"read":  {readText, func(b []byte) error { _, err := ParseRead(b); return err }},
	"close": {closeText, func(b []byte) error { _, err := ParseClose(b); return err }},
}

// What is wrong with any request, whichever it is.
func TestH1_MalformedEverywhere(t *testing.T) {
	t.Parallel()
	for kind, p := range parsers {
		if err := p.parse([]byte(p.text)); err != nil {
			t.Fatalf("%s: the good one: %v", kind, err)
		}
		for name, text := range map[string]string{
			"empty":                     "",
			"null":                      "null",
			"array":                     "[" + p.text + "]",
			"string":                    `"x"`,
			"number":                    "1",
			"empty object":              "{}",
			"byte order mark":           "\ufeff" + p.text,
			"trailing data":             p.text + "{}",
			"cut":                       p.text[:len(p.text)-1],
			"bad utf-8":                 with(t, p.text, `"version":1`, "\"version\":1,\"\xff\":1"),
			"duplicate key":             with(t, p.text, `"version":1`, `"version":1,"version":1`),
			"duplicate key, escaped":    with(t, p.text, `"version":1`, `"version":1,"\u0076ersion":1`),
			"unknown key":               also(p.text, `"x":1`),
			"unknown key in other case": also(p.text, `"Version":1`),
			"unknown key __proto__":     also(p.text, `"__proto__":{}`),
			"version missing":           with(t, p.text, `"version":1,`, ``),
			"version 2":                 with(t, p.text, `"version":1`, `"version":2`),
			"version 0":                 with(t, p.text, `"version":1`, `"version":0`),
			"version string":            with(t, p.text, `"version":1`, `"version":"1"`),
			"version fraction":          with(t, p.text, `"version":1`, `"version":1.5`),
			"version true":              with(t, p.text, `"version":1`, `"version":true`),
			"version null":              with(t, p.text, `"version":1`, `"version":null`),
			"version array":             with(t, p.text, `"version":1`, `"version":[1]`),
			"infinite number":           with(t, p.text, `"version":1`, `"version":1e309`),
			"lone surrogate":            with(t, p.text, `"version":1`, `"version":1,"\ud800":1`),
		} {
			wantCode(t, kind+": "+name, p.parse([]byte(text)), Invalid)
		}
		for _, spelling := range []string{"1.0", "1e0", "100e-2", "0.1e1"} {
			text := with(t, p.text, `"version":1`, `"version":`+spelling)
			if err := p.parse([]byte(text)); err != nil {
				t.Errorf("%s: version %s: %v", kind, spelling, err)
			}
		}
	}
}

func TestH1_MalformedOpen(t *testing.T) {
	t.Parallel()
	id := `"requestId":"` + testID + `"`
	service := `"service":"ls_a"`
	query := `"query":{"match":{"artist":"x"}}`
	for name, text := range map[string]string{
		"request id missing":           with(t, openText, id+",", ""),
		"request id of 15":             with(t, openText, testID, testID[:15]),
		"request id of 129":            with(t, openText, testID, strings.Repeat("a", 129)),
		"request id with a space":      with(t, openText, testID, testID[:15]+" "),
		"request id with a dot":        with(t, openText, testID, testID[:15]+"."),
		"request id with a plus":       with(t, openText, testID, testID[:15]+"+"),
		"request id with é":            with(t, openText, testID, testID+"é"),
		"request id with NUL":          with(t, openText, testID, testID+`\u0000`),
		"request id number":            with(t, openText, id, `"requestId":1234567890123456`),
		"request id null":              with(t, openText, id, `"requestId":null`),
		"service missing":              with(t, openText, service+",", ""),
		"service empty":                with(t, openText, service, `"service":""`),
		"service of 1025":              with(t, openText, service, `"service":"`+strings.Repeat("a", 1025)+`"`),
		"service number":               with(t, openText, service, `"service":1`),
		"service null":                 with(t, openText, service, `"service":null`),
		"query missing":                with(t, openText, query+",", ""),
		"query with a fraction":        with(t, openText, query, `"query":{"a":[0.5]}`),
		"query with an unsafe integer": with(t, openText, query, `"query":{"a":[{"b":9007199254740992}]}`),
		"query with a duplicate":       with(t, openText, query, `"query":{"a":1,"\u0061":1}`),
		"limits missing":               with(t, openText, ","+limitsText, ""),
		"limits null":                  with(t, openText, limitsText, `"limits":null`),
		"limits array":                 with(t, openText, limitsText, `"limits":[65536,1,0]`),
		"limits unknown key":           with(t, openText, `"waitMs":0`, `"waitMs":0,"x":0`),
		"limits missing key":           with(t, openText, `,"waitMs":0`, ``),
		"maxBytes zero":                with(t, openText, `"maxBytes":65536`, `"maxBytes":0`),
		"maxBytes negative zero":       with(t, openText, `"maxBytes":65536`, `"maxBytes":-0`),
		"maxBytes negative":            with(t, openText, `"maxBytes":65536`, `"maxBytes":-1`),
		"maxBytes above U32":           with(t, openText, `"maxBytes":65536`, `"maxBytes":4294967296`),
		"maxBytes fraction":            with(t, openText, `"maxBytes":65536`, `"maxBytes":65536.5`),
		"maxBytes string":              with(t, openText, `"maxBytes":65536`, `"maxBytes":"65536"`),
		"maxBytes null":                with(t, openText, `"maxBytes":65536`, `"maxBytes":null`),
		"maxBytes unsafe":              with(t, openText, `"maxBytes":65536`, `"maxBytes":9007199254740993`),
		"maxObservations zero":         with(t, openText, `"maxObservations":1`, `"maxObservations":0`),
		"waitMs negative":              with(t, openText, `"waitMs":0`, `"waitMs":-1`),
		"waitMs fraction":              with(t, openText, `"waitMs":0`, `"waitMs":0.1`),
		"digest empty":                 also(openText, `"requiredRulesDigest":""`),
		"digest null":                  also(openText, `"requiredRulesDigest":null`),
		"digest upper case":            also(openText, `"requiredRulesDigest":"`+strings.ToUpper(testHex)+`"`),
		"digest short":                 also(openText, `"requiredRulesDigest":"`+testHex[:63]+`"`),
		"extensions null":              also(openText, `"extensions":null`),
		"extensions array":             also(openText, `"extensions":[]`),
		"extension name relative":      also(openText, `"extensions":{"x":1}`),
		"extension name empty":         also(openText, `"extensions":{"":1}`),
		"extension name too long":      also(openText, `"extensions":{"urn:`+strings.Repeat("a", 1021)+`":1}`),
		"extension with a fraction":    also(openText, `"extensions":{"urn:x:1":[0.5]}`),
		"critical null":                also(openText, `"critical":null`),
		"critical object":              also(openText, `"critical":{}`),
		"critical without extensions":  also(openText, `"critical":["urn:x:1"]`),
		"critical absent from them":    also(openText, `"extensions":{"urn:x:1":1},"critical":["urn:x:2"]`),
		"critical twice":               also(openText, `"extensions":{"urn:x:1":1},"critical":["urn:x:1","urn:x:1"]`),
		"critical number":              also(openText, `"extensions":{"urn:x:1":1},"critical":[1]`),
		"invalid before unsupported":   also(with(t, openText, `"waitMs":0`, `"waitMs":-1`), criticalText),
	} {
		_, err := ParseOpen([]byte(text))
		wantCode(t, name, err, Invalid)
	}
}

func TestH1_MalformedReadAndClose(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"session missing":   with(t, readText, `"session":"s",`, ``),
		"session empty":     with(t, readText, `"session":"s"`, `"session":""`),
		"session of 1025":   with(t, readText, `"session":"s"`, `"session":"`+strings.Repeat("é", 512)+`x"`),
		"session number":    with(t, readText, `"session":"s"`, `"session":1`),
		"cursor missing":    with(t, readText, `"cursor":"c",`, ``),
		"cursor empty":      with(t, readText, `"cursor":"c"`, `"cursor":""`),
		"cursor of 1025":    with(t, readText, `"cursor":"c"`, `"cursor":"`+strings.Repeat("a", 1025)+`"`),
		"cursor null":       with(t, readText, `"cursor":"c"`, `"cursor":null`),
		"limits zero":       with(t, readText, `"maxBytes":1`, `"maxBytes":0`),
		"observations zero": with(t, readText, `"maxObservations":1`, `"maxObservations":0`),
		"extensions":        also(readText, `"extensions":{}`),
		"critical":          also(readText, `"critical":[]`),
	} {
		_, err := ParseRead([]byte(text))
		wantCode(t, "read: "+name, err, Invalid)
	}
	for name, text := range map[string]string{
		"session missing": `{"version":1}`,
		"session empty":   `{"version":1,"session":""}`,
		"session of 1025": `{"version":1,"session":"` + strings.Repeat("a", 1025) + `"}`,
		"session null":    `{"version":1,"session":null}`,
		"extensions":      also(closeText, `"extensions":{}`),
		"cursor":          also(closeText, `"cursor":"c"`),
	} {
		_, err := ParseClose([]byte(text))
		wantCode(t, "close: "+name, err, Invalid)
	}
}

func TestH2_LimitedRequests(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("0,", n), ",") + "]" }
	object := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+",", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	query := `{"match":{"artist":"x"}}`
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"query depth 31 below the root":  {with(t, openText, query, deep(31)), true},
		"query depth 32 below the root":  {with(t, openText, query, deep(32)), false},
		"4096 elements":                  {with(t, openText, query, list(4096)), true},
		"4097 elements":                  {with(t, openText, query, list(4097)), false},
		"256 keys":                       {with(t, openText, query, "{"+object(256, `"k%d":0`)+"}"), true},
		"257 keys":                       {with(t, openText, query, "{"+object(257, `"k%d":0`)+"}"), false},
		"257 keys at the root":           {also(openText, object(252, `"k%d":0`)), false},
		"32 extensions":                  {also(openText, `"extensions":{`+object(32, `"urn:x:%d":0`)+`}`), true},
		"33 extensions":                  {also(openText, `"extensions":{`+object(33, `"urn:x:%d":0`)+`}`), false},
		"33 critical":                    {also(openText, `"critical":[`+object(33, `"urn:x:%d"`)+`]`), false},
		"extension depth":                {also(openText, `"extensions":{"urn:x:1":`+deep(31)+`}`), false},
		"extension depth, one less":      {also(openText, `"extensions":{"urn:x:1":`+deep(30)+`}`), true},
		"a body of 1 MiB":                {openText + strings.Repeat(" ", MaxRequestBytes-len(openText)), true},
		"a body of 1 MiB and one byte":   {openText + strings.Repeat(" ", MaxRequestBytes-len(openText)+1), false},
		"a long string inside the query": {with(t, openText, query, `"`+strings.Repeat("a", 1<<19)+`"`), true},
	} {
		_, err := ParseOpen([]byte(c.text))
		if c.ok {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantCode(t, name, err, Limited)
	}
	for kind, p := range parsers {
		wantCode(t, kind+" too large", p.parse([]byte(p.text+strings.Repeat(" ", MaxRequestBytes))), Limited)
	}
}

func TestH3_UnknownCriticalExtension(t *testing.T) {
	t.Parallel()
	_, err := ParseOpen([]byte(also(openText, criticalText)))
	wantCode(t, "critical", err, Unsupported)
	_, err = ParseOpen([]byte(also(openText, `"extensions":{"`+EpochExtension+`":1},"critical":["`+EpochExtension+`"]`)))
	wantCode(t, "the epoch extension is never critical", err, Unsupported)
	o, err := ParseOpen([]byte(also(openText, `"extensions":{"urn:x:1":{"a":[null]}},"critical":[]`)))
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Extensions) != 1 || o.Extensions[0].Name != "urn:x:1" || o.Critical == nil || len(o.Critical) != 0 {
		t.Errorf("extensions %v, critical %v", o.Extensions, o.Critical)
	}
}

func TestO2_CanonicalOpen(t *testing.T) {
	t.Parallel()
	parse := func(text string) *Open {
		t.Helper()
		o, err := ParseOpen([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := string(o.Encode()); got != string(o.Canonical) {
			t.Errorf("Encode %s\nCanonical %s", got, o.Canonical)
		}
		return o
	}
	base := parse(openText)
	want := `{"limits":{"maxBytes":65536,"maxObservations":1,"waitMs":0},"query":{"match":{"artist":"x"}},"requestId":"abcDEF012345_-67","service":"ls_a","version":1}`
	if string(base.Canonical) != want {
		t.Errorf("got %s", base.Canonical)
	}
	if base.RequestID != testID || base.Service != "ls_a" || base.Limits != (Limits{65536, 1, 0}) ||
		base.RequiredRulesDigest != "" || base.Extensions != nil || base.Critical != nil {
		t.Errorf("got %+v", base)
	}
	same := parse(`{ "limits" : {"waitMs":-0,"maxObservations":1.0,"maxBytes":6.5536e4}, "query":{"match":{"\u0061rtist":"\u0078"}},
		"service":"ls_a","requestId":"abcDEF012345_-67","version":1e0 }`)
	if string(same.Canonical) != want {
		t.Errorf("another spelling: got %s", same.Canonical)
	}
	seen := map[string]string{want: "base"}
	for name, text := range map[string]string{
		"extensions empty":   also(openText, `"extensions":{}`),
		"critical empty":     also(openText, `"critical":[]`),
		"both empty":         also(openText, `"extensions":{},"critical":[]`),
		"digest":             also(openText, `"requiredRulesDigest":"`+testHex+`"`),
		"limits above clamp": with(t, openText, `65536`, `4294967295`),
		"limits at clamp":    with(t, openText, `65536`, `4194304`),
		"waitMs":             with(t, openText, `"waitMs":0`, `"waitMs":1`),
		"query null":         with(t, openText, `{"match":{"artist":"x"}}`, `null`),
		"query false":        with(t, openText, `{"match":{"artist":"x"}}`, `false`),
		"query zero":         with(t, openText, `{"match":{"artist":"x"}}`, `0`),
	} {
		c := string(parse(text).Canonical)
		if other, ok := seen[c]; ok {
			t.Errorf("%s is the same as %s", name, other)
		}
		seen[c] = name
	}
}

func TestH13_AnyStringIsAnIdentifier(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"\x00", "a\x00b", " ", strings.Repeat("a", 1024), strings.Repeat("é", 512), "\"\\\n", "\u2028", "😀", "../..", "'; --"} {
		read := &Read{Session: s, Cursor: s, Limits: Limits{1, 1, 0}}
		got, err := ParseRead(read.Encode())
		if err != nil || *got != *read {
			t.Errorf("read %q: %+v, %v", s, got, err)
		}
		c, err := ParseClose((&Close{Session: s}).Encode())
		if err != nil || c.Session != s {
			t.Errorf("close %q: %+v, %v", s, c, err)
		}
		open := &Open{RequestID: testID, Service: s, Query: canon.Str(s), Limits: Limits{1, 1, 0}}
		o, err := ParseOpen(open.Encode())
		if err != nil || o.Service != s || o.Query.Str() != s {
			t.Errorf("open %q: %+v, %v", s, o, err)
		}
	}
}

func TestH1_MessagesQuoteNothing(t *testing.T) {
	t.Parallel()
	const secret = "sEcReT"
	for _, text := range []string{
		also(openText, `"`+secret+`":1`),
		also(openText, `"extensions":{"`+secret+`":1}`),
		also(openText, `"extensions":{"urn:`+secret+`":1},"critical":["urn:`+secret+`"]`),
		also(openText, `"requiredRulesDigest":"`+secret+`"`),
		with(t, openText, `"x"`, `{"`+secret+`":1,"`+secret+`":2}`),
		with(t, openText, testID, secret),
		with(t, openText, `"x"`, `"`+secret+``),
	} {
		_, err := ParseOpen([]byte(text))
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if strings.Contains(e.Message, secret) || strings.Contains(string(e.AppendCanonical(nil)), secret) {
			t.Errorf("%s: the message quotes the request: %s", text, e.Message)
		}
	}
}

func TestH6_LimitsMin(t *testing.T) {
	t.Parallel()
	got := Limits{10, 20, 30}.Min(Limits{20, 10, 30}).Min(MaxLimits())
	if got != (Limits{10, 10, 30}) {
		t.Errorf("got %+v", got)
	}
	if all := (Limits{1<<32 - 1, 1<<32 - 1, 1<<32 - 1}).Min(MaxLimits()); all != (Limits{4 << 20, 1024, 25000}) {
		t.Errorf("got %+v", all)
	}
}
