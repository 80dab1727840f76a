//go:build unix

package localpg

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/testkit"
)

// helperWord as first argument turns the test binary into a process that holds a server.
const helperWord = "hold-a-server"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == helperWord {
		os.Exit(hold(os.Args[2]))
	}
	os.Exit(m.Run())
}

// holdOptions is what a test may choose for its helper.
type holdOptions struct {
	Data, System string
	Fast         bool
}

// holdReply is the one line a helper writes.
type holdReply struct {
	URL, Error string
	PID        int
	Cluster    string
}

// hold starts a server, says so, and stops it when its standard input ends.
func hold(arg string) int {
	var o holdOptions
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return 2
	}
	var reply holdReply
	s, err := Start(context.Background(), Options{Data: o.Data, Fast: o.Fast, system: o.System})
	if err != nil {
		reply.Error = err.Error()
	} else {
		reply = holdReply{URL: s.URL(), PID: s.PID(), Cluster: s.cluster}
	}
	if err := json.NewEncoder(os.Stdout).Encode(reply); err != nil || reply.Error != "" {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(context.Background()); err != nil {
		return 1
	}
	return 0
}

// holder is a running helper process.
type holder struct {
	holdReply
	cmd   *exec.Cmd
	stdin io.Closer
}

// startHolder runs program (a copy of the test binary) as a helper; change may alter the command first.
func startHolder(t *testing.T, program string, o holdOptions, change func(*exec.Cmd)) *holder {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, helperWord, string(arg))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(cmd)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		_ = stdin.Close()
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the helper process said nothing: %v", err)
	}
	if err := json.Unmarshal(line, &h.holdReply); err != nil {
		t.Fatal(err)
	}
	return h
}

// kill ends the helper as nothing could be prepared for.
func (h *holder) kill(t *testing.T) {
	t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.cmd.Wait() // says that it was killed
}

// finish lets the helper stop its server and end.
func (h *holder) finish(t *testing.T) {
	t.Helper()
	if err := h.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); err != nil {
		t.Fatalf("the helper process did not end well: %v", err)
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start is Start for a test that expects it to work; the server is stopped after the test.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	noServer(t, s.cluster)
}

// mustFail is Start for a test that expects a refusal with every one of the words.
func mustFail(t *testing.T, o Options, words ...string) error {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err == nil {
		stop(t, s)
		t.Fatal("started, where a refusal was due")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the refusal does not mention %q: %v", w, err)
		}
	}
	noServer(t, filepath.Join(o.Data, clusterFolder))
	return err
}

// noServer fails when any process of a server still lives in the folder.
func noServer(t *testing.T, cluster string) {
	t.Helper()
	if pids := serversIn(cluster); len(pids) > 0 {
		t.Errorf("server processes are left in %s: %v", cluster, pids)
	}
}

// awaitNoServer gives what the kernel has told to end the time to do so.
func awaitNoServer(t *testing.T, cluster string) {
	t.Helper()
	if !awaitGone(t.Context(), cluster, time.Minute) {
		t.Fatalf("server processes are left in %s: %v", cluster, serversIn(cluster))
	}
}

func query[T any](t *testing.T, url, sql string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// write commits a row that the test looks for later.
func write(t *testing.T, url string, v int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "create table if not exists kept (v int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "insert into kept values ($1)", v); err != nil {
		t.Fatal(err)
	}
}

func wantRows(t *testing.T, url string, want int) {
	t.Helper()
	if got := query[int](t, url, "select count(*) from kept"); got != want {
		t.Errorf("%d rows are kept, want %d", got, want)
	}
}

func wantRefused(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_ = conn.Close(t.Context())
		t.Errorf("let in where it should not")
	}
}

// occupy takes the port until the returned function is called.
func occupy(t *testing.T, port int) (free func()) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	free = func() { _ = l.Close() }
	t.Cleanup(free)
	return free
}

func portOf(t *testing.T, s *Server) int {
	t.Helper()
	config, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return int(config.Port)
}

// folder is a Data whose server any user may run.
func folder(t *testing.T) string {
	t.Helper()
	return filepath.Join(testkit.OpenFolder(t), "data")
}

func sendSignal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("send %v to process %d: %v", s, pid, err)
	}
}

func mustBe[E error](t *testing.T, err error) E {
	t.Helper()
	e, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("the error is of another kind: %v", fmt.Sprintf("%T: %v", err, err))
	}
	return e
}
