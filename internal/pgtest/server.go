package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/overlayd/overlayd/internal/localpg"
)

const (
	folderPrefix   = "overlayd-pgtest-"
	maxConnections = 300
)

// private is the server of this process, started by the first test that needs it. Every later caller gets the same
// answer, also a failure. The one package-level value here: a test process has no other place to keep what tests share.
var private = sync.OnceValues(func() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return StartServer(ctx, Fast)
})

// serverURL is the given server, or the private one.
func serverURL() (string, error) {
	if given := os.Getenv(EnvURL); given != "" {
		return checked(given)
	}
	server, err := private()
	if err != nil {
		return "", err
	}
	return server.URL, nil
}

// checked refuses what withDatabase could not work with: key=value strings and socket folders.
func checked(given string) (string, error) {
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Host == "" {
		return "", fmt.Errorf("%s is not a URL like postgres://user:password@127.0.0.1:5432/postgres", EnvURL)
	}
	return given, nil
}

// Server is a private server for tests: fast, not durable, up to 300 connections. It must be kept referenced.
type Server struct {
	URL string // of its database "postgres", as a superuser

	folder string
	server *localpg.Server
	sign   *os.File  // closed by Stop or by the end of this process, which is what remove waits for
	remove *exec.Cmd // removes the folder then
}

// Durability is what commits of a private server are worth.
type Durability bool

const (
	// Fast commits are lost with the machine: fsync is off. That is for tests.
	Fast Durability = false
	// Durable commits are flushed, as those of a server in service are. That is for figures.
	Durable Durability = true
)

// StartServer starts a server in a new temporary folder. Both are gone soon after this process at the latest, however it
// ends. It is for cmd/withpg; tests have New.
func StartServer(ctx context.Context, durability Durability) (_ *Server, err error) {
	within := place(durability)
	sweep(ctx, within)
	folder, err := os.MkdirTemp(within, folderPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder for the test server: %w", err)
	}
	s := &Server{folder: folder}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	// The server may run as another user, who has to pass through.
	if err := os.Chmod(folder, 0o711); err != nil {
		return nil, fmt.Errorf("make a folder for the test server: %w", err)
	}
	cache := ""
	if dir, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
		cache = filepath.Join(dir, "overlayd")
	}
	s.server, err = localpg.Start(ctx, localpg.Options{
		Data:           folder,
		Database:       "postgres",
		MaxConnections: maxConnections,
		Fast:           durability == Fast,
		Cache:          cache,
	})
	if err != nil {
		return nil, err
	}
	s.URL = s.server.URL()
	return s, s.removeAfterwards()
}

// place is where the folder of a server is made: in memory if the server is not to keep anything, there is plenty of it and TMPDIR does
// not say otherwise, since each test makes and removes the hundreds of files of a database. Else where temporary files are.
func place(durability Durability) string {
	if durability == Fast && os.Getenv("TMPDIR") == "" {
		if folder, ok := inMemory(); ok {
			return folder
		}
	}
	return os.TempDir()
}

// Stop ends the server and removes its folder. Nothing is left on return.
func (s *Server) Stop(ctx context.Context) error {
	var stopped error
	if s.server != nil {
		stopped = s.server.Stop(ctx)
	}
	err := errors.Join(stopped, localpg.Remove(ctx, s.folder))
	if s.sign != nil {
		err = errors.Join(err, s.sign.Close(), s.remove.Wait())
	}
	return err
}

// removeAfterwards leaves a shell behind that waits for the end of this process (its standard input ends then), then for
// the end of the server, which the kernel tells to stop at the same moment, and removes the folder.
func (s *Server) removeAfterwards() error {
	const script = `cat >/dev/null
i=0
while kill -0 "$2" 2>/dev/null && [ $i -lt 300 ]; do
	[ $i -eq 50 ] && kill -INT "$2" 2>/dev/null
	i=$((i+1)); sleep 0.1
done
rm -rf -- "$1"`
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("prepare the removal of the test server's folder: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", script, "sh", s.folder, strconv.Itoa(s.server.PID()))
	cmd.Dir = "/"
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of reach of the Ctrl-C that may end this process
	err = cmd.Start()
	_ = read.Close()
	if err != nil {
		_ = write.Close()
		return fmt.Errorf("prepare the removal of the test server's folder: %w", err)
	}
	s.sign, s.remove = write, cmd
	return nil
}

// sweep removes the folders of servers whose process is gone, as far as this user may. A folder in use is locked.
func sweep(ctx context.Context, temp string) {
	folders, err := filepath.Glob(filepath.Join(temp, folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, folder := range folders {
		info, err := os.Lstat(folder)
		if err != nil || !info.IsDir() {
			continue
		}
		// A folder without its state file may be about to get it, by a process that has not locked it yet.
		if _, err := os.Stat(filepath.Join(folder, "localpg.json")); errors.Is(err, fs.ErrNotExist) && time.Since(info.ModTime()) < time.Hour {
			continue
		}
		_ = localpg.Remove(ctx, folder) // of another user, or in use: not ours to remove
	}
}
