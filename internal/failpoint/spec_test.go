package failpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestX3_Specs(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][]Rule{
		"":                           nil,
		OpenStored + "=kill":         {{Point: OpenStored, Kill: 1}},
		OpenStored + "=kill@1000000": {{Point: OpenStored, Kill: 1000000}},
		OpenStored + "=pause:20ms":   {{Point: OpenStored, Pause: 20 * time.Millisecond, Share: 100}},
		OpenStored + "=pause:1m%7":   {{Point: OpenStored, Pause: time.Minute, Share: 7}},
		Committed + "=kill@2;" + OpenCut + "=pause:1us": {
			{Point: Committed, Kill: 2}, {Point: OpenCut, Pause: time.Microsecond, Share: 100},
		},
	} {
		if got, err := Parse(spec); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", spec, got, err)
		}
	}
	for _, spec := range []string{
		";", "x=kill", OpenStored, OpenStored + "=", OpenStored + "=kill@0", OpenStored + "=kill@1000001", OpenStored + "=kill@01",
		OpenStored + "=kill@+1", OpenStored + "=kill@", OpenStored + "=kill ", OpenStored + "=pause", OpenStored + "=pause:",
		OpenStored + "=pause:0s", OpenStored + "=pause:-1s", OpenStored + "=pause:61s", OpenStored + "=pause:1s%0", OpenStored + "=pause:1s%101",
		OpenStored + "=pause:1s%", OpenStored + "=error", OpenStored + "=kill;", OpenStored + "=kill;" + OpenStored + "=kill",
		strings.Repeat("x", maxSpec+1),
	} {
		if got, err := Parse(spec); err == nil {
			t.Errorf("%q was taken for %v", spec, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(OpenStored + "=kill@3;" + Committed + "=pause:1m2s%7")
	f.Add(AppendPlanned + "=pause:1.5ms%100")
	f.Fuzz(func(t *testing.T, spec string) {
		rules, err := Parse(spec)
		if err != nil {
			if rules != nil {
				t.Errorf("%q is refused and has rules %v", spec, rules)
			}
			return
		}
		var again []string
		for _, r := range rules {
			again = append(again, r.String())
		}
		if got, err := Parse(strings.Join(again, ";")); err != nil || !slices.Equal(got, rules) {
			t.Errorf("%q reads as %v and, written again, as %v (%v)", spec, rules, got, fmt.Sprint(err))
		}
	})
}
