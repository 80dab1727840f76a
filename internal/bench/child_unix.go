//go:build unix && !linux

package bench

import "syscall"

// childAttributes are of a process in a group of its own. Kill -9 of this one leaves it (Y8).
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
