//go:build !unix

package main

import (
	"errors"
	"os"
)

// errLocked says that a living process holds the lock.
var errLocked = errors.New("the file is locked")

// lockFile only makes the file: where there is no private Postgres there is
// nothing a second start could damage but its own ports.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}

func unlockFile(f *os.File) { _ = f.Close() }
