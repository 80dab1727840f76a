package localpg

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

const stateName = "localpg.json"

// state is what a Data remembers between starts.
type state struct {
	Password string `json:"password"`
	Port     int    `json:"port,omitzero"` // of the first start
	Home     string `json:"home,omitzero"` // folder that holds the cluster, when it is not Data
}

// loadState reads localpg.json, or makes a new one where there was no cluster yet.
func loadState(data string) (*state, error) {
	path := filepath.Join(data, stateName)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Join(data, clusterFolder)); err == nil {
			return nil, fmt.Errorf("%s holds a Postgres cluster but %s with its password is missing: put that file back, or move the folder away", data, stateName)
		}
		var secret [24]byte
		_, _ = rand.Read(secret[:]) // never fails
		st := &state{Password: hex.EncodeToString(secret[:])}
		return st, st.save(data)
	case err != nil:
		return nil, fmt.Errorf("read what the private Postgres remembers: %w", err)
	}
	st := new(state)
	if err := json.Unmarshal(raw, st); err != nil || st.Password == "" || st.Port < 0 || st.Port > 65535 {
		return nil, fmt.Errorf("%s is damaged: put back a copy, or move the folder %s away", path, data)
	}
	return st, nil
}

// save replaces the file as a whole, durably, and keeps its owner.
func (st *state) save(data string) error {
	raw, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", stateName, err)
	}
	path := filepath.Join(data, stateName)
	if err := writeFile(path+".new", append(raw, '\n')); err != nil {
		return fmt.Errorf("save what the private Postgres remembers: %w", err)
	}
	if old, err := os.Stat(path); err == nil {
		keepOwner(path+".new", old)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("save what the private Postgres remembers: %w", err)
	}
	return syncFolder(data)
}

// writeFile writes a synced file only its owner can read.
func writeFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// realPath creates the folder and returns its one absolute name, as Postgres and the kernel will report it.
func realPath(data string) (string, error) {
	abs, err := filepath.Abs(data)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(abs), 0o755); err != nil {
			return "", err
		}
		// A root overlayd lets the server's user pass through; what is inside is closed file by file.
		mode := fs.FileMode(0o700)
		if os.Geteuid() == 0 {
			mode = 0o711
		}
		if err := os.Mkdir(abs, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return filepath.EvalSymlinks(abs)
}

// choosePort prefers what was asked for, then the port of the first start, then any free one.
func choosePort(asked, first int) (int, error) {
	if asked != 0 {
		if !portFree(asked) {
			return 0, fmt.Errorf("port %d on 127.0.0.1 is taken: choose another port for the private Postgres, or 0 for a free one", asked)
		}
		return asked, nil
	}
	if first != 0 && portFree(first) {
		return first, nil
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port on 127.0.0.1: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func portFree(port int) bool {
	l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
