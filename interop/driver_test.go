package interop

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest/require"
	"github.com/overlayd/overlayd/internal/testkit"
)

// startDriver bounds how long a Node process may take until it is ready, a browser included; stopDriver how long until it
// has ended.
const (
	startDriver = time.Minute
	stopDriver  = 15 * time.Second
)

// driver is a Node process that carries out commands.
type driver struct {
	t        *testing.T
	versions map[string]string
	page     string // where its devices live, "" for the process itself or its first page

	process *process
}

// process is what drivers of several pages share.
type process struct {
	ids    atomic.Int64
	stderr testkit.Log

	mu sync.Mutex
	// guarded by mu
	in      *json.Encoder
	waiting map[int64]chan result
	ended   error // why there are no more results
}

type result struct {
	ID       int64             `json:"id"`
	Error    string            `json:"error"`
	Answer   answer            `json:"answer"`
	Report   json.RawMessage   `json:"report"`
	Ready    bool              `json:"ready"`
	Versions map[string]string `json:"versions"`
}

// nodeProgram finds Node and the packages, or reports what is missing.
func nodeProgram(t *testing.T, what string) (program string, ok bool) {
	t.Helper()
	program, err := exec.LookPath("node")
	if err != nil {
		t.Log("install Node.js 20 or newer")
		require.Missing(t, "node", what)
		return "", false
	}
	if _, err := os.Stat(filepath.Join("node", "node_modules", "@bsv", "sdk", "package.json")); err != nil {
		t.Log("the npm packages are not installed: run npm ci in interop/node")
		require.Missing(t, "node", what)
		return "", false
	}
	return program, true
}

// chromiumProgram finds Chromium, or reports that it is missing.
func chromiumProgram(t *testing.T, what string) (program string, ok bool) {
	t.Helper()
	for _, name := range []string{"/usr/bin/chromium", "chromium"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, true
		}
	}
	t.Log("install Chromium (Debian: apt-get install chromium)")
	require.Missing(t, "chromium", what)
	return "", false
}

// startNode runs a script of the node folder; it ends with the test.
func startNode(t *testing.T, node, script string, args ...string) *driver {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, node, append([]string{script}, args...)...)
	cmd.Dir = "node"
	cmd.WaitDelay = stopDriver
	p := &process{waiting: make(map[int64]chan result)}
	cmd.Stderr = &p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = json.NewEncoder(in)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", script, err)
	}
	ready := make(chan result, 1)
	reading := make(chan struct{})
	go func() { // ends with the process
		defer close(reading)
		p.read(out, ready)
	}()
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Errorf("end %s: %v", script, err)
		}
		late := time.AfterFunc(stopDriver, cancel)
		defer late.Stop()
		<-reading
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", script, err)
		}
		cancel()
		if t.Failed() {
			t.Logf("what %s wrote:\n%s", script, p.stderr.String())
		}
	})
	d := &driver{t: t, process: p}
	timer := time.NewTimer(startDriver)
	defer timer.Stop()
	select {
	case r := <-ready:
		d.versions = r.Versions
	case <-reading:
		t.Fatalf("%s ended before it was ready", script)
	case <-timer.C:
		t.Fatalf("%s was not ready within %v", script, startDriver)
	}
	return d
}

// startBrowser runs the browser of this machine on a page of the given origin.
func startBrowser(t *testing.T, node, chromium, origin string) *driver {
	t.Helper()
	return startNode(t, node, "browser.mjs", chromium, t.TempDir(), origin+"/")
}

// read hands every result to whom it is for.
func (p *process) read(out io.Reader, ready chan<- result) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		var r result
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		p.mu.Lock()
		if err != nil {
			if p.ended = fmt.Errorf("the driver says nothing more: %w", err); errors.Is(err, io.EOF) {
				p.ended = errors.New("the driver has ended")
			}
			for id, waiting := range p.waiting {
				waiting <- result{ID: id, Error: p.ended.Error()}
			}
			clear(p.waiting)
			p.mu.Unlock()
			_, _ = io.Copy(io.Discard, lines) //nolint:errcheck // so that the process can end
			return
		}
		if r.Ready {
			ready <- r
		} else if waiting := p.waiting[r.ID]; waiting != nil {
			waiting <- r
			delete(p.waiting, r.ID)
		}
		p.mu.Unlock()
	}
}

// command is one thing to do; only what the operation needs is set.
type command struct {
	ID     int64  `json:"id"`
	Op     string `json:"op"`
	Device string `json:"device,omitempty"`
	Key    string `json:"key,omitempty"`
	Call   *call  `json:"call,omitempty"`
	Page   string `json:"page,omitempty"`
	Client string `json:"client,omitempty"` // of the demonstration
}

// do sends a command and waits for its result, or for the end of ctx.
func (d *driver) do(ctx context.Context, c command) (result, error) {
	p := d.process
	c.ID = p.ids.Add(1)
	c.Page = d.page
	done := make(chan result, 1)
	p.mu.Lock()
	err := p.ended
	if err == nil {
		p.waiting[c.ID] = done
		if err = p.in.Encode(c); err != nil {
			delete(p.waiting, c.ID)
		}
	}
	p.mu.Unlock()
	if err != nil {
		return result{}, err
	}
	select {
	case r := <-done:
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
}

// at is the same process with its devices in another page.
func (d *driver) at(page string) *driver {
	return &driver{t: d.t, versions: d.versions, page: page, process: d.process}
}

type driverDevice struct {
	driver *driver
	name   string
}

func (d *driver) device(t *testing.T, key []byte) device {
	t.Helper()
	name := strconv.FormatInt(d.process.ids.Add(1), 10)
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	if _, err := d.do(ctx, command{Op: "device", Device: name, Key: hex.EncodeToString(key)}); err != nil {
		t.Fatalf("make a device: %v", err)
	}
	return &driverDevice{d, name}
}

func (d *driverDevice) fetch(ctx context.Context, c call) (answer, error) {
	r, err := d.driver.do(ctx, command{Op: "fetch", Device: d.name, Call: &c})
	return r.Answer, err
}

// pages serves the page with the client, on an origin of its own.
func pages(t *testing.T) (origin string) {
	t.Helper()
	mux := http.NewServeMux()
	for path, file := range map[string]string{
		"/{$}": "page.html", "/client.mjs": "client.mjs", "/bsv.js": "node_modules/@bsv/sdk/dist/umd/bundle.js",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if filepath.Ext(file) == ".mjs" {
				w.Header().Set("Content-Type", "text/javascript")
			}
			http.ServeFile(w, r, filepath.Join("node", filepath.FromSlash(file)))
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
