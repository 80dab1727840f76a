package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// memory is the most that one process of a fuzz run was seen to use, in kB.
type memory struct{ resident, anonymous uint64 }

// watch reads the memory of the test processes below the process pid, several
// times a second, until the context ends. Compilers and linkers below it are
// not counted. Where there is no /proc it sees nothing.
func watch(ctx context.Context, pid int, dir string) memory {
	var most memory
	program := []byte(filepath.Base(dir) + ".test")
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		for _, child := range descendants(pid) {
			exe, err := os.Readlink("/proc/" + strconv.Itoa(child) + "/exe")
			if err != nil || !bytes.Equal([]byte(filepath.Base(exe)), program) {
				continue
			}
			status, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/status")
			if err != nil {
				continue
			}
			most.resident = max(most.resident, field(status, "VmHWM:"))
			most.anonymous = max(most.anonymous, field(status, "RssAnon:"))
		}
		select {
		case <-ctx.Done():
			return most
		case <-ticker.C:
		}
	}
}

// descendants lists the processes below pid.
func descendants(pid int) []int {
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		return nil
	}
	var found []int
	for _, file := range tasks {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for f := range bytes.FieldsSeq(data) {
			child, err := strconv.Atoi(string(f))
			if err != nil {
				continue
			}
			found = append(found, child)
			found = append(found, descendants(child)...)
		}
	}
	return found
}

// field reads a number of kB from /proc/PID/status.
func field(status []byte, name string) uint64 {
	_, rest, ok := bytes.Cut(status, []byte(name))
	if !ok {
		return 0
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(string(fields[0]), 10, 64)
	return n
}
