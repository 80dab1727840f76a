package localpg

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// capDACReadSearch is CAP_DAC_READ_SEARCH: read any file, search any folder, write nothing more than before.
const capDACReadSearch = 2

// attributes of a child: its own process group, so that a Ctrl-C meant for overlayd does not reach it, and the signal the
// kernel sends it when this process dies.
func attributes(u user, withCapability bool, death syscall.Signal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if u.change {
		a.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid}
	}
	if withCapability {
		a.AmbientCaps = []uintptr{capDACReadSearch}
	}
	return a
}

// serversIn lists every process that is a Postgres server, or a part of one, in the data directory. Its working directory
// is that folder, which no recycled process number can fake. A root without CAP_SYS_PTRACE, as in most containers, may not
// see that of another user's process; then the command line or title tells, which names the directory too.
func serversIn(cluster string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		folder := filepath.Join("/proc", e.Name())
		cwd, err := os.Readlink(filepath.Join(folder, "cwd"))
		ours := false
		switch {
		case err == nil && cwd == cluster:
			program, err := os.Readlink(filepath.Join(folder, "exe"))
			ours = err == nil && strings.HasPrefix(filepath.Base(program), "postgres")
		case errors.Is(err, fs.ErrPermission):
			line, err := os.ReadFile(filepath.Join(folder, "cmdline"))
			ours = err == nil && serverLine(string(line), cluster)
		}
		if ours {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// serverLine recognises the main process by the arguments serverArguments gave it, and its children by the title they set,
// which begins with the cluster's name.
func serverLine(line, cluster string) bool {
	program, rest, _ := strings.Cut(line, "\x00")
	return filepath.Base(program) == "postgres" && strings.HasPrefix(rest, "-D\x00"+cluster+"\x00") ||
		strings.HasPrefix(line, "postgres: "+clusterName(cluster)+": ")
}
