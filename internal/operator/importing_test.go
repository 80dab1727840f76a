package operator

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// importing is a running import: lines are written, answers read.
type importing struct {
	t       *testing.T
	in      *io.PipeWriter
	answers *bufio.Reader
	body    io.Closer
}

func (s *server) importing() *importing {
	s.t.Helper()
	r, w := io.Pipe()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+feedPath+"/import", r)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/x-ndjson" {
		s.t.Fatalf("import: %s %v", response.Status, response.Header)
	}
	s.t.Cleanup(func() { _ = response.Body.Close() })
	return &importing{t: s.t, in: w, answers: bufio.NewReader(response.Body), body: response.Body}
}

func (i *importing) send(line string) {
	i.t.Helper()
	if _, err := io.WriteString(i.in, line+"\n"); err != nil {
		i.t.Fatal(err)
	}
}

func (i *importing) answer() result {
	i.t.Helper()
	text, err := i.answers.ReadString('\n')
	if err != nil {
		i.t.Fatal(err)
	}
	return parseResult(i.t, text)
}

func (i *importing) end() {
	i.t.Helper()
	if rest, err := io.ReadAll(i.answers); err != nil || len(rest) > 0 {
		i.t.Fatalf("after the last answer: %q, %v", rest, err)
	}
}

func TestP3_ImportAnswersWhileItReads(t *testing.T) {
	t.Parallel()
	s := start(t)
	i := s.importing()
	// Strictly in turns: nothing is answered late because more could follow.
	for n, line := range groups(t, 6, 20) {
		i.send(line)
		if r := i.answer(); r.Sequence != strconv.Itoa(n+1) || r.Replayed {
			t.Fatalf("line %d: %+v", n, r)
		}
	}
	if err := i.in.Close(); err != nil {
		t.Fatal(err)
	}
	i.end()
}

func TestL11_ImportOfTwentyThousandLinesLosesNone(t *testing.T) {
	t.Parallel()
	const n = 20000
	s := start(t)
	// Small groups: the answers are what is tested. Every tenth line repeats the one before it.
	var lines []string
	for k := range n {
		if k%10 == 9 {
			lines = append(lines, lines[k-1])
			continue
		}
		lines = append(lines, fmt.Sprintf(`{"key":"import-of-many-%06d","edits":[{"op":"invalidate","contextId":"c%d","reason":"test"}]}`, k, k))
	}
	for _, again := range []bool{false, true} {
		i := s.importing()
		go func() {
			_, err := io.WriteString(i.in, strings.Join(lines, "\n"))
			i.in.CloseWithError(err)
		}()
		sequence := 0
		for k := range n {
			r := i.answer()
			repeat := k%10 == 9
			if !repeat {
				sequence++
			}
			if r.Error != nil || r.Sequence != strconv.Itoa(sequence) || r.Replayed != (repeat || again) {
				t.Fatalf("line %d (again %v): %+v, want sequence %d", k, again, r, sequence)
			}
		}
		i.end()
	}
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != n/10*9 {
		t.Errorf("head %d, %v", stats.Head, err)
	}
}

func TestP4_ALineAtFaultIsAnsweredAndTheStreamGoesOn(t *testing.T) {
	t.Parallel()
	s := start(t)
	good := groups(t, 7, 3)
	input := strings.Join([]string{
		good[0],
		"", "  \t\r", // hold nothing, are not answered
		"nonsense",
		`{"key":"x"}`,
		good[1] + "\r", // a Windows file
		strings.Repeat("z", MaxGroupBytes+1),
		`{"key":"` + strings.Repeat("k", 20) + `","edits":[{"op":"put"}]}`,
		good[0],
		good[2], // without a line end
	}, "\n")
	status, body, _ := s.ask(http.MethodPost, feedPath+"/import", input)
	if status != 200 {
		t.Fatal(body)
	}
	var got []string
	for text := range strings.Lines(body) {
		r := parseResult(t, text)
		switch {
		case r.Error != nil:
			got = append(got, r.Error.Code)
		case r.Replayed:
			got = append(got, "again "+r.Sequence)
		default:
			got = append(got, r.Sequence)
		}
	}
	if want := "1 invalid invalid 2 limited invalid again 1 3"; strings.Join(got, " ") != want {
		t.Errorf("answers %q, want %q", strings.Join(got, " "), want)
	}
}

func TestP4_ALineCutOffByALostPeerIsNoGroup(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 8, 2)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body := lines[0] + "\n" + lines[1][:len(lines[1])-1]
	head := "POST " + feedPath + "/import HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\nTransfer-Encoding: chunked\r\n\r\n"
	if _, err := fmt.Fprintf(conn, "%s%x\r\n%s\r\n", head, len(body), body); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(response.Body)
	if text, err := answers.ReadString('\n'); err != nil || parseResult(t, text).Sequence != "1" {
		t.Fatalf("%q, %v", text, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil { // returns when the import's handler has: nothing is left behind
		t.Fatal(err)
	}
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != 1 {
		t.Errorf("head %d, %v", stats.Head, err)
	}
}

func TestW7_DrainEndsAnImportAfterWhatItTook(t *testing.T) {
	t.Parallel()
	s := start(t)
	i := s.importing()
	lines := groups(t, 9, 3)
	i.send(lines[0])
	i.send(lines[1])
	if r := i.answer(); r.Sequence != "1" {
		t.Fatalf("%+v", r)
	}
	if r := i.answer(); r.Sequence != "2" {
		t.Fatalf("%+v", r)
	}
	// The import waits for a line that does not come.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	i.end()
	_ = i.in.CloseWithError(io.ErrClosedPipe)
}

func TestP4_AnImportOfAStoppedFeedEndsAtItsFirstLine(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.halt()
	lines := strings.Join(groups(t, 12, 40), "\n")
	for range 5 { // on kept connections, if there were any
		status, body, _ := s.ask(http.MethodPost, feedPath+"/import", lines)
		if r := parseResult(t, body); status != 200 || r.Error == nil || r.Error.Code != "unavailable" || !r.Error.Retryable {
			t.Fatalf("%d %s", status, body)
		}
	}
	status, body, _ := s.ask(http.MethodPost, feedPath+"/groups", groups(t, 12, 1)[0])
	if e := s.refused(status, body, 503, wire.Unavailable); !e.Retryable || e.RetryAfterMs == nil {
		t.Errorf("%s", body)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s.http.String(), "panic") {
		t.Errorf("net/http complains: %s", s.http)
	}
}

// outage refuses a group with Unavailable.
type outage struct {
	feed *livefeed.Feed
	at   int
	n    int
}

func (o *outage) SubmitAfter(ctx context.Context, p *livefeed.Proposal, before *livefeed.Pending) *livefeed.Pending {
	if o.n++; o.n == o.at {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		return o.feed.SubmitAfter(gone, p, before)
	}
	return o.feed.SubmitAfter(ctx, p, before)
}

func TestP4_AnOutageEndsTheImportAtItsLine(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 10, 5)
	r, w := io.Pipe()
	go func() { _, _ = io.WriteString(w, strings.Join(lines[:3], "\n")+"\n") }() // and stays open
	var got []int
	err := Import(t.Context(), &outage{feed: s.feed, at: 2}, r, func(res Result, _ bool) error {
		got = append(got, res.Line)
		if interrupts(res) {
			return r.CloseWithError(errors.New("ended by its caller"))
		}
		return nil
	})
	if !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v", err)
	}
	if fmt.Sprint(got) != "[1 2]" {
		t.Errorf("answered lines %v", got)
	}
	// The third line was submitted before the second's fate was known.
	if stats, err := s.feed.Stats(t.Context()); err != nil || stats.Head != 1 {
		t.Errorf("%d groups were appended, %v", stats.Head, err)
	}
}

func TestP3_ImportReportsABrokenInputAfterItsAnswers(t *testing.T) {
	t.Parallel()
	s := start(t)
	lines := groups(t, 11, 2)
	broken := errors.New("the disk is gone")
	input := io.MultiReader(strings.NewReader(lines[0]+"\n"+lines[1][:20]), iotest.ErrReader(broken))
	var got []Result
	err := Import(t.Context(), s.feed, input, func(res Result, _ bool) error { got = append(got, res); return nil })
	if !errors.Is(err, broken) || len(got) != 1 || got[0].Err != nil {
		t.Errorf("%v, %+v", err, got)
	}
	stop := errors.New("enough")
	err = Import(t.Context(), s.feed, bytes.NewReader([]byte(strings.Join(lines, "\n"))), func(Result, bool) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("an error of emit became %v", err)
	}
}
