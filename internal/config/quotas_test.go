package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// quotaBounds are values just below, at the least, at the most and just above the
// bounds that the doc comments of Quotas state; "" where there is nothing below.
var quotaBounds = map[string][4]string{
	"opensPerSecond":        {"0", "0.001", "1000000", "1000000.1"},
	"openBurst":             {"0", "1", "1000000", "1000001"},
	"serviceOpensPerSecond": {"0.0009", "0.001", "1000000", "1000001"},
	"serviceOpenBurst":      {"0", "1", "1000000", "1000001"},
	"clients":               {"0", "1", "1000000", "1000001"},
	"waiters":               {"0", "1", "1000000", "1000001"},
	"waitersPerClient":      {"0", "1", "1000000", "1000001"},
	"requests":              {"", "0", "100000", "100001"},
	"requestsWaiting":       {"0", "1", "1000000", "1000001"},
	"requestWaitMs":         {"0", "1", "60000", "60001"},
	"bodyBytes":             {"8388607", "8388608", "1099511627776", "1099511627777"},
	"bodyBytesPerClient":    {"8388607", "8388608", "1099511627776", "1099511627777"},
	"bodyBytesPerSecond":    {"0", "1", "1000000000", "1000000001"},
	"sessionsPerClient":     {"0", "1", "1000000000", "1000000001"},
	"sessions":              {"0", "1", "1000000000", "1000000001"},
	"retainedBytes":         {"65535", "65536", "1125899906842624", "1125899906842625"},
}

func TestO10_EveryQuotaHasADefaultAndBounds(t *testing.T) {
	t.Parallel()
	quotas := reflect.TypeFor[Quotas]()
	if quotas.NumField() != len(quotaBounds) {
		t.Fatalf("%d quotas, %d tested", quotas.NumField(), len(quotaBounds))
	}
	for i := range quotas.NumField() {
		name := quotas.Field(i).Tag.Get("koanf")
		bounds := quotaBounds[name]
		for at, value := range bounds {
			if value == "" {
				continue
			}
			l, err := Load(Input{File: write(t, complete+fmt.Sprintf("quotas: {%s: %s}\n", name, value))})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(scalar(reflect.ValueOf(l.Quotas).Field(i)).Value); got != value {
				t.Errorf("quotas.%s is %s, was set to %s", name, got, value)
			}
			err = l.Validate()
			says := fmt.Sprintf("quotas.%s is %s; set it to %s..%s", name, value, bounds[1], bounds[2])
			if good := at == 1 || at == 2; good && err != nil || !good && (len(faults(err)) != 1 || !strings.HasPrefix(err.Error(), says)) {
				t.Errorf("quotas.%s: %s gives %v", name, value, err)
			}
		}
		l, err := Load(Input{File: write(t, complete), Environ: []string{"OVERLAYD_" + variable("quotas."+name) + "=77777"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(scalar(reflect.ValueOf(l.Quotas).Field(i)).Value); got != "77777" {
			t.Errorf("quotas.%s is %s in spite of its variable", name, got)
		}
	}
	l, err := Load(Input{File: write(t, complete)})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Validate(); err != nil {
		t.Errorf("the defaults are out of their bounds: %v", err)
	}
}

func TestO10_ARateMayHaveAFraction(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"0.05": 0.05, "3": 3, "2.5e1": 25} {
		l, err := Load(Input{File: write(t, complete+"quotas: {opensPerSecond: "+text+"}\n")})
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := l.WriteYAML(&b); err != nil {
			t.Fatal(err)
		}
		again, err := Load(Input{File: write(t, b.String())})
		if err != nil {
			t.Fatal(err)
		}
		if l.Quotas.OpensPerSecond != want || again.Quotas.OpensPerSecond != want ||
			!strings.Contains(b.String(), "  opensPerSecond: "+strconv.FormatFloat(want, 'f', -1, 64)+" # file ") {
			t.Errorf("%s is %v, printed and read again %v:\n%s", text, l.Quotas.OpensPerSecond, again.Quotas.OpensPerSecond, b.String())
		}
	}
}
