package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
)

const profileText = `{"id":"` + Profile + `","authentication":"none","payment":"none","maxRequestBytes":1048576,"maxResponseBytes":4194304,"parameters":{"replaySeconds":"3600","sessionSeconds":"86400","maxObservations":1024,"maxWaitMs":25000}}`

func parseText(t testing.TB, text string) canon.Value {
	t.Helper()
	v, err := canon.Parse([]byte(text), canon.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func serviceText(t testing.TB, name, kind string, profiles ...string) string {
	t.Helper()
	rules := `{"id":"urn:x:rules:1","parameters":{"attributes":["a"]}}`
	digest := RulesDigest("urn:x:rules:1", parseText(t, `{"attributes":["a"]}`))
	return fmt.Sprintf(`{"name":%q,"kind":%q,"rules":%s,"rulesDigest":%q,"profiles":[%s]}`, name, kind, rules, digest, strings.Join(profiles, ","))
}

func manifestText(t testing.TB, services ...string) string {
	t.Helper()
	return fmt.Sprintf(`{"version":1,"identity":%q,"baseURL":"https://example.test/api","chain":%s,"issuedAt":"100","expiresAt":"200","services":[%s]}`,
		identityOf(testKey(7)), chainText, strings.Join(services, ","))
}

func TestH10_Capabilities(t *testing.T) {
	t.Parallel()
	epochs := string(canon.Obj(EpochMember(map[string]string{"ls_b": "e2", "ls_a": "e1"})).AppendCanonical(nil))
	text := also(manifestText(t, serviceText(t, "ls_a", "lookup", profileText), serviceText(t, "ls_a", "topic"), serviceText(t, "ls_b", "lookup")),
		`"extensions":`+epochs)
	c, err := ParseCapabilities(parseText(t, text))
	if err != nil {
		t.Fatal(err)
	}
	want := canonicalText(t, text)
	if got := c.Value().AppendCanonical(nil); string(got) != string(want) {
		t.Errorf("Value:\n got %s\nwant %s", got, want)
	}
	if c.Digest() != canon.Digest("capabilities", want) {
		t.Error("digest")
	}
	if c.BaseURL != "https://example.test/api" || c.IssuedAt != 100 || c.ExpiresAt != 200 || c.Chain.Network != "main" || len(c.Services) != 3 {
		t.Errorf("got %+v", c)
	}
	profile, params, err := c.Find(KindLookup, "ls_a").Live()
	if err != nil {
		t.Fatal(err)
	}
	if params != (LookupParameters{3600, 86400, 1024, 25000}) || profile.Limits(params) != MaxLimits() {
		t.Errorf("parameters %+v", params)
	}
	if !params.Value().Equal(profile.Parameters) {
		t.Errorf("parameters as JSON: %s", params.Value().AppendCanonical(nil))
	}
	for _, s := range []*ServiceEntry{c.Find(KindTopic, "ls_a"), c.Find(KindLookup, "ls_b")} {
		_, _, err := s.Live()
		wantCode(t, s.Kind+" "+s.Name, err, Unsupported)
	}
	if c.Find(KindLookup, "ls_c") != nil || c.Find(KindCoordination, "ls_a") != nil {
		t.Error("found a service that is not there")
	}
	got, err := Epochs(c)
	if err != nil || len(got) != 2 || got["ls_a"] != "e1" || got["ls_b"] != "e2" {
		t.Errorf("epochs %v, %v", got, err)
	}
	if strings.Index(epochs, "ls_a") > strings.Index(epochs, "ls_b") {
		t.Error("epochs are not in name order")
	}
}

func TestH10_CapabilitiesRefused(t *testing.T) {
	t.Parallel()
	service := serviceText(t, "ls_a", "lookup", profileText)
	good := manifestText(t, service)
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+",", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	services := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = serviceText(t, fmt.Sprintf("s%d", i), "topic")
		}
		return manifestText(t, all...)
	}
	profiles := func(n int) string {
		return manifestText(t, serviceText(t, "ls_a", "lookup", many(n, `{"id":"urn:p:%d","authentication":"brc103","payment":"covenant","maxRequestBytes":0,"maxResponseBytes":0,"parameters":{}}`)))
	}
	for _, text := range []string{good, services(256), profiles(32), manifestText(t),
		with(t, good, `"issuedAt":"100"`, `"issuedAt":"200"`),
		with(t, good, `https://example.test/api`, `http://127.0.0.1:8080`),
		with(t, good, `"maxWaitMs":25000`, `"unknown":null`), // judged by Lookup
	} {
		if _, err := ParseCapabilities(parseText(t, text)); err != nil {
			t.Errorf("%.200s: %v", text, err)
		}
	}
	for name, c := range map[string]struct {
		text string
		code Code
	}{
		"not an object":              {`[]`, Invalid},
		"version":                    {with(t, good, `"version":1`, `"version":2`), Invalid},
		"unknown key":                {also(good, `"x":1`), Invalid},
		"identity not on the curve":  {with(t, good, identityOf(testKey(7)), "02"+strings.Repeat("0", 63)+"5"), Invalid},
		"identity upper case":        {with(t, good, identityOf(testKey(7)), strings.ToUpper(identityOf(testKey(7)))), Invalid},
		"base not canonical, slash":  {with(t, good, `test/api"`, `test/api/"`), Invalid},
		"base not canonical, case":   {with(t, good, `https://example`, `https://Example`), Invalid},
		"base ftp":                   {with(t, good, `https://example`, `ftp://example`), Invalid},
		"chain missing":              {with(t, good, `"chain":`+chainText+`,`, ``), Invalid},
		"issued after expiry":        {with(t, good, `"issuedAt":"100"`, `"issuedAt":"201"`), Invalid},
		"issuedAt number":            {with(t, good, `"issuedAt":"100"`, `"issuedAt":100`), Invalid},
		"services null":              {with(t, manifestText(t), `"services":[]`, `"services":null`), Invalid},
		"257 services":               {services(257), Limited},
		"33 profiles":                {profiles(33), Limited},
		"duplicate service":          {manifestText(t, service, service), Invalid},
		"duplicate profile":          {manifestText(t, serviceText(t, "ls_a", "lookup", profileText, profileText)), Invalid},
		"service name empty":         {manifestText(t, serviceText(t, "", "lookup")), Invalid},
		"kind unknown":               {manifestText(t, serviceText(t, "ls_a", "index")), Invalid},
		"service unknown key":        {with(t, good, `"kind":"lookup"`, `"kind":"lookup","x":1`), Invalid},
		"rules unknown key":          {with(t, good, `"rules":{`, `"rules":{"x":1,`), Invalid},
		"rules id relative":          {with(t, good, `"urn:x:rules:1"`, `"rules"`), Invalid},
		"rules parameters array":     {with(t, good, `"parameters":{"attributes":["a"]}`, `"parameters":["a"]`), Invalid},
		"rules digest wrong":         {with(t, good, `["a"]`, `["b"]`), Invalid},
		"profile id relative":        {with(t, good, Profile, "lookup-live-v1"), Invalid},
		"profile unknown key":        {with(t, good, `"payment":"none"`, `"payment":"none","x":1`), Invalid},
		"authentication unknown":     {with(t, good, `"authentication":"none"`, `"authentication":"basic"`), Invalid},
		"payment unknown":            {with(t, good, `"payment":"none"`, `"payment":"card"`), Invalid},
		"maxRequestBytes fraction":   {with(t, good, `1048576`, `1.5`), Invalid},
		"maxRequestBytes above U32":  {with(t, good, `1048576`, `4294967296`), Invalid},
		"profile parameters null":    {with(t, good, `{"replaySeconds":"3600","sessionSeconds":"86400","maxObservations":1024,"maxWaitMs":25000}`, `null`), Invalid},
		"fraction in a parameter":    {with(t, good, `"maxObservations":1024`, `"maxObservations":1024.5`), Invalid},
		"unknown critical extension": {also(good, criticalText), Unsupported},
		"critical absent":            {also(good, `"critical":["urn:x:1"]`), Invalid},
		"extension name":             {also(good, `"extensions":{"x":1}`), Invalid},
	} {
		got, err := ParseCapabilities(parseText(t, c.text))
		if got != nil {
			t.Errorf("%s: returned a manifest", name)
		}
		wantCode(t, name, err, c.code)
	}
}

func TestH12_LookupParameters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"good":               {profileText, true},
		"brc103":             {with(t, profileText, `"authentication":"none"`, `"authentication":"brc103"`), true},
		"no wait":            {with(t, profileText, `25000`, `0`), true},
		"above the maxima":   {with(t, with(t, profileText, `25000`, `30000`), `1024,`, `4000,`), true},
		"least response":     {with(t, profileText, `4194304`, `65536`), true},
		"response too small": {with(t, profileText, `4194304`, `65535`), false},
		"request zero":       {with(t, profileText, `1048576`, `0`), false},
		"other profile":      {with(t, profileText, Profile, `urn:x`), false},
		"payment":            {with(t, profileText, `"payment":"none"`, `"payment":"brc105"`), false},
		"replay zero":        {with(t, profileText, `"3600"`, `"0"`), false},
		"session zero":       {with(t, profileText, `"86400"`, `"0"`), false},
		"session number":     {with(t, profileText, `"86400"`, `86400`), false},
		"observations zero":  {with(t, profileText, `1024,`, `0,`), false},
		"wait missing":       {with(t, profileText, `,"maxWaitMs":25000`, ``), false},
		"unknown parameter":  {with(t, profileText, `"maxWaitMs"`, `"x":1,"maxWaitMs"`), false},
		"wait negative":      {with(t, profileText, `25000`, `-1`), false},
		"replay above U64":   {with(t, profileText, `"3600"`, `"18446744073709551616"`), false},
	} {
		m, err := ParseCapabilities(parseText(t, manifestText(t, serviceText(t, "ls_a", "lookup", c.text))))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := &m.Services[0].Profiles[0]
		l, err := p.Lookup()
		if !c.ok {
			wantCode(t, name, err, Invalid)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := p.Limits(l); got != got.Min(MaxLimits()) {
			t.Errorf("%s: limits above the profile: %+v", name, got)
		}
	}
}

func TestJ5_SignedManifest(t *testing.T) {
	t.Parallel()
	body := parseText(t, manifestText(t, serviceText(t, "ls_a", "lookup", profileText)))
	good, err := SignPacket(canon.DomainCapabilities, body, testKey(7))
	if err != nil {
		t.Fatal(err)
	}
	c, err := VerifyCapabilities(good)
	if err != nil || c.Identity != identityOf(testKey(7)) {
		t.Fatalf("%+v, %v", c, err)
	}
	stranger, err := SignPacket(canon.DomainCapabilities, body, testKey(8))
	if err != nil {
		t.Fatal(err)
	}
	_, err = VerifyCapabilities(stranger)
	wantCode(t, "signed by another key", err, Invalid)
	otherDomain, err := SignPacket(canon.DomainServiceRules, body, testKey(7))
	if err != nil {
		t.Fatal(err)
	}
	_, err = VerifyCapabilities(otherDomain)
	wantCode(t, "another domain", err, Invalid)
	_, err = VerifyCapabilities(append(good, strings.Repeat(" ", MaxManifestBytes)...))
	wantCode(t, "too large", err, Limited)
	broken, err := SignPacket(canon.DomainCapabilities, canon.Obj(), testKey(7))
	if err != nil {
		t.Fatal(err)
	}
	_, err = VerifyCapabilities(broken)
	wantCode(t, "signed nonsense", err, Invalid)
}

func TestO11_Epochs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		value string
		code  Code
	}{
		"good":             {`{"version":1,"services":[{"service":"a","epoch":"e"}]}`, ""},
		"none":             {`{"version":1,"services":[]}`, ""},
		"not an object":    {`[]`, Invalid},
		"null":             {`null`, Invalid},
		"version":          {`{"version":2,"services":[]}`, Invalid},
		"unknown key":      {`{"version":1,"services":[],"x":1}`, Invalid},
		"entry closed":     {`{"version":1,"services":[{"service":"a","epoch":"e","x":1}]}`, Invalid},
		"epoch missing":    {`{"version":1,"services":[{"service":"a"}]}`, Invalid},
		"epoch empty":      {`{"version":1,"services":[{"service":"a","epoch":""}]}`, Invalid},
		"service repeated": {`{"version":1,"services":[{"service":"a","epoch":"e"},{"service":"a","epoch":"f"}]}`, Invalid},
	} {
		m, err := ParseCapabilities(parseText(t, also(manifestText(t), `"extensions":{"`+EpochExtension+`":`+c.value+`}`)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, err = Epochs(m)
		if c.code == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantCode(t, name, err, c.code)
	}
	m, err := ParseCapabilities(parseText(t, manifestText(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Epochs(m); err != nil || got == nil || len(got) != 0 {
		t.Errorf("without the extension: %v, %v", got, err)
	}
}
