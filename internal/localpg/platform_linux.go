package localpg

import (
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

// serversIn lists every process that is a Postgres server, or a part of one, in the data directory: its working
// directory is that folder, which no recycled process number can fake.
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
		if cwd, err := os.Readlink(filepath.Join(folder, "cwd")); err != nil || cwd != cluster {
			continue
		}
		program, err := os.Readlink(filepath.Join(folder, "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(program), "postgres") {
			continue
		}
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}
