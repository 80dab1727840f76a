package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// script is an import endpoint that follows a plan: each connection is one step.
type script struct {
	t     *testing.T
	mu    sync.Mutex
	steps []func(w http.ResponseWriter, lines *bufio.Scanner) // guarded by mu
	seen  [][]string                                          // lines read by each connection; guarded by mu
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	step := func(http.ResponseWriter, *bufio.Scanner) { s.t.Error("one connection too many") }
	if len(s.steps) > 0 {
		step, s.steps = s.steps[0], s.steps[1:]
	}
	s.seen = append(s.seen, nil)
	at := len(s.seen) - 1
	s.mu.Unlock()
	_ = http.NewResponseController(w).EnableFullDuplex()
	w.Header().Set("Connection", "close") // steps end before their input
	scanner := bufio.NewScanner(r.Body)
	scanner.Split(func(data []byte, eof bool) (int, []byte, error) {
		n, token, err := bufio.ScanLines(data, eof)
		if token != nil {
			s.mu.Lock()
			s.seen[at] = append(s.seen[at], string(token))
			s.mu.Unlock()
		}
		return n, token, err
	})
	step(w, scanner)
}

// answerLines answers up to n lines as appended; -1 is all.
func answerLines(w http.ResponseWriter, lines *bufio.Scanner, n int) {
	for n != 0 && lines.Scan() {
		_, _ = fmt.Fprintln(w, `{"highWater":"1","replayed":false,"sequence":"1"}`)
		_ = http.NewResponseController(w).Flush()
		n--
	}
}

func run1(t *testing.T, s *script, input string) ([]answered, int, error) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	var got []answered
	retries := 0
	u := &uploader{
		url: server.URL, token: "t", retryFor: time.Minute,
		answered: func(a answered) { got = append(got, a) },
		retrying: func(error, time.Duration) { retries++ },
	}
	err := u.run(t.Context(), strings.NewReader(input))
	return got, retries, err
}

func TestUploadResumesFromTheFirstUnansweredLine(t *testing.T) {
	t.Parallel()
	s := &script{t: t, steps: []func(http.ResponseWriter, *bufio.Scanner){
		func(w http.ResponseWriter, lines *bufio.Scanner) { // cut off after two answers
			answerLines(w, lines, 2)
			panic(http.ErrAbortHandler)
		},
		func(w http.ResponseWriter, _ *bufio.Scanner) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(w http.ResponseWriter, lines *bufio.Scanner) { // not now, at its second line
			answerLines(w, lines, 1)
			lines.Scan()
			_, _ = fmt.Fprintln(w, `{"error":{"code":"unavailable","message":"later","retryable":true},"version":1}`)
		},
		func(w http.ResponseWriter, lines *bufio.Scanner) { // ends politely, too early
			answerLines(w, lines, 1)
		},
		func(w http.ResponseWriter, lines *bufio.Scanner) { answerLines(w, lines, -1) },
	}}
	got, retries, err := run1(t, s, "a\nb\n\nc\nd\ne\nf")
	if err != nil || retries != 4 {
		t.Fatalf("error %v after %d retries", err, retries)
	}
	var numbers []string
	for _, a := range got {
		numbers = append(numbers, fmt.Sprint(a.line))
	}
	if strings.Join(numbers, " ") != "1 2 4 5 6 7" {
		t.Errorf("lines answered: %v", numbers)
	}
	for i, first := range []string{"a", "", "c", "d", "e"} {
		if seen := s.seen[i]; first != "" && (len(seen) == 0 || seen[0] != first) {
			t.Errorf("connection %d began with %q, want %q", i, seen, first)
		}
	}
	if last := strings.Join(s.seen[4], ""); last != "ef" {
		t.Errorf("the last connection got %q", last)
	}
}

func TestUploadGivesUpOnWhatCannotBeCured(t *testing.T) {
	t.Parallel()
	answer := func(status int, text string) func(http.ResponseWriter, *bufio.Scanner) {
		return func(w http.ResponseWriter, _ *bufio.Scanner) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
		}
	}
	for says, step := range map[string]func(http.ResponseWriter, *bufio.Scanner){
		"the import was refused: no such feed": answer(404, `{"error":{"code":"not-found","message":"no such feed","retryable":false},"version":1}`),
		"answered 404":                         answer(404, "404 page not found\n"),
		"answered 302":                         answer(302, ""),
		"an answer that is none":               answer(200, "<html>\n"),
		"more answers than there were lines":   answer(200, strings.Repeat(`{"sequence":"1"}`+"\n", 3)),
	} {
		_, retries, err := run1(t, &script{t: t, steps: []func(http.ResponseWriter, *bufio.Scanner){step}}, "a\nb\n")
		if err == nil || !strings.Contains(err.Error(), says) || retries != 0 {
			t.Errorf("error %v after %d retries, want %q", err, retries, says)
		}
	}
}

func TestUploadGivesUpWithoutAnyAnswer(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	retries := 0
	u := &uploader{url: gone.URL, retryFor: 200 * time.Millisecond, answered: func(answered) {}, retrying: func(error, time.Duration) { retries++ }}
	err := u.run(t.Context(), strings.NewReader("a\n"))
	if err == nil || !strings.Contains(err.Error(), "no answer for 200ms") || retries == 0 {
		t.Errorf("error %v after %d retries", err, retries)
	}
}

func TestUploadReportsABrokenInputAfterWhatItHeld(t *testing.T) {
	t.Parallel()
	s := &script{t: t, steps: []func(http.ResponseWriter, *bufio.Scanner){
		func(w http.ResponseWriter, lines *bufio.Scanner) { answerLines(w, lines, -1) },
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	broken := errors.New("the disk is gone")
	n := 0
	u := &uploader{url: server.URL, retryFor: time.Minute, answered: func(answered) { n++ }, retrying: func(err error, _ time.Duration) { t.Error(err) }}
	err := u.run(t.Context(), iotest.DataErrReader(&brokenAfter{text: "a\nb\n", err: broken}))
	if !errors.Is(err, broken) || n != 2 {
		t.Errorf("error %v after %d answers", err, n)
	}
}

// brokenAfter gives a text, then an error.
type brokenAfter struct {
	text string
	err  error
}

func (b *brokenAfter) Read(p []byte) (int, error) {
	if b.text == "" {
		return 0, b.err
	}
	n := copy(p, b.text)
	b.text = b.text[n:]
	return n, nil
}
