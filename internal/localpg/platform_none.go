//go:build !unix

package localpg

import (
	"errors"
	"io/fs"
	"syscall"
)

// Start refuses before any of this is reached.
const supported = false

const (
	signalFast      = syscall.SIGINT
	signalImmediate = syscall.SIGQUIT
)

func deathSignal(bool) syscall.Signal { return signalFast }

func acquire(string) (func(), error) { return nil, errors.ErrUnsupported }

func owner(fs.FileInfo) int { return -1 }

func keepOwner(string, fs.FileInfo) {}

func kill(int, syscall.Signal) {}

func killGroup(int, syscall.Signal) {}

func attributes(user, bool, syscall.Signal) *syscall.SysProcAttr { return nil }

func serversIn(string) []int { return nil }
