package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
)

func TestO12_AdminRotatesAnEpoch(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, ready := e2e.Dev(t, data, "--sample", "none")
	first := feedOf(t, ready).Epoch
	anybody := e2e.NewCaller(t, ready.BaseURL)
	old := anybody.Open(devService).Batch(t)

	// Without a key one is drawn, and said before anything is done.
	r := e2e.Run(t, "admin", "epoch", "rotate", devFeed, "--mode", "retire", "--reason", "a planned move", "--data", data)
	said := regexp.MustCompile(`^overlayd: if no answer comes, run this again with --key ([A-Za-z0-9_-]{16,128}): .*\n$`).FindStringSubmatch(r.Stderr)
	if r.Code != 0 || said == nil {
		t.Fatalf("code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	second := feedOf(t, ready).Epoch
	if want := `{"epoch":"` + second + `","feed":"catalogue","mode":"retire","replayed":false}` + "\n"; r.Stdout != want || second == first {
		t.Errorf("answer %s, want %s", r.Stdout, want)
	}
	again := admin(t, data, "epoch", "rotate", devFeed, "--mode", "retire", "--key", said[1])
	if len(again) != 1 || again[0]["replayed"] != true || again[0]["epoch"] != second {
		t.Errorf("again: %v", again)
	}
	anybody.Read(old, 0).Batch(t)

	if got := admin(t, data, "epoch", "rotate", devFeed, "--mode", "break", "--key", "a-break-of-this-test"); got[0]["replayed"] != false || got[0]["mode"] != "break" {
		t.Errorf("break: %v", got)
	}
	anybody.Read(old, 0).Refused(t, wire.ResetRequired)
	if all := admin(t, data, "sessions"); len(all) != 1 || all[0]["state"] != "reset" {
		t.Errorf("sessions %v", all)
	}

	for want, args := range map[string][]string{
		"there is no feed of this name": {"other", "--mode", "retire", "--key", "0123456789abcdef"},
		"key":                           {devFeed, "--mode", "retire", "--key", "short"},
		"":                              {devFeed, "--mode", "break", "--key", said[1]}, // a key has one mode
		"reason must be a text":         {devFeed, "--mode", "retire", "--key", "0123456789abcdef", "--reason", strings.Repeat("r", 1025)},
	} {
		r := e2e.Run(t, append([]string{"admin", "epoch", "rotate", "--data", data}, args...)...)
		if r.Code != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "overlayd: the operator API refused: ") || !strings.Contains(r.Stderr, want) ||
			strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v: code %d, %s%s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	for want, args := range map[string][]string{
		"say what becomes of old sessions": {"rotate", devFeed},
		"--mode retire lets them live on":  {"rotate", devFeed, "--mode", "delete"},
		"accepts 1 arg(s)":                 {"rotate", "--mode", "break"},
		"admin epoch needs a command":      nil,
	} {
		if r := e2e.Run(t, append([]string{"admin", "epoch"}, args...)...); r.Code != 2 || r.Stdout != "" || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: code %d, %s", args, r.Code, r.Stderr)
		}
	}
	if r := e2e.Run(t, "__complete", "admin", "epoch", "rotate", devFeed, "--mode", ""); r.Code != 0 || !strings.HasPrefix(r.Stdout, "retire\nbreak\n") {
		t.Errorf("completion: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	help := e2e.Run(t, "admin", "epoch", "rotate", "--help")
	for _, word := range []string{"reset-required", "every node", "Nothing brings the old epoch back", "--key", "asks nothing"} {
		if !strings.Contains(help.Stdout, word) {
			t.Errorf("the help does not say %q:\n%s", word, help.Stdout)
		}
	}
}

func TestO12_WhatARotationSaysOnATerminal(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`{"epoch":"e1","feed":"f","mode":"retire","replayed":false}`: "done: epoch e1 has begun",
		`{"epoch":"e1","feed":"f","mode":"break","replayed":true}`:   "nothing to change: this key began epoch e1 before",
		`{"epoch":"e1","feed":"f","mode":"break"}`:                   "",
		`{"changed":true}`: "",
		`<html>`:           "",
	} {
		if got, err := sayRotated([]byte(data)); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", data, got, err)
		}
	}
}
