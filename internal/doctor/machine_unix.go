//go:build linux || darwin

package doctor

import (
	"golang.org/x/sys/unix"
)

// permissionsTell says that the bits of a file's mode mean what they say.
const permissionsTell = true

// mayWrite asks, without writing, whether this process may write a file, or into a folder.
func mayWrite(path string) error { return unix.Access(path, unix.W_OK) }

// roomAt is the room on the disk that holds path.
func roomAt(path string) (*room, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, err
	}
	return &room{path: path, free: uint64(s.Bavail) * uint64(s.Bsize), size: uint64(s.Blocks) * uint64(s.Bsize)}, nil
}

// files is how many files this process may have open.
func files() (uint64, bool) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return uint64(l.Cur), true
}
