package canon

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// Whatever parses is JSON to the standard library too, canonicalises to a fixed
// point, and equals its own canonical form.
func FuzzJ6_Parse(f *testing.F) {
	for _, text := range malformed {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"a":[1,2.5,-0,1e300,"é\ud83d\ude00",null,true,{"__proto__":{}}],"\ue000":"","😀":0}`))
	f.Add([]byte(strings.Repeat("[", 32) + strings.Repeat("]", 32)))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		v, err := Parse(data, Limits{})
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if e := err.(*Error); e.Reason == "" || len(e.Path) > maxPath {
				t.Errorf("bad error %+v", e)
			}
			return
		}
		if !json.Valid(data) {
			t.Errorf("accepted what is not JSON: %q", data)
		}
		once := v.AppendCanonical(nil)
		again, err := Parse(once, Limits{MaxBytes: len(once)})
		if err != nil {
			t.Fatalf("the canonical form does not parse: %q: %v", once, err)
		}
		if !again.Equal(v) || !v.Equal(again) {
			t.Errorf("%q and its canonical form %q are not equal", data, once)
		}
		if twice := again.AppendCanonical(nil); !bytes.Equal(once, twice) {
			t.Errorf("not a fixed point: %q, %q", once, twice)
		}
		if v.Kind() == String && StringSize(v.Str()) != len(once) {
			t.Errorf("StringSize(%q) = %d, want %d", v.Str(), StringSize(v.Str()), len(once))
		}
	})
}

// The worst inputs for memory are many tiny values.
func TestJ6_AllocationIsBoundedByInput(t *testing.T) {
	const size = 1 << 20
	row := "[" + strings.Repeat("[],", 4095) + "[]]"
	rows := "[" + strings.TrimSuffix(strings.Repeat(row+",", size/len(row)), ",") + "]"
	numbers := "[" + strings.Repeat("1,", 4095) + "1]"
	for name, text := range map[string]string{
		"empty arrays": rows,
		"numbers":      "[" + strings.TrimSuffix(strings.Repeat(numbers+",", size/len(numbers)), ",") + "]",
		"one string":   `"` + strings.Repeat("a", size) + `"`,
		"escapes":      `"` + strings.Repeat(`\u00e9`, size/6) + `"`,
		"one number":   strings.Repeat("1", 300) + "." + strings.Repeat("1", size),
		"deep":         strings.Repeat("[", size),
		"many keys":    "[" + strings.TrimSuffix(strings.Repeat(`{"a":0,"b":0},`, 4096), ",") + "]",
	} {
		data := []byte(text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, _ := Parse(data, Limits{})
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		if limit := uint64(40*len(data) + 1<<16); got > limit {
			t.Errorf("%s: %d bytes allocated for %d of input", name, got, len(data))
		}
		runtime.KeepAlive(v)
	}
}
