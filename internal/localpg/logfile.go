package localpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	logKeep  = 16 << 20 // a log larger than this is put aside at the next start
	logQuote = 2 << 10  // at most this much of its end is quoted in an error
	logLines = 12
)

// logFile is where the server writes. mark remembers how far earlier starts had come, so that errors quote only this one.
type logFile struct {
	path string
	file *os.File
	once sync.Once

	from int64 // written before the server is launched, read after
}

func openLog(path string) (*logFile, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > logKeep {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("put the old log of the private Postgres aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of the private Postgres: %w", err)
	}
	if folder, err := os.Stat(filepath.Dir(path)); err == nil {
		keepOwner(path, folder) // or the next start, as the user the folder belongs to, could not write it
	}
	return &logFile{path: path, file: f}, nil
}

func (l *logFile) mark() {
	if info, err := l.file.Stat(); err == nil {
		l.from = info.Size()
	}
}

func (l *logFile) close() { l.once.Do(func() { _ = l.file.Close() }) }

// quote is the end of what was written since mark, ready to be appended to an error; empty when there is nothing.
func (l *logFile) quote() string {
	f, err := os.Open(l.path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(l.from, info.Size()-logQuote)
	text := make([]byte, max(0, info.Size()-from))
	n, err := f.ReadAt(text, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(text[:n]), "?")), "\n")
	if len(lines) > logLines {
		lines = lines[len(lines)-logLines:]
	}
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	return fmt.Sprintf("; the end of %s:\n  %s", l.path, strings.Join(lines, "\n  "))
}
