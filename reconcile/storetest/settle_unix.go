//go:build unix

package storetest

import "golang.org/x/sys/unix"

// settle has the system write what it keeps back of files.
func settle() { unix.Sync() }
