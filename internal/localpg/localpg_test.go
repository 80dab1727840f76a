//go:build unix

package localpg

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestP1_RestartKeepsDatabasePasswordAndPort(t *testing.T) {
	t.Parallel()
	data := folder(t)
	first := start(t, Options{Data: data})
	write(t, first.URL(), 1)
	stop(t, first)
	if err := first.Err(); err != nil {
		t.Errorf("a stopped server reports an error: %v", err)
	}
	info, err := os.Stat(filepath.Join(data, stateName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info.Mode(), err)
	}

	second := start(t, Options{Data: data})
	if second.URL() != first.URL() {
		t.Error("the URL changed between two starts")
	}
	wantRows(t, second.URL(), 1)
	if !strings.HasSuffix(second.URL(), "/overlayd?sslmode=disable") {
		t.Error("the URL is not of the database overlayd")
	}
	stop(t, second)

	// Somebody took the port: another one for now, the old one again later.
	free := occupy(t, portOf(t, first))
	third := start(t, Options{Data: data})
	if portOf(t, third) == portOf(t, first) {
		t.Error("runs on a port that is taken")
	}
	wantRows(t, third.URL(), 1)
	stop(t, third)
	mustFail(t, Options{Data: data, Port: portOf(t, first)}, "port "+strconv.Itoa(portOf(t, first)), "taken")
	free()
	fourth := start(t, Options{Data: data, Database: "other"})
	if portOf(t, fourth) != portOf(t, first) {
		t.Error("did not go back to the port of the first start")
	}
	if got := query[string](t, fourth.URL(), "select current_database()"); got != "other" {
		t.Errorf("the database is %q", got)
	}
}

func TestP2_SecondStartOnTheSameDataRefused(t *testing.T) {
	t.Parallel()
	data := folder(t)
	s := start(t, Options{Data: data, Fast: true})
	_, err := Start(t.Context(), Options{Data: data})
	inUse := mustBe[*InUseError](t, err)
	if inUse.PID != os.Getpid() || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the refusal does not name this process: %v", err)
	}
	mustBe[*InUseError](t, Remove(t.Context(), data))
	if query[int](t, s.URL(), "select 1") != 1 {
		t.Error("the refused start hurt the server")
	}
	stop(t, s)
	if err := Remove(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Data is still there: %v", err)
	}
	if err := Remove(t.Context(), data); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

// The lock is an open file, and files nobody refers to are closed by the collector.
func TestP2_ForgottenServerKeepsItsLock(t *testing.T) {
	t.Parallel()
	data := folder(t)
	forgotten, err := Start(t.Context(), Options{Data: data, Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	pid, cluster := forgotten.PID(), forgotten.cluster
	t.Cleanup(func() { awaitGone(context.WithoutCancel(t.Context()), cluster, time.Minute) })
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGINT) })
	for range 3 {
		runtime.GC()
	}
	_, err = Start(t.Context(), Options{Data: data})
	mustBe[*InUseError](t, err)
}

func TestP3_KilledOwnerIsTakenOver(t *testing.T) {
	t.Parallel()
	data := folder(t)
	h := startHolder(t, self(t), holdOptions{Data: data}, nil)
	if h.Error != "" {
		t.Fatal(h.Error)
	}
	write(t, h.URL, 1)
	_, err := Start(t.Context(), Options{Data: data})
	if inUse := mustBe[*InUseError](t, err); inUse.PID != h.cmd.Process.Pid {
		t.Errorf("the refusal names process %d, the owner is %d", inUse.PID, h.cmd.Process.Pid)
	}
	h.kill(t)

	s := start(t, Options{Data: data})
	for _, pid := range serversIn(s.cluster) {
		if pid == h.PID {
			t.Error("the server of the killed process still runs")
		}
	}
	if s.URL() != h.URL {
		t.Error("the URL changed by the take-over")
	}
	wantRows(t, s.URL(), 1)
}

// A server that does not react (here: frozen) is killed in the end, and recovers.
func TestP3_FrozenServerIsTakenOver(t *testing.T) {
	t.Parallel()
	data := folder(t)
	h := startHolder(t, self(t), holdOptions{Data: data}, nil)
	if h.Error != "" {
		t.Fatal(h.Error)
	}
	write(t, h.URL, 1)
	sendSignal(t, h.PID, syscall.SIGSTOP)
	h.kill(t)
	s := start(t, Options{Data: data, patience: []time.Duration{time.Millisecond, time.Millisecond, time.Minute}})
	wantRows(t, s.URL(), 1)
}

func TestP3_TakeOverGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	data := folder(t)
	h := startHolder(t, self(t), holdOptions{Data: data}, nil)
	if h.Error != "" {
		t.Fatal(h.Error)
	}
	sendSignal(t, h.PID, syscall.SIGSTOP)
	h.kill(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Options{Data: data}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start beside a frozen server: %v", err)
	}
	sendSignal(t, h.PID, syscall.SIGCONT)
	if err := Remove(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	noServer(t, h.Cluster)
}

// The number in postmaster.pid may long belong to somebody else, here to this test.
func TestP4_StrangersAreLeftAlone(t *testing.T) {
	t.Parallel()
	data := folder(t)
	stop(t, start(t, Options{Data: data, Fast: true}))
	cluster := filepath.Join(data, clusterFolder)
	for _, text := range []string{
		strconv.Itoa(os.Getpid()) + "\n" + cluster + "\n1700000000\n5432\n\n127.0.0.1\n  1 2\nready\n",
		"1\n/somewhere/else\n",
		"garbage",
		"",
	} {
		if err := os.WriteFile(filepath.Join(cluster, pidFileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stop(t, start(t, Options{Data: data, Fast: true}))
	}
}

func TestP5_LoopbackAndPasswordOnly(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Data: folder(t), Fast: true})
	for setting, want := range map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"password_encryption":     "scram-sha-256",
	} {
		if got := query[string](t, s.URL(), "select current_setting($1)", setting); got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	port := strconv.Itoa(portOf(t, s))
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort(ip.IP.String(), port))
		if err == nil {
			_ = conn.Close()
			t.Errorf("answers on %s", ip.IP)
		}
	}
	wantRefused(t, "postgres://overlayd@127.0.0.1:"+port+"/overlayd?sslmode=disable")
	wantRefused(t, "postgres://overlayd:wrong@127.0.0.1:"+port+"/overlayd?sslmode=disable")
	wantRefused(t, "postgres://postgres@127.0.0.1:"+port+"/postgres?sslmode=disable")
	if n := query[int](t, s.URL(), "select count(*) from pg_hba_file_rules where auth_method <> 'scram-sha-256'"); n != 0 {
		t.Errorf("%d rules let in without the password", n)
	}
}

// Whenever a start is cut short, nothing is left running and the next one works.
func TestP6_CancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	data := folder(t)
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := Start(ctx, Options{Data: data, Fast: true})
		cancel()
		if err == nil {
			stop(t, s)
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cut short after %v: %v", after, err)
		}
		noServer(t, filepath.Join(data, clusterFolder))
		noServer(t, filepath.Join(data, clusterFolder+".new"))
	}
	stop(t, start(t, Options{Data: data, Fast: true}))
}

func TestP6_FailedStartQuotesTheLog(t *testing.T) {
	t.Parallel()
	data := folder(t)
	stop(t, start(t, Options{Data: data, Fast: true}))
	conf := filepath.Join(data, clusterFolder, "postgresql.conf")
	good, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, append(good, "\nwork_mem = 'a lot'\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	err = mustFail(t, Options{Data: data}, "work_mem", logName)
	if strings.Contains(err.Error(), "database system is shut down") {
		t.Errorf("the quote reaches into an earlier start: %v", err)
	}
	if err := os.WriteFile(conf, good, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, Options{Data: data, Fast: true})
}

func TestP6_StopOutOfTimeStillLeavesNothing(t *testing.T) {
	t.Parallel()
	data := folder(t)
	s := start(t, Options{Data: data})
	write(t, s.URL(), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err != nil && !errors.Is(err, context.Canceled) { // it may have been fast enough all the same
		t.Error(err)
	}
	noServer(t, s.cluster)
	again := start(t, Options{Data: data})
	wantRows(t, again.URL(), 1)
}

func TestP6_ServerThatEndsByItselfIsReported(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Data: folder(t), Fast: true})
	if s.Err() != nil {
		t.Errorf("a running server reports: %v", s.Err())
	}
	sendSignal(t, s.PID(), syscall.SIGKILL)
	select {
	case <-s.Done():
	case <-t.Context().Done():
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a killed server reports: %v", err)
	}
	awaitNoServer(t, s.cluster)
}

func TestP7_HalfMadeClusterIsMadeAgain(t *testing.T) {
	t.Parallel()
	data := folder(t)
	if err := os.MkdirAll(filepath.Join(data, clusterFolder+".new", "base"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, clusterFolder+".new", "PG_VERSION"), []byte("9"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Data: data, Fast: true})
	if _, err := os.Stat(s.cluster + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half made cluster is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(data, "password.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that brought the password to initdb is still there: %v", err)
	}
}

func TestP8_Settings(t *testing.T) {
	t.Parallel()
	durable := start(t, Options{Data: folder(t)})
	fast := start(t, Options{Data: folder(t), Fast: true, MaxConnections: 37})
	for _, row := range []struct{ setting, durable, fast string }{
		{"fsync", "on", "off"},
		{"full_page_writes", "on", "off"},
		{"synchronous_commit", "on", "on"},
		{"wal_level", "replica", "replica"},
		{"max_connections", "100", "37"},
		{"shared_buffers", "128MB", "128MB"},
		{"random_page_cost", "1.1", "1.1"},
		{"data_checksums", "on", "on"},
		{"server_encoding", "UTF8", "UTF8"},
		{"TimeZone", "UTC", "UTC"},
	} {
		if got := query[string](t, durable.URL(), "select current_setting($1)", row.setting); got != row.durable {
			t.Errorf("durable: %s = %q, want %q", row.setting, got, row.durable)
		}
		if got := query[string](t, fast.URL(), "select current_setting($1)", row.setting); got != row.fast {
			t.Errorf("fast: %s = %q, want %q", row.setting, got, row.fast)
		}
	}
	if got := query[string](t, durable.URL(), "select datcollate from pg_database where datname = 'overlayd'"); got != "C" {
		t.Errorf("the database is ordered by %q", got)
	}
}

func TestP10_OtherMajorVersionRefused(t *testing.T) {
	t.Parallel()
	data := folder(t)
	s := start(t, Options{Data: data, Fast: true})
	stop(t, s)
	version := filepath.Join(s.cluster, "PG_VERSION")
	good, err := os.ReadFile(version)
	if err != nil {
		t.Fatal(err)
	}
	for content, words := range map[string][]string{
		"12\n":     {"PostgreSQL 12", "PostgreSQL " + strings.TrimSpace(string(good)), "install"},
		"secret\n": {"PG_VERSION"},
	} {
		if content == "12\n" {
			words[1] = strings.TrimSpace(string(good)) + "."
		}
		if err := os.WriteFile(version, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		mustFail(t, Options{Data: data}, words...)
		if now, err := os.ReadFile(version); err != nil || string(now) != content {
			t.Errorf("the refused cluster was touched: %q, %v", now, err)
		}
	}
	if err := os.Remove(version); err != nil {
		t.Fatal(err)
	}
	mustFail(t, Options{Data: data}, "PG_VERSION is missing")
}

func TestDamagedStateIsRefused(t *testing.T) {
	t.Parallel()
	data := folder(t)
	stop(t, start(t, Options{Data: data, Fast: true}))
	path := filepath.Join(data, stateName)
	if err := os.WriteFile(path, []byte(`{"password":`), 0o600); err != nil {
		t.Fatal(err)
	}
	mustFail(t, Options{Data: data}, "damaged", path)
	if err := os.WriteFile(path, []byte(`{"password":"not the one","port":0}`), 0o600); err != nil {
		t.Fatal(err)
	}
	mustFail(t, Options{Data: data}, "password authentication failed")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustFail(t, Options{Data: data}, stateName, "missing")
	mustFail(t, Options{}, "no data folder")
}
