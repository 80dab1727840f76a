package localpg

import (
	"errors"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlayd/overlayd/internal/pgtest/require"
	"github.com/overlayd/overlayd/internal/testkit"
)

// Nobody starts again: the kernel alone ends the server.
func TestP3_ServerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	h := startHolder(t, self(t), holdOptions{Data: folder(t)}, nil)
	if h.Error != "" {
		t.Fatal(h.Error)
	}
	h.kill(t)
	awaitNoServer(t, h.Cluster)
}

func TestP9_ClosedParents(t *testing.T) {
	t.Parallel()
	const what = "a root overlayd can keep its cluster under a folder that only root can open"
	if !require.Root(t, what) {
		return
	}
	if !haveCapability(t) {
		require.Missing(t, "CAP_DAC_READ_SEARCH", what)
		return
	}
	data := closedFolder(t)
	s := start(t, Options{Data: data, Fast: true})
	write(t, s.URL(), 1)
	if s.cluster != filepath.Join(data, clusterFolder) {
		t.Errorf("the cluster is in %s", s.cluster)
	}
	info, err := os.Stat(s.cluster)
	if err != nil || owner(info) == 0 || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the cluster belongs to user %d with mode %v: %v", owner(info), info.Mode(), err)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(s.PID()) + "/status")
	if err != nil || !strings.Contains(string(status), "Uid:\t"+strconv.Itoa(owner(info))) {
		t.Errorf("the server does not run as the owner of the cluster: %v", err)
	}
	stop(t, s)
	again := start(t, Options{Data: data, Fast: true})
	wantRows(t, again.URL(), 1)
}

// closedFolder is a Data under a parent that only its owner can open.
func closedFolder(t *testing.T) string {
	t.Helper()
	parent := filepath.Join(testkit.OpenFolder(t), "closed")
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "data")
}

// haveCapability tells whether this process could hand CAP_DAC_READ_SEARCH on.
func haveCapability(t *testing.T) bool {
	t.Helper()
	have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_DAC_READ_SEARCH, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return have == 1
}

// As in a container that was given few capabilities.
func TestP9_WithoutTheCapability(t *testing.T) {
	t.Parallel()
	if !require.Root(t, "a root overlayd without CAP_DAC_READ_SEARCH keeps its cluster in a system folder") {
		return
	}
	system := filepath.Join(testkit.OpenFolder(t), "system")
	data := closedFolder(t)
	options := holdOptions{Data: data, System: system, Fast: true}

	first := startWithoutCapability(t, options)
	if first.Error != "" {
		t.Fatal(first.Error)
	}
	if !strings.HasPrefix(first.Cluster, system) {
		t.Errorf("the cluster is in %s", first.Cluster)
	}
	write(t, first.URL, 1)
	first.kill(t)

	second := startWithoutCapability(t, options)
	if second.Error != "" {
		t.Fatal(second.Error)
	}
	if second.Cluster != first.Cluster || second.URL != first.URL {
		t.Errorf("the second start went to %s, the first to %s", second.Cluster, first.Cluster)
	}
	wantRows(t, second.URL, 1)
	second.finish(t)

	// With the capability back it stays where it is.
	third := start(t, Options{Data: data, Fast: true, system: system})
	if third.cluster != first.Cluster {
		t.Errorf("the third start went to %s", third.cluster)
	}
	wantRows(t, third.URL(), 1)
	stop(t, third)

	// A cluster inside Data, on the other hand, is now out of reach, and stays untouched.
	if haveCapability(t) {
		inside := closedFolder(t)
		stop(t, start(t, Options{Data: inside, Fast: true}))
		refused := startWithoutCapability(t, holdOptions{Data: inside, System: system, Fast: true})
		if !strings.Contains(refused.Error, "chmod o+x") {
			t.Errorf("a cluster that cannot be reached: %q", refused.Error)
		}
	} else {
		require.Missing(t, "CAP_DAC_READ_SEARCH", "a cluster that is out of reach since the capability is gone is refused")
	}

	// Data was deleted: what it pointed to is put aside, not mistaken for the new one.
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	anew := startWithoutCapability(t, options)
	if anew.Error != "" {
		t.Fatal(anew.Error)
	}
	if n := query[int](t, anew.URL, "select count(*) from pg_class where relname = 'kept'"); n != 0 {
		t.Error("a new Data shows the rows of a deleted one")
	}
	if _, err := os.Stat(anew.Cluster + ".old"); err != nil {
		t.Errorf("the old cluster was not kept: %v", err)
	}
	anew.finish(t)
	if err := Remove(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(system, "*")); err != nil || len(left) != 0 {
		t.Errorf("left in the system folder: %v, %v", left, err)
	}
}

// startWithoutCapability runs a helper as a root that has what containers usually leave it: neither CAP_DAC_READ_SEARCH, to
// reach the folder, nor CAP_SYS_PTRACE, to see where another user's process is.
func startWithoutCapability(t *testing.T, o holdOptions) *holder {
	t.Helper()
	usual := []int{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
		unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SYS_CHROOT, unix.CAP_MKNOD, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
	}
	result := make(chan *holder)
	go func() {
		defer close(result)
		runtime.LockOSThread() // and never unlocked: the thread has lost something for ever
		for c := range unix.CAP_LAST_CAP + 1 {
			if slices.Contains(usual, c) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				t.Errorf("drop capability %d: %v", c, err)
				return
			}
		}
		result <- startHolder(t, self(t), o, nil)
	}()
	h := <-result
	if h == nil {
		t.FailNow()
	}
	return h
}

// What is told from command lines is told the same way from folders.
func TestP4_CommandLines(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Data: folder(t), Fast: true})
	pids := serversIn(s.cluster)
	if len(pids) < 4 || !slices.Contains(pids, s.PID()) {
		t.Fatalf("the processes of the server are %v, its main one is %d", pids, s.PID())
	}
	for _, pid := range pids {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && len(line) == 0 {
			continue // one of its short-lived workers
		}
		if err != nil || !serverLine(string(line), s.cluster) {
			t.Errorf("not recognised: %q, %v", line, err)
		}
		if serverLine(string(line), s.cluster+"x") || serverLine(string(line), s.cluster[:len(s.cluster)-1]) {
			t.Errorf("taken for a process of another cluster: %q", line)
		}
	}
	for _, line := range []string{"", "vi\x00" + s.cluster, "less\x00-D\x00" + s.cluster + "\x00", "postgres: main: checkpointer "} {
		if serverLine(line, s.cluster) {
			t.Errorf("taken for a server: %q", line)
		}
	}
}

func TestP9_OrdinaryUser(t *testing.T) {
	t.Parallel()
	if !require.Root(t, "an ordinary user can run it (shown here by the other tests, but not the meeting of root and that user)") {
		return
	}
	nobody, err := osuser.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	u, ok := asUser(nobody.Username, nobody.Uid, nobody.Gid)
	if !ok {
		t.Fatalf("nobody is user %s", nobody.Uid)
	}
	base := testkit.OpenFolder(t)
	program := filepath.Join(base, "localpg.test")
	copyFile(t, self(t), program)
	home := filepath.Join(base, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, int(u.uid), int(u.gid)); err != nil {
		t.Fatal(err)
	}
	asNobody := func(cmd *exec.Cmd) {
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.uid, Gid: u.gid}}
	}
	data := filepath.Join(home, "data")
	first := startHolder(t, program, holdOptions{Data: data}, asNobody)
	if first.Error != "" {
		t.Fatal(first.Error)
	}
	write(t, first.URL, 1)
	first.kill(t)

	// Root goes on as the owner of the cluster, and leaves everything usable by that user, also what it makes anew.
	if err := os.Remove(filepath.Join(data, logName)); err != nil {
		t.Fatal(err)
	}
	asRoot := start(t, Options{Data: data})
	wantRows(t, asRoot.URL(), 1)
	stop(t, asRoot)
	second := startHolder(t, program, holdOptions{Data: data}, asNobody)
	if second.Error != "" {
		t.Fatal(second.Error)
	}
	wantRows(t, second.URL, 1)
	second.finish(t)
	noServer(t, second.Cluster)

	// The other way round it is refused with a reason.
	rootData := filepath.Join(base, "of-root")
	stop(t, start(t, Options{Data: rootData, Fast: true}))
	refused := startHolder(t, program, holdOptions{Data: rootData}, asNobody)
	if !strings.Contains(refused.Error, "another user") {
		t.Errorf("nobody on the folder of root: %q", refused.Error)
	}
}

// copyFile leaves the copying to another process: a file this one had open for writing may still be open in a child that is
// just being forked, and cannot be run then.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "--", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy the test program: %v: %s", err, out)
	}
}
