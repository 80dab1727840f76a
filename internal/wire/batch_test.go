package wire

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/canon"
)

const (
	chainText   = `{"network":"main","genesisHash":"` + testHex + `"}`
	scopeText   = `{"chain":` + chainText + `,"provider":"https://example.test","service":"ls_a","queryDigest":"` + testHex + `","rulesDigest":"` + testHex + `","access":"public","epoch":"e1"}`
	pointText   = `{"chain":` + chainText + `,"txid":"` + testHex + `","outputIndex":7}`
	outputText  = `{"id":"o1","scope":` + scopeText + `,"kind":"output","payload":{"evidence":{"txid":"` + testHex + `","outputIndex":4294967295,"beef":"AQID"},"context":{"schema":"urn:x:1","bytes":""}}}`
	spendText   = `{"id":"o2","scope":` + scopeText + `,"kind":"spend","payload":{"previous":` + pointText + `,"spendingTxid":"` + testHex + `","beef":"AQID"}}`
	removeText  = `{"id":"o3","scope":` + scopeText + `,"kind":"withdraw","payload":{"outpoint":` + pointText + `,"reason":"spent"}}`
	noLongText  = `{"id":"o4","scope":` + scopeText + `,"kind":"assessment-invalidated","payload":{"contextId":"c","reason":"reorg"}}`
	batchFormat = `{"version":1,"session":"s","scope":` + scopeText + `,"phase":"live","groups":[%s],"cursor":"c","snapshotComplete":true,"through":"9","highWater":"10","expiresAt":"100","replayUntil":"110","limits":{"maxBytes":4194304,"maxObservations":1024,"waitMs":25000}}`
)

func groupText(id string, sequence uint64, observations ...string) string {
	return fmt.Sprintf(`{"id":%q,"sequence":"%d","observations":[%s]}`, id, sequence, strings.Join(observations, ","))
}

func batchText(groups ...string) string { return fmt.Sprintf(batchFormat, strings.Join(groups, ",")) }

func fullBatch() string {
	return batchText(groupText("g1", 3, spendText, removeText, outputText), groupText("g2", 9, noLongText))
}

func TestL2_BatchFields(t *testing.T) {
	t.Parallel()
	b, err := ParseBatch([]byte(fullBatch()))
	if err != nil {
		t.Fatal(err)
	}
	chain := Chain{"main", testHex}
	scope := Scope{chain, "https://example.test", "ls_a", testHex, testHex, "public", "e1"}
	point := Outpoint{chain, testHex, 7}
	if b.Session != "s" || b.Scope != scope || b.Phase != PhaseLive || b.Cursor != "c" || !b.SnapshotComplete ||
		b.Through != 9 || b.HighWater != 10 || b.ExpiresAt != 100 || b.ReplayUntil != 110 || b.Limits != MaxLimits() ||
		b.Extensions != nil || b.Critical != nil {
		t.Errorf("envelope %+v", b)
	}
	if len(b.Groups) != 2 || b.Groups[0].ID != "g1" || b.Groups[0].Sequence != 3 || len(b.Groups[0].Observations) != 3 || b.Groups[1].Sequence != 9 {
		t.Fatalf("groups %+v", b.Groups)
	}
	spend, withdraw, output := b.Groups[0].Observations[0], b.Groups[0].Observations[1], b.Groups[0].Observations[2]
	if spend.Spend == nil || spend.Spend.Previous != point || spend.Spend.SpendingTxID != testHex || string(spend.Spend.BEEF) != "\x01\x02\x03" {
		t.Errorf("spend %+v", spend)
	}
	if withdraw.Withdraw == nil || *withdraw.Withdraw != (Withdraw{point, "spent"}) {
		t.Errorf("withdraw %+v", withdraw)
	}
	if o := output.Output; o == nil || o.Evidence.TxID != testHex || o.Evidence.OutputIndex != 1<<32-1 || o.Context == nil || o.Context.Schema != "urn:x:1" || len(o.Context.Bytes) != 0 {
		t.Errorf("output %+v", output)
	}
	if i := b.Groups[1].Observations[0].Invalidated; i == nil || *i != (Invalidated{"c", "reorg"}) {
		t.Errorf("invalidated %+v", b.Groups[1].Observations[0])
	}
	if got := string(canonicalText(t, fullBatch())); got != string(b.AppendCanonical(nil)) {
		t.Errorf("AppendCanonical:\n got %s\nwant %s", b.AppendCanonical(nil), got)
	}
	for _, g := range b.Groups {
		for _, o := range g.Observations {
			if o.Scope != scope {
				t.Errorf("%s: scope %+v", o.ID, o.Scope)
			}
			if string(o.AppendCanonical(nil)) != string(o.Canonical) {
				t.Errorf("%s:\n got %s\nwant %s", o.ID, o.AppendCanonical(nil), o.Canonical)
			}
		}
	}
	if got, want := string(spend.Canonical), string(canonicalText(t, spendText)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// canonicalText canonicalises a text that must be good.
func canonicalText(t testing.TB, text string) []byte {
	t.Helper()
	b, err := canon.Canonicalize([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestS3_SnapshotBatches(t *testing.T) {
	t.Parallel()
	live := batchText(groupText("g1", 9, outputText))
	snapshot := with(t, live, `"phase":"live"`, `"phase":"snapshot"`)
	for name, text := range map[string]string{
		"empty live":              batchText(),
		"last snapshot page":      snapshot,
		"earlier snapshot page":   with(t, snapshot, `"snapshotComplete":true`, `"snapshotComplete":false`),
		"several at W":            with(t, batchText(groupText("g1", 9, outputText), groupText("g2", 9, removeText)), `"phase":"live"`, `"phase":"snapshot"`),
		"extension, not critical": also(live, `"extensions":{"urn:x:1":null},"critical":[]`),
		"observation extension":   with(t, live, `"kind":"output"`, `"kind":"output","extensions":{"urn:x:1":[1]}`),
		"no context":              with(t, live, `,"context":{"schema":"urn:x:1","bytes":""}`, ``),
		"empty beef":              with(t, live, `"AQID"`, `""`),
	} {
		b, err := ParseBatch([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := string(b.AppendCanonical(nil)), string(canonicalText(t, text)); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestC2_BatchesRefused(t *testing.T) {
	t.Parallel()
	good := batchText(groupText("g1", 8, outputText), groupText("g2", 9, removeText))
	one := func(observation string) string { return batchText(groupText("g1", 9, observation)) }
	other := strings.Replace(outputText, `"epoch":"e1"`, `"epoch":"e2"`, 1)
	for name, c := range map[string]struct {
		text string
		code Code
	}{
		"empty":                        {"", Invalid},
		"an error body":                {`{"version":1,"error":{"code":"invalid","message":"m","retryable":false}}`, Invalid},
		"unknown key":                  {also(good, `"x":1`), Invalid},
		"version":                      {with(t, good, `"version":1`, `"version":2`), Invalid},
		"session empty":                {with(t, good, `"session":"s"`, `"session":""`), Invalid},
		"cursor long":                  {with(t, good, `"cursor":"c"`, `"cursor":"`+strings.Repeat("c", 1025)+`"`), Invalid},
		"phase unknown":                {with(t, good, `"phase":"live"`, `"phase":"replay"`), Invalid},
		"live before complete":         {with(t, good, `"snapshotComplete":true`, `"snapshotComplete":false`), Invalid},
		"snapshot sequence not W":      {with(t, good, `"phase":"live"`, `"phase":"snapshot"`), Invalid},
		"through above highWater":      {with(t, good, `"highWater":"10"`, `"highWater":"8"`), Invalid},
		"through number":               {with(t, good, `"through":"9"`, `"through":9`), Invalid},
		"through leading zero":         {with(t, good, `"through":"9"`, `"through":"09"`), Invalid},
		"deadlines reversed":           {with(t, good, `"expiresAt":"100"`, `"expiresAt":"111"`), Invalid},
		"complete not boolean":         {with(t, good, `"snapshotComplete":true`, `"snapshotComplete":1`), Invalid},
		"limits above profile":         {with(t, good, `"maxBytes":4194304`, `"maxBytes":4194305`), Invalid},
		"wait above profile":           {with(t, good, `"waitMs":25000`, `"waitMs":25001`), Invalid},
		"limits zero":                  {with(t, good, `"maxObservations":1024`, `"maxObservations":0`), Invalid},
		"more bytes than stated":       {with(t, good, `"maxBytes":4194304`, `"maxBytes":100`), Limited},
		"more observations":            {with(t, good, `"maxObservations":1024`, `"maxObservations":1`), Limited},
		"scope unknown key":            {strings.Replace(good, `"access":"public"`, `"access":"public","x":1`, 1), Invalid},
		"scope chain closed":           {strings.Replace(good, `"network":"main"`, `"network":"main","x":1`, 1), Invalid},
		"scope digest":                 {strings.Replace(good, `"queryDigest":"0`, `"queryDigest":"G`, 1), Invalid},
		"groups null":                  {with(t, batchText(), `"groups":[]`, `"groups":null`), Invalid},
		"group not object":             {batchText(`1`), Invalid},
		"group unknown key":            {batchText(`{"id":"g","sequence":"9","observations":[],"x":1}`), Invalid},
		"group id empty":               {batchText(groupText("", 9)), Invalid},
		"group id repeated":            {batchText(groupText("g1", 8), groupText("g1", 9)), Invalid},
		"sequence above through":       {batchText(groupText("g1", 10)), Invalid},
		"sequence repeated":            {batchText(groupText("g1", 9), groupText("g2", 9)), Invalid},
		"sequence falling":             {batchText(groupText("g1", 9), groupText("g2", 8)), Invalid},
		"1025 groups":                  {batchText(strings.TrimSuffix(strings.Repeat(`1,`, 1025), ",")), Limited},
		"1025 observations in a group": {one(strings.TrimSuffix(strings.Repeat(`1,`, 1025), ",")), Limited},
		"observation not object":       {one(`[]`), Invalid},
		"observation id repeated":      {one(outputText + "," + strings.Replace(removeText, "o3", "o1", 1)), Invalid},
		"id repeated across groups":    {batchText(groupText("g1", 8, outputText), groupText("g2", 9, outputText)), Invalid},
		"foreign scope":                {one(other), Invalid},
		"unknown kind":                 {one(with(t, outputText, `"kind":"output"`, `"kind":"outputs"`)), Invalid},
		"kind of another payload":      {one(with(t, outputText, `"kind":"output"`, `"kind":"spend"`)), Invalid},
		"payload null":                 {one(`{"id":"o","scope":` + scopeText + `,"kind":"output","payload":null}`), Invalid},
		"peer identity added":          {one(with(t, outputText, `"kind":"output"`, `"kind":"output","authenticatedPeer":"x"`)), Invalid},
		"evidence unknown key":         {one(with(t, outputText, `"beef":"AQID"`, `"beef":"AQID","x":1`)), Invalid},
		"context null":                 {one(with(t, outputText, `{"schema":"urn:x:1","bytes":""}`, `null`)), Invalid},
		"context schema relative":      {one(with(t, outputText, `"urn:x:1"`, `"x"`)), Invalid},
		"context unknown key":          {one(with(t, outputText, `"bytes":""`, `"bytes":"","x":1`)), Invalid},
		"beef not canonical":           {one(with(t, outputText, `"AQID"`, `"AQI"`)), Invalid},
		"beef with a line break":       {one(with(t, outputText, `"AQID"`, `"AQ\nID"`)), Invalid},
		"beef number":                  {one(with(t, outputText, `"AQID"`, `1`)), Invalid},
		"index above U32":              {one(with(t, outputText, `4294967295`, `4294967296`)), Invalid},
		"index negative":               {one(with(t, outputText, `4294967295`, `-1`)), Invalid},
		"outpoint without chain":       {one(with(t, removeText, `"outpoint":{"chain":`+chainText+`,`, `"outpoint":{`)), Invalid},
		"reason empty":                 {one(with(t, removeText, `"reason":"spent"`, `"reason":""`)), Invalid},
		"reason missing":               {one(with(t, noLongText, `,"reason":"reorg"`, ``)), Invalid},
		"spend txid upper case":        {one(with(t, spendText, `"spendingTxid":"`+testHex, `"spendingTxid":"`+strings.ToUpper(testHex))), Invalid},
		"batch critical":               {also(good, criticalText), Unsupported},
		"observation critical":         {one(with(t, outputText, `"kind":"output"`, `"kind":"output",`+criticalText)), Unsupported},
		"observation critical twice":   {one(with(t, outputText, `"kind":"output"`, `"kind":"output","extensions":{"urn:x:1":1},"critical":["urn:x:1","urn:x:1"]`)), Invalid},
		"proposal":                     {one(`{"id":"o","scope":` + scopeText + `,"kind":"proposal","payload":{}}`), Unsupported},
		"proposal-state":               {one(`{"id":"o","scope":` + scopeText + `,"kind":"proposal-state","payload":{}}`), Unsupported},
		"proposal-remove":              {one(`{"id":"o","scope":` + scopeText + `,"kind":"proposal-remove","payload":{}}`), Unsupported},
		"invalid before unsupported":   {with(t, one(`{"id":"o","scope":`+scopeText+`,"kind":"proposal","payload":{}}`), `"groups":[`, `"groups":[`+groupText("g1", 9)+`,`), Invalid},
		"fraction in an extension":     {also(good, `"extensions":{"urn:x:1":0.5}`), Invalid},
		"larger than 4 MiB":            {good + strings.Repeat(" ", MaxResponseBytes), Limited},
	} {
		b, err := ParseBatch([]byte(c.text))
		if b != nil {
			t.Errorf("%s: returned a batch", name)
		}
		wantCode(t, name, err, c.code)
	}
}

// A full-sized body: 1024 observations, close to 4 MiB.
func largeBatch(t testing.TB) []byte {
	t.Helper()
	beef := base64.StdEncoding.EncodeToString(make([]byte, 2400))
	var groups []string
	for i := range 1024 {
		o := with(t, strings.Replace(outputText, `"id":"o1"`, fmt.Sprintf(`"id":"o%d"`, i), 1), "AQID", beef)
		groups = append(groups, groupText(fmt.Sprintf("g%d", i), uint64(i+1), o))
	}
	text := batchText(groups...)
	text = with(t, text, `"through":"9","highWater":"10"`, `"through":"1024","highWater":"1024"`)
	if len(text) > MaxResponseBytes {
		t.Fatalf("%d bytes", len(text))
	}
	return []byte(text)
}

func TestJ6_LargeBatch(t *testing.T) {
	t.Parallel()
	body := largeBatch(t)
	b, err := ParseBatch(body)
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Groups) != 1024 || len(b.Groups[1023].Observations[0].Output.Evidence.BEEF) != 2400 {
		t.Error("groups lost")
	}
	again, err := ParseBatch(b.AppendCanonical(nil))
	if err != nil || string(again.AppendCanonical(nil)) != string(b.AppendCanonical(nil)) {
		t.Errorf("not a fixed point: %v", err)
	}
}

func TestJ5_QueryAndRulesDigest(t *testing.T) {
	t.Parallel()
	query, err := canon.Parse([]byte(`{"match":{"artist":"ORCHID"}}`), canon.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := QueryDigest("ls_catalogue", query), canon.Digest("lookup-query", []byte(`{"query":{"match":{"artist":"ORCHID"}},"service":"ls_catalogue"}`)); got != want {
		t.Errorf("query digest %s, want %s", got, want)
	}
	parameters := canon.Obj(canon.Member{Name: "attributes", Value: canon.Arr(canon.Str("a"))})
	if got, want := RulesDigest("urn:x", parameters), canon.Digest("service-rules", []byte(`{"id":"urn:x","parameters":{"attributes":["a"]}}`)); got != want {
		t.Errorf("rules digest %s, want %s", got, want)
	}
}

func BenchmarkParseBatch(b *testing.B) {
	body := largeBatch(b)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseBatch(body); err != nil {
			b.Fatal(err)
		}
	}
}
