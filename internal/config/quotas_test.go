package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// quotaBounds are the bounds that the doc comments of Quotas state.
var quotaBounds = map[string][2]uint64{
	"opensPerSecond":    {1, 1000000},
	"openBurst":         {1, 1000000},
	"waiters":           {1, 1000000},
	"waitersPerClient":  {1, 1000000},
	"requests":          {1, 1000000},
	"sessionsPerClient": {1, 1000000000},
	"sessions":          {1, 1000000000},
	"retainedBytes":     {4194304, 1125899906842624},
}

func TestO10_EveryQuotaHasADefaultAndBounds(t *testing.T) {
	t.Parallel()
	quotas := reflect.TypeFor[Quotas]()
	if quotas.NumField() != len(quotaBounds) {
		t.Fatalf("%d quotas, %d tested", quotas.NumField(), len(quotaBounds))
	}
	for i := range quotas.NumField() {
		name := quotas.Field(i).Tag.Get("koanf")
		bounds, ok := quotaBounds[name]
		if !ok {
			t.Errorf("the bounds of quotas.%s are not tested", name)
			continue
		}
		for value, good := range map[uint64]bool{bounds[0] - 1: false, bounds[0]: true, bounds[1]: true, bounds[1] + 1: false} {
			l, err := Load(Input{File: write(t, complete+fmt.Sprintf("quotas: {%s: %d}\n", name, value))})
			if err != nil {
				t.Fatal(err)
			}
			if got := reflect.ValueOf(l.Quotas).Field(i).Uint(); got != value {
				t.Errorf("quotas.%s is %d, was set to %d", name, got, value)
			}
			err = l.Validate()
			says := fmt.Sprintf("quotas.%s is %d; set it to %d..%d", name, value, bounds[0], bounds[1])
			if good && err != nil || !good && (len(faults(err)) != 1 || !strings.HasPrefix(err.Error(), says)) {
				t.Errorf("quotas.%s: %d gives %v", name, value, err)
			}
		}
		l, err := Load(Input{File: write(t, complete), Environ: []string{"OVERLAYD_" + variable("quotas."+name) + "=4194305"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := reflect.ValueOf(l.Quotas).Field(i).Uint(); got != 4194305 {
			t.Errorf("quotas.%s is %d in spite of its variable", name, got)
		}
		if n, ok := defaults()["quotas."+name].(int); !ok || uint64(n) < bounds[0] || uint64(n) > bounds[1] {
			t.Errorf("quotas.%s has the default %v", name, defaults()["quotas."+name])
		}
	}
}
