package canon

import (
	"errors"
	"strings"
	"testing"
)

func codeOf(t testing.TB, err error) Code {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("not a *canon.Error: %v", err)
	}
	return e.Code
}

// Malformed is every way to break JSON that CONFORMANCE rows H1 and J2 name.
var malformed = map[string]string{
	"empty":                          "",
	"only space":                     " \n",
	"byte order mark":                "\xef\xbb\xbf{}",
	"utf-16":                         "\xff\xfe{\x00}\x00",
	"overlong utf-8":                 "\"\xc0\x80\"",
	"overlong slash":                 "\"\xe0\x80\xaf\"",
	"truncated utf-8":                "\"\xe2\x82\"",
	"utf-8 above U+10FFFF":           "\"\xf4\x90\x80\x80\"",
	"raw encoded surrogate":          "\"\xed\xa0\x80\"",
	"bad utf-8 in a name":            "{\"\xff\":1}",
	"bad utf-8 outside a string":     "[1,\xff]",
	"repeated name":                  `{"a":1,"a":1}`,
	"repeated name after unescaping": `{"a":1,"\u0061":1}`,
	"repeated name, nested":          `[{"x":{"é":1,"\u00e9":2}}]`,
	"repeated name, surrogates":      `{"😀":1,"\ud83d\uDE00":2}`,
	"repeated empty name":            `{"":1,"":2}`,
	"lone high surrogate":            `"\ud800"`,
	"lone low surrogate":             `"\udc00"`,
	"swapped surrogates":             `"\udc00\ud800"`,
	"high surrogate and character":   `"\ud800a"`,
	"high surrogate twice":           `"\ud800\ud800"`,
	"lone surrogate in a name":       `{"\ud800":1}`,
	"raw newline in a string":        "\"a\nb\"",
	"raw NUL in a string":            "\"a\x00b\"",
	"raw U+001F in a string":         "\"\x1f\"",
	"raw tab in a name":              "{\"\t\":1}",
	"bad escape":                     `"\x41"`,
	"bad escape a":                   `"\a"`,
	"escape of a quote mark":         `"\'"`,
	"short unicode escape":           `"\u12"`,
	"bad unicode escape":             `"\u12g4"`,
	"unterminated string":            `"abc`,
	"unterminated escape":            `"abc\`,
	"single quotes":                  `'a'`,
	"trailing value":                 `{} {}`,
	"trailing bracket":               `{}]`,
	"trailing comma after":           `{},`,
	"trailing NUL":                   "{}\x00",
	"trailing bad utf-8":             "{}\xff",
	"trailing word":                  `1 x`,
	"leading zero":                   `01`,
	"negative leading zero":          `-01`,
	"two zeros":                      `00`,
	"plus":                           `+1`,
	"bare minus":                     `-`,
	"no digit after point":           `1.`,
	"no digit before point":          `.5`,
	"bare exponent":                  `1e`,
	"bare exponent sign":             `1e+`,
	"hexadecimal":                    `0x10`,
	"underscore":                     `1_000`,
	"NaN":                            `NaN`,
	"Infinity":                       `Infinity`,
	"negative Infinity":              `-Infinity`,
	"1e309":                          `1e309`,
	"-1e309":                         `-1e309`,
	"1e309 nested":                   `{"a":[1e309]}`,
	"huge exponent":                  `1e99999999999999999999`,
	"just above the largest double":  `1.7976931348623159e308`,
	"underflow":                      `1e-400`,
	"negative underflow":             `-1e-400`,
	"underflow to half":              `2e-324`,
	"underflow, huge exponent":       `0.00001e-99999999999999999999`,
	"full-width digit":               "\uff11",
	"missing comma in array":         `[1 2]`,
	"missing comma in object":        `{"a":1 "b":2}`,
	"trailing comma in array":        `[1,]`,
	"trailing comma in object":       `{"a":1,}`,
	"leading comma":                  `[,1]`,
	"double comma":                   `[1,,2]`,
	"comma in empty array":           `[,]`,
	"missing colon":                  `{"a" 1}`,
	"double colon":                   `{"a"::1}`,
	"missing value":                  `{"a":}`,
	"missing name":                   `{:1}`,
	"bare name":                      `{a:1}`,
	"number as name":                 `{1:1}`,
	"null as name":                   `{null:1}`,
	"unclosed array":                 `[1`,
	"unclosed object":                `{"a":1`,
	"wrong bracket":                  `[1}`,
	"wrong brace":                    `{"a":1]`,
	"upper-case literal":             `True`,
	"cut literal":                    `tru`,
	"long literal":                   `nulll`,
	"undefined":                      `undefined`,
	"comment":                        `{}//x`,
	"block comment":                  `/**/{}`,
	"vertical tab as space":          "\v{}",
	"no-break space":                 "\u00a0{}",
	"form feed":                      "\f1",
	"just a comma":                   `,`,
	"just a colon":                   `:`,
	"just a closing bracket":         `]`,
}

func TestJ2_Malformed(t *testing.T) {
	t.Parallel()
	for name, text := range malformed {
		for _, wrapped := range []string{text, " " + text} {
			v, err := Parse([]byte(wrapped), Limits{})
			if err == nil {
				t.Errorf("%s: accepted as %s", name, v.AppendCanonical(nil))
				continue
			}
			if codeOf(t, err) != Invalid {
				t.Errorf("%s: %v, want invalid", name, err)
			}
		}
	}
}

func TestJ2_MalformedInsideContainers(t *testing.T) {
	t.Parallel()
	for name, text := range malformed {
		for _, frame := range []string{`[%]`, `{"k":%}`, `{"k":[{"k":%}]}`} {
			if strings.TrimSpace(text) == "" && frame == `[%]` {
				continue // an empty array
			}
			if _, err := Parse([]byte(strings.ReplaceAll(frame, "%", text)), Limits{}); err == nil {
				t.Errorf("%s in %s: accepted", name, frame)
			}
		}
	}
}

func TestJ2_Accepted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		" \t\r\n{ } \n":            "{}",
		`"\u0000"`:                 `"\u0000"`,
		`"\ud83d\ude00"`:           `"😀"`,
		`"\uFFFD"`:                 "\"\ufffd\"",
		"\"\ufeff\"":               "\"\ufeff\"", // only a leading mark is one
		"\"\x7f\"":                 "\"\x7f\"",
		`"\/\b\f\n\r\t\"\\"`:       `"/\b\f\n\r\t\"\\"`,
		`{"a":1,"A":2,"á":3}`:      `{"A":2,"a":1,"á":3}`,
		`{"\u00e9":1,"e\u0301":2}`: "{\"e\u0301\":2,\"\u00e9\":1}", // composed and decomposed are two names
		"null":                     "null",
		"-0":                       "0",
		`{"":""}`:                  `{"":""}`,
		`[[[]],{},"",0,null,true]`: `[[[]],{},"",0,null,true]`,
	} {
		got, err := Canonicalize([]byte(text))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
}

func repeat(s string, n int) string { return strings.Repeat(s, n) }

func keys(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"k` + strings.Repeat("x", i) + `":0`)
	}
	b.WriteByte('}')
	return b.String()
}

func TestJ4_StructuralLimits(t *testing.T) {
	t.Parallel()
	list := func(n int) string { return "[" + strings.TrimSuffix(repeat("0,", n), ",") + "]" }
	for name, c := range map[string]struct {
		text string
		lim  Limits
		ok   bool
	}{
		"depth 32":                     {repeat("[", 32) + repeat("]", 32), Limits{}, true},
		"depth 33":                     {repeat("[", 33) + repeat("]", 33), Limits{}, false},
		"depth 32, a scalar counts":    {repeat("[", 31) + "0" + repeat("]", 31), Limits{}, true},
		"depth 33, a scalar counts":    {repeat("[", 32) + "0" + repeat("]", 32), Limits{}, false},
		"objects to depth 32":          {repeat(`{"a":`, 31) + "0" + repeat("}", 31), Limits{}, true},
		"objects to depth 33":          {repeat(`{"a":`, 32) + "0" + repeat("}", 32), Limits{}, false},
		"very deep, never closed":      {repeat("[", 1_000_000), Limits{}, false},
		"4096 elements":                {list(4096), Limits{}, true},
		"4097 elements":                {list(4097), Limits{}, false},
		"4096 elements, twice":         {"[" + list(4096) + "," + list(4096) + "]", Limits{}, true},
		"256 keys":                     {keys(256), Limits{}, true},
		"257 keys":                     {keys(257), Limits{}, false},
		"4 MiB":                        {`"` + repeat("a", 4<<20-2) + `"`, Limits{}, true},
		"4 MiB and one":                {`"` + repeat("a", 4<<20-1) + `"`, Limits{}, false},
		"space counts":                 {"0" + repeat(" ", 4<<20), Limits{}, false},
		"a smaller bound":              {`"abc"`, Limits{MaxBytes: 4}, false},
		"exactly a smaller bound":      {`"ab"`, Limits{MaxBytes: 4}, true},
		"a larger bound":               {`"` + repeat("a", 5<<20) + `"`, Limits{MaxBytes: 8 << 20}, true},
		"own depth":                    {`[[0]]`, Limits{MaxDepth: 2}, false},
		"own elements":                 {`[0,0]`, Limits{MaxElements: 1}, false},
		"own keys":                     {`{"a":0,"b":0}`, Limits{MaxKeys: 1}, false},
		"a limit before a later fault": {repeat("[", 33) + "!", Limits{}, false},
	} {
		_, err := Parse([]byte(c.text), c.lim)
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", name, err)
		case !c.ok && err == nil:
			t.Errorf("%s: accepted", name)
		case !c.ok && codeOf(t, err) != TooLarge:
			t.Errorf("%s: %v, want limited", name, err)
		}
	}
}

func TestJ2_ErrorsSayWhere(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte(`{"a":[0,{"b":1e309}]}`), Limits{})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Path != "/a/1/b" {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(e.Error(), "/a/1/b") || strings.Contains(e.Reason, "/") {
		t.Errorf("texts: %q, %q", e.Error(), e.Reason)
	}
	_, err = Parse([]byte(`{"`+repeat("x", 5000)+`":tru}`), Limits{})
	if e, _ := errors.AsType[*Error](err); e == nil || len(e.Path) > maxPath {
		t.Errorf("unbounded path: %v", err)
	}
}

func TestJ2_ResultDoesNotAliasInput(t *testing.T) {
	t.Parallel()
	data := []byte(`{"name":["value",1234]}`)
	want := string(data)
	v, err := Parse(data, Limits{})
	if err != nil || string(data) != want {
		t.Fatalf("%v; parsing left its input as %s", err, data)
	}
	clear(data)
	if got := string(v.AppendCanonical(nil)); got != want {
		t.Errorf("got %s", got)
	}
}
