package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/lookup"
)

// What the configuration says when nobody says anything is what the package does.
func TestO10_DefaultsOfTheConfigurationAreThoseOfThePackage(t *testing.T) {
	t.Parallel()
	l, err := config.Load(config.Input{})
	if err != nil {
		t.Fatal(err)
	}
	got := quotasOf(l.Quotas)
	want := lookup.Quotas{
		OpensPerSecond: lookup.DefaultOpensPerSecond, OpenBurst: lookup.DefaultOpenBurst,
		ServiceOpensPerSecond: lookup.DefaultServiceOpensPerSecond, ServiceOpenBurst: lookup.DefaultServiceOpenBurst, Clients: lookup.DefaultClients,
		Waiters: lookup.DefaultWaiters, WaitersPerClient: lookup.DefaultWaitersPerClient,
		RequestsWaiting: lookup.DefaultRequestsWaiting, RequestWaitMs: lookup.DefaultRequestWaitMs,
		BodyBytes: lookup.DefaultBodyBytes, BodyBytesPerClient: lookup.DefaultBodyBytesPerClient, BodyBytesPerSecond: lookup.DefaultBodyBytesPerSecond,
		SessionsPerClient: lookup.DefaultSessionsPerClient, Sessions: lookup.DefaultSessions, RetainedBytes: lookup.DefaultRetainedBytes,
	}
	if got != want {
		t.Errorf("the defaults are %+v, the package's %+v", got, want)
	}
	// Every quota of the package can be configured, under its name there.
	named, settings := reflect.TypeFor[lookup.Quotas](), reflect.TypeFor[config.Quotas]()
	for i := range named.NumField() {
		if _, ok := settings.FieldByName(named.Field(i).Name); !ok {
			t.Errorf("%s is no setting", named.Field(i).Name)
		}
	}
	all := reflect.ValueOf(&l.Quotas).Elem()
	for i := range all.NumField() {
		f := all.Field(i)
		if f.CanUint() {
			f.SetUint(uint64(i + 1))
		} else {
			f.SetFloat(float64(i + 1))
		}
	}
	set := reflect.ValueOf(quotasOf(l.Quotas))
	for i := range set.NumField() {
		name := named.Field(i).Name
		from := all.FieldByName(name)
		if want := from.Convert(reflect.TypeFor[float64]()).Float(); set.Field(i).Convert(reflect.TypeFor[float64]()).Float() != want {
			t.Errorf("%s is %v, was set to %v", name, set.Field(i), want)
		}
	}
}

func TestO10_AdminShowsQuotas(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	file := filepath.Join(t.TempDir(), "dev.yaml")
	if err := os.WriteFile(file, []byte("quotas: {sessionsPerClient: 1, openBurst: 50}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ready := e2e.Dev(t, data, "--sample", "none", "--config", file)
	anybody := e2e.NewCaller(t, ready.BaseURL)
	b := anybody.Open(devService).Batch(t)
	anybody.Open(devService).Refused(t, wire.Limited)
	all := admin(t, data, "quotas")
	if len(all) != 1 {
		t.Fatalf("answers %v", all)
	}
	text, err := json.Marshal(all[0])
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Services []struct {
			Service, Feed         string
			Sessions, MaxSessions int64
		}
		Node struct {
			Quotas   map[string]float64
			Refusals map[string]int64
		}
	}
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	if len(a.Services) != 2 || a.Services[0].Service != devService || a.Services[0].Feed != devFeed || a.Services[0].Sessions != 1 ||
		a.Services[0].MaxSessions != lookup.DefaultSessions || a.Services[1].Sessions != 0 {
		t.Errorf("services %+v", a.Services)
	}
	if a.Node.Quotas["sessionsPerClient"] != 1 || a.Node.Quotas["openBurst"] != 50 || a.Node.Refusals["sessionsPerClient"] != 1 {
		t.Errorf("node %+v", a.Node)
	}
	settings := reflect.TypeFor[config.Quotas]()
	for i := range settings.NumField() {
		if _, ok := a.Node.Quotas[settings.Field(i).Tag.Get("koanf")]; !ok {
			t.Errorf("quotas.%s is not shown", settings.Field(i).Tag.Get("koanf"))
		}
	}
	if len(a.Node.Quotas) != settings.NumField() {
		t.Errorf("%d quotas of %d are shown", len(a.Node.Quotas), settings.NumField())
	}
	table, err := sayQuotas(text)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(table) {
		lines[strings.Join(strings.Fields(line), " ")] = true
	}
	for _, want := range []string{"service feed sessions of retainedBytes of", "quota limit now refused", "sessionsPerClient 1 - 1", "openBurst 50 - -", "waiters 20000 0 0"} {
		if !lines[want] {
			t.Errorf("no line %q in\n%s", want, table)
		}
	}
	anybody.Close(b)
	anybody.Open(devService).Batch(t)

	for _, none := range []string{`{}`, `{"services":[]}`, `<html>`, `{"changed":true}`} {
		if text, err := sayQuotas([]byte(none)); err == nil {
			t.Errorf("%s is shown as %q", none, text)
		}
	}
}
