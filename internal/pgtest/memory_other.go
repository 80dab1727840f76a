//go:build !linux

package pgtest

func inMemory() (folder string, ok bool) { return "", false }
