//go:build unix && !linux

package localpg

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// attributes of a child: its own process group, so that a Ctrl-C meant for overlayd does not reach it. There is no parent
// death signal and no capability here.
func attributes(u user, _ bool, _ syscall.Signal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if u.change {
		a.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid}
	}
	return a
}

// serversIn is the process postmaster.pid names, if it lives and was started on this very data directory.
func serversIn(cluster string) []int {
	pid := readPIDFile(filepath.Join(cluster, pidFileName)).pid
	if pid <= 1 || !alive(pid) {
		return nil
	}
	line, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	if text := string(line); !strings.Contains(text, "postgres") || !strings.Contains(text, " -D "+cluster+" ") {
		return nil
	}
	return []int{pid}
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
