package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
)

// folder is what dev keeps between starts: the lock, the state, and beside them
// identity.key, operator.token, feeds.state (the state file), roots.ndjson or
// headers.bin, and postgres/.
type folder struct {
	dir   string
	lock  *os.File
	state devState
}

// devState is DATA/state.json.
type devState struct {
	Version     int    `json:"version"` // 1
	Listen      string `json:"listen"`  // as bound the last time
	Operator    string `json:"operator"`
	OperatorURL string `json:"operatorURL"`
	Sample      string `json:"sample"` // none, small or a number of groups; fixed by the first start
	SampleNow   uint64 `json:"sampleNow"`
	LoadedInto  string `json:"loadedInto,omitempty"` // epoch of the feed that holds the whole sample
	Network     string `json:"network"`
	GenesisHash string `json:"genesisHash"`
}

const stateName = "state.json"

// openFolder makes the folder where there is none, locks it and reads its state.
func openFolder(dir string) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("--data: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of --data cannot be made: %w; choose another", err)
	}
	f := &folder{dir: dir}
	if f.lock, err = lockFile(f.path("lock")); err != nil {
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("another overlayd dev runs on %s; stop it, or give this one a folder of its own with --data", dir)
		}
		return nil, fmt.Errorf("the folder %s cannot be locked: %w; choose another with --data", dir, err)
	}
	if f.state, err = readState(dir); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// readState reads DATA/state.json; where there is none the state is empty.
func readState(dir string) (devState, error) {
	var s devState
	path := filepath.Join(dir, stateName)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("the state of --data cannot be read: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil || s.Version != 1 {
		return s, fmt.Errorf("%s is not the state of this version of overlayd; use another --data, or remove the folder to begin anew", path)
	}
	return s, nil
}

// adopt settles what the first start fixes: the sample and its chain; and takes
// the ports of the last start for those not asked for.
func (f *folder) adopt(c *cobra.Command, o *devOptions) error {
	s := &f.state
	if s.Version == 0 {
		if err := checkSample(o.sample); err != nil {
			return err
		}
		network, genesis := sampleChain(o.sample)
		*s = devState{
			Version: 1, Sample: o.sample, SampleNow: uint64(time.Now().Unix()),
			Network: network, GenesisHash: hex.EncodeToString(genesis[:]),
		}
	} else if c.Flags().Changed("sample") && o.sample != s.Sample {
		return fmt.Errorf("%s was made with --sample %s and keeps it; leave --sample out, or give another --data for --sample %s", f.dir, s.Sample, o.sample)
	}
	o.listen = kept(o.listen, s.Listen, c.Flags().Changed("listen"))
	o.operator = kept(o.operator, s.Operator, c.Flags().Changed("operator"))
	return f.save()
}

// kept is the address to bind: the last start's, when nobody asked for another
// one or port 0 of the same host was asked for.
func kept(asked, last string, given bool) string {
	if last == "" {
		return asked
	}
	if !given {
		return last
	}
	host, port, err := net.SplitHostPort(asked)
	lastHost, _, lastErr := net.SplitHostPort(last)
	if err == nil && lastErr == nil && port == "0" && host == lastHost {
		return last
	}
	return asked
}

// keepPorts remembers what was bound.
func (f *folder) keepPorts(listen, operator, operatorURL string) error {
	f.state.Listen, f.state.Operator, f.state.OperatorURL = listen, operator, operatorURL
	return f.save()
}

func (f *folder) save() error {
	data, err := json.MarshalIndent(f.state, "", "  ")
	if err != nil {
		return fmt.Errorf("the state of --data: %w", err)
	}
	return writeFile(f.path(stateName), append(data, '\n'))
}

// close gives the folder back.
func (f *folder) close() { unlockFile(f.lock) }
