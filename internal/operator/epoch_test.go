package operator

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/e2e"
	"github.com/overlayd/overlayd/internal/wire"
)

const epochPath = feedPath + "/epoch"

// rotated sends a rotation that must be done and returns its answer.
func (s *server) rotated(body string) (r rotated) {
	s.t.Helper()
	status, text, _ := s.ask(http.MethodPost, epochPath, body)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); status != http.StatusOK || err != nil || r.Feed != "catalogue" || len(r.Epoch) != 64 {
		s.t.Fatalf("%s: %d %s, %v", body, status, text, err)
	}
	return r
}

// epoch is the one the feed shows.
func (s *server) epoch() string {
	s.t.Helper()
	stats, err := s.feed.Stats(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return stats.Epoch
}

func TestO12_OperatorRotatesOncePerKey(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.epoch()
	r := s.rotated(`{"key":"a-rotation-of-a-test","mode":"retire","reason":"a planned move"}`)
	if r.Replayed || r.Mode != "retire" || r.Epoch == first || r.Epoch != s.epoch() {
		t.Errorf("answer %+v after %s, now %s", r, first, s.epoch())
	}
	// The same key again, with the reason left out: the same rotation.
	if again := s.rotated(`{"mode":"retire","key":"a-rotation-of-a-test"}`); !again.Replayed || again.Epoch != r.Epoch || again.Mode != "retire" || s.epoch() != r.Epoch {
		t.Errorf("repeated: %+v", again)
	}
	status, body, _ := s.ask(http.MethodPost, epochPath, `{"key":"a-rotation-of-a-test","mode":"break"}`)
	if e := s.refused(status, body, 409, wire.Conflict); e.Retryable || s.epoch() != r.Epoch {
		t.Errorf("another mode: %s, epoch %s", body, s.epoch())
	}
	// A later rotation does not change what a key answers, and no epoch comes back.
	b := s.rotated(`{"key":"another-rotation-of-a-test","mode":"break"}`)
	if b.Replayed || b.Mode != "break" || b.Epoch == r.Epoch || b.Epoch == first || b.Epoch != s.epoch() {
		t.Errorf("answer %+v", b)
	}
	if again := s.rotated(`{"key":"a-rotation-of-a-test","mode":"retire"}`); !again.Replayed || again.Epoch != r.Epoch || s.epoch() != b.Epoch {
		t.Errorf("repeated after another: %+v, now %s", again, s.epoch())
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if log := s.log.String(); strings.Count(log, "an operator rotated a feed's epoch") != 2 || strings.Contains(log, "planned") || strings.Contains(log, "of-a-test") {
		t.Errorf("log\n%s", log)
	}
}

func TestO12_RetiredSessionsLiveOnAndBrokenOnesAreReset(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, line := range groups(t, 61, 3) {
		if status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", line); status != 200 {
			t.Fatal(body)
		}
	}
	anybody := e2e.NewCaller(t, s.base)
	old := anybody.Open(everybody).Batch(t)
	closed := anybody.Open(everybody).Batch(t)
	anybody.Close(closed)

	s.rotated(`{"key":"0123456789abcdef","mode":"retire"}`)
	old = anybody.Read(old, 0).Batch(t)
	anybody.Open(everybody).Refused(t, wire.ResetRequired) // it names the manifest of the old epoch
	other := e2e.NewCaller(t, s.base)
	fresh := other.Open(everybody).Batch(t)
	if fresh.Scope.Epoch == old.Scope.Epoch {
		t.Errorf("a new session is of the epoch %s that was retired", old.Scope.Epoch)
	}
	if got := s.states(); got["open"] != 2 || got["closed"] != 1 || len(got) != 2 {
		t.Errorf("after a retirement the sessions are %v", got)
	}

	// A poll that waits is told at once.
	ended := make(chan e2e.Answer, 1)
	failed := make(chan error, 1)
	go func() {
		a, err := anybody.ReadFrom(t.Context(), old, 20*time.Second)
		ended <- a
		failed <- err
	}()
	waiting(t, s, 1)
	asked := time.Now()
	s.rotated(`{"key":"0123456789abcdeF","mode":"break"}`)
	a, err := <-ended, <-failed
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(asked); took > 15*time.Second {
		t.Errorf("a poll of 20 s was told after %s", took)
	}
	a.Refused(t, wire.ResetRequired)
	other.Read(fresh, 0).Refused(t, wire.ResetRequired)
	if got := s.states(); got["reset"] != 2 || got["closed"] != 1 || len(got) != 2 {
		t.Errorf("after a break the sessions are %v", got)
	}
	var one feedView
	_, body, _ := s.ask(http.MethodGet, feedPath, "")
	if err := json.Unmarshal([]byte(body), &one); err != nil || one.Sessions != 0 || one.Pins != 0 || one.OldestPin != "" {
		t.Errorf("after a break the feed is %s, %v", body, err)
	}
	e2e.NewCaller(t, s.base).Open(everybody).Batch(t)
}

// states counts the sessions listed, by state.
func (s *server) states() map[string]int {
	s.t.Helper()
	all := map[string]int{}
	for _, v := range s.list("") {
		all[v.State]++
	}
	return all
}

func TestH5_OperatorRotationsAreReadStrictly(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.epoch()
	const key = `"key":"0123456789abcdef"`
	for body, says := range map[string]string{
		``:                                "key must be a text",
		`{}`:                              "key must be a text",
		`[]`:                              "object",
		`{` + key + `}`:                   "mode must be a text",
		`{` + key + `,"mode":"Retire"}`:   "mode is retire",
		`{` + key + `,"mode":"delete"}`:   "mode is retire",
		`{` + key + `,"mode":1}`:          "mode must be a text",
		`{"key":1,"mode":"retire"}`:       "key must be a text",
		`{"key":null,"mode":"retire"}`:    "key must be a text",
		`{"key":"short","mode":"retire"}`: "16",
		`{"key":"0123456789 abcdef","mode":"retire"}`:                                "16",
		`{"key":"` + strings.Repeat("k", 129) + `","mode":"retire"}`:                 "16",
		`{"key":"` + strings.Repeat("k", 1025) + `","mode":"retire"}`:                "key must be a text",
		`{` + key + `,"mode":"retire","reason":""}`:                                  "reason must be a text",
		`{` + key + `,"mode":"retire","reason":7}`:                                   "reason must be a text",
		`{` + key + `,"mode":"retire","reason":"` + strings.Repeat("r", 1025) + `"}`: "reason must be a text",
		`{` + key + `,"mode":"retire","more":1}`:                                     "not known",
		`{` + key + `,"mode":"retire","mode":"break"}`:                               "",
		`{` + key + `,"mode":"retire"} x`:                                            "",
		strings.Repeat(" ", maxOrderBytes) + `{` + key + `,"mode":"retire"}`:         "",
	} {
		status, answer, _ := s.ask(http.MethodPost, epochPath, body)
		want, code := http.StatusBadRequest, wire.Invalid
		if len(body) > maxOrderBytes {
			want, code = http.StatusRequestEntityTooLarge, wire.Limited
		}
		if e := s.refused(status, answer, want, code); !strings.Contains(e.Message, says) || e.Retryable {
			t.Errorf("%.80s: %s does not say %q", body, answer, says)
		}
	}
	if got := s.epoch(); got != first {
		t.Errorf("the epoch was rotated to %s", got)
	}
	// The longest of everything is taken.
	s.rotated(`{"key":"` + strings.Repeat("k", 128) + `","mode":"retire","reason":"` + strings.Repeat("r", 1023) + `\u0000"}`)
}
