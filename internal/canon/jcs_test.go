package canon

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) Value {
	t.Helper()
	v, err := Parse([]byte(text), Limits{})
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return v
}

// The table of RFC 8785 appendix B: bits of a double and its one spelling.
func TestJ1_NumberTable(t *testing.T) {
	t.Parallel()
	table := []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	}
	for _, row := range table {
		f := math.Float64frombits(row.bits)
		if got := string(appendNumber(nil, f)); got != row.want {
			t.Errorf("%016x: got %s, want %s", row.bits, got, row.want)
		}
		if v := mustParse(t, row.want); v.Float() != f {
			t.Errorf("%s does not read back as %016x", row.want, row.bits)
		}
	}
}

func TestJ1_NumberSpellings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"333333333.33333329":            "333333333.3333333",
		"1E30":                          "1e+30",
		"4.50":                          "4.5",
		"2e-3":                          "0.002",
		"0.000000000000000000000000001": "1e-27",
		"1e-27":                         "1e-27",
		"-0":                            "0",
		"-0.0e10":                       "0",
		"1e0":                           "1",
		"1.0":                           "1",
		"100e-2":                        "1",
		"9007199254740993":              "9007199254740992",
		"1e21":                          "1e+21",
		"1e20":                          "100000000000000000000",
		"1e-6":                          "0.000001",
		"1e-7":                          "1e-7",
		"123e-100":                      "1.23e-98",
		"-1.5e300":                      "-1.5e+300",
		"1.7976931348623157e308":        "1.7976931348623157e+308",
		"2.4703282292062328e-324":       "5e-324", // above half of the least double
		"0e99999999999999999999":        "0",
		"0.0e-9999999999999999999":      "0",
	} {
		if got := string(mustParse(t, in).AppendCanonical(nil)); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// The examples of RFC 8785 sections 3.2.2 and 3.2.3.
func TestJ1_StructureAndSorting(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}`: `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}`: `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,
		" [ ] ":             "[]",
		"\t{\r\n}":          "{}",
		`{"b":{},"a":[[]]}`: `{"a":[[]],"b":{}}`,
	} {
		got, err := Canonicalize([]byte(in))
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		if string(got) != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestJ1_UTF16Order(t *testing.T) {
	t.Parallel()
	// Ascending in UTF-16; byte order would put U+E000 before the emoji.
	order := []string{"", "\x00", "a", "a\x00", "aa", "b", "\u0080", "\u07ff", "\u0800", "\ud7ff",
		"\U00010000", "\U0001F600", "\U0001F600a", "\U0010FFFF", "\ue000", "\uefff", "\uf000", "\ufb33", "\uffff"}
	for i, a := range order {
		for j, b := range order {
			got, want := compareUTF16(a, b), i-j
			if (got < 0) != (want < 0) || (got > 0) != (want > 0) {
				t.Errorf("compareUTF16(%q, %q) = %d", a, b, got)
			}
		}
	}
	got, err := Canonicalize([]byte(`{"\ue000":1,"😀":2,"x\ue000":3,"x😀":4}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"x😀":4,"x` + "\ue000" + `":3,"😀":2,"` + "\ue000" + `":1}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestJ1_PrototypeIsAnOrdinaryName(t *testing.T) {
	t.Parallel()
	in := `{"toString":1,"__proto__":{"__proto__":null},"constructor":[2]}`
	v := mustParse(t, in)
	if got, want := string(v.AppendCanonical(nil)), `{"__proto__":{"__proto__":null},"constructor":[2],"toString":1}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if p, ok := v.Get("__proto__"); !ok || p.Kind() != Object {
		t.Error("__proto__ is not an ordinary member")
	}
	if _, ok := mustParse(t, `{}`).Get("__proto__"); ok {
		t.Error("an empty object has a member")
	}
}

func TestJ1_Strings(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                           `""`,
		"\b\t\n\f\r\"\\/":            `"\b\t\n\f\r\"\\/"`,
		"\x00\x01\x0b\x1f\x7f":       `"\u0000\u0001\u000b\u001f` + "\x7f\"",
		"<script>&\u2028\u2029":      "\"<script>&\u2028\u2029\"",
		"é\u0080\ue000\U0001F600":    "\"é\u0080\ue000\U0001F600\"",
		"a\xffb\xc3":                 "\"a\uFFFDb\uFFFD\"",
		"\xed\xa0\x80":               "\"\uFFFD\uFFFD\uFFFD\"", // an encoded surrogate
		"\ufffd":                     "\"\ufffd\"",
		strings.Repeat("\x1f", 1000): `"` + strings.Repeat(`\u001f`, 1000) + `"`,
	} {
		got := AppendString(nil, in)
		if string(got) != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
		if n := StringSize(in); n != len(got) {
			t.Errorf("StringSize(%q) = %d, want %d", in, n, len(got))
		}
		if !json.Valid(got) {
			t.Errorf("%q: %s is not JSON", in, got)
		}
	}
}

func TestJ1_Builders(t *testing.T) {
	t.Parallel()
	v := Obj(
		Member{"z", Arr(Num(-1), Bool(true), Value{}, Str("x"))},
		Member{"a", Obj()},
	)
	if got, want := string(v.AppendCanonical(nil)), `{"a":{},"z":[-1,true,null,"x"]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !v.Equal(mustParse(t, `{"z":[-1.0,true,null,"x"],"a":{}}`)) {
		t.Error("the same object is not equal")
	}
	for _, other := range []string{`{"a":{}}`, `[]`, `null`, `{"a":{},"z":[-1,true,null,"y"]}`, `{"a":[],"z":[-1,true,null,"x"]}`, `"x"`} {
		if o := mustParse(t, other); v.Equal(o) || o.Equal(v) {
			t.Errorf("equal to %s", other)
		}
	}
	if !(Value{}).Equal(mustParse(t, "null")) || (Value{}).Equal(Bool(false)) || Num(0).Equal(Str("")) {
		t.Error("scalars compare wrongly")
	}
	for name, f := range map[string]func(){
		"repeated name":  func() { Obj(Member{Name: "a"}, Member{Name: "b"}, Member{Name: "a"}) },
		"unsafe integer": func() { Num(MaxSafeInteger + 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestJ1_Accessors(t *testing.T) {
	t.Parallel()
	kinds := map[string]Kind{"null": Null, "true": Boolean, "1": Number, `"s"`: String, "[]": Array, "{}": Object}
	for text, kind := range kinds {
		v := mustParse(t, text)
		if v.Kind() != kind {
			t.Errorf("%s: kind %s", text, v.Kind())
		}
		if kind != Boolean && v.Bool() || kind != String && v.Str() != "" || kind != Number && v.Float() != 0 {
			t.Errorf("%s: an accessor of another kind answers", text)
		}
		if _, ok := v.Int(); ok != (kind == Number) {
			t.Errorf("%s: Int", text)
		}
		if v.Elements() != nil || v.Members() != nil {
			t.Errorf("%s: has parts", text)
		}
	}
	v := mustParse(t, `{"a":null,"b":"x"}`)
	if m, ok := v.Get("a"); !ok || m.Kind() != Null {
		t.Error("a member holding null is absent")
	}
	if len(v.Members()) != 2 || v.Members()[1].Name != "b" {
		t.Error("members")
	}
}

func TestJ3_Integers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "0.0": 0, "-0e5": 0, "1": 1, "1.0": 1, "1e0": 1, "100e-2": 1, "0.1e1": 1, "-7": -7,
		"9007199254740991":       MaxSafeInteger,
		"-9007199254740991":      -MaxSafeInteger,
		"9.007199254740991e15":   MaxSafeInteger,
		"9007199254740991.4":     MaxSafeInteger, // nearest double
		"1.00000000000000000001": 1,              // nearest double
	} {
		n, ok := mustParse(t, text).Int()
		if !ok || n != want {
			t.Errorf("%s: got %d %t", text, n, ok)
		}
	}
	for _, text := range []string{"9007199254740992", "9007199254740993", "-9007199254740992", "1e16", "1e308",
		"0.5", "1.5", "-0.1", "1e-7", "5e-324", "4294967295.5"} {
		v := mustParse(t, text)
		if n, ok := v.Int(); ok {
			t.Errorf("%s: is the integer %d", text, n)
		}
		for _, inside := range []Value{v, Arr(v), Obj(Member{"a", Arr(Num(1), Obj(Member{"b", v}))})} {
			if err := inside.CheckIntegers(); codeOf(t, err) != Invalid {
				t.Errorf("%s: CheckIntegers: %v", text, err)
			}
		}
	}
	if err := mustParse(t, `{"a":[1,{"b":-0},"1.5",null,true]}`).CheckIntegers(); err != nil {
		t.Error(err)
	}
	if s := strconv.FormatInt(MaxSafeInteger, 10); s != "9007199254740991" {
		t.Error(s)
	}
}
