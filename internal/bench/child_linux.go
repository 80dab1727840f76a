package bench

import "syscall"

// childAttributes are of a process in a group of its own, which is asked to stop when this one is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}
