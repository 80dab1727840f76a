package pgtest

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	memoryFolder = "/dev/shm"
	memoryMagic  = 0x01021994 // of a tmpfs
	// memoryLeast is how much of the machine's memory must be free for a server's files to lie in it: many times of what the tests need.
	memoryLeast = 8 << 30
)

// inMemory is a folder whose files lie in memory, if there is one and plenty of memory.
func inMemory() (folder string, ok bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryFolder, &fs); err != nil || fs.Type != memoryMagic || fs.Bavail*uint64(fs.Bsize) < memoryLeast {
		return "", false
	}
	const writable, passable = 2, 1
	return memoryFolder, syscall.Access(memoryFolder, writable|passable) == nil && memoryFree() >= memoryLeast
}

// memoryFree is how many bytes the kernel says can be had, or 0.
func memoryFree() uint64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 54)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
