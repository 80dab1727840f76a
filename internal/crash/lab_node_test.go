//go:build crash

package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// build makes an overlayd with the tags.
func build(dir string, tags ...string) (string, error) {
	path := filepath.Join(dir, "overlayd-"+strings.Join(tags, "-"))
	c := exec.Command("go", "build", "-tags", strings.Join(tags, ","), "-o", path, "github.com/overlayd/overlayd/cmd/overlayd")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building overlayd with %v: %w\n%s", tags, err, out)
	}
	return path, nil
}

const (
	token   = "crash-lab-operator-token"
	genesis = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"
)

// The services of the lab, and how long their sessions live: all show one feed.
var lives = map[string]uint64{"ls_short": 4, "ls_brief": 1, "ls_long": 60}

// node is one overlayd that is killed and started again at the same place.
type node struct {
	binary, dir      string
	public, operator string

	mu      sync.Mutex
	cmd     *exec.Cmd
	ended   chan struct{}
	log     bytes.Buffer // the end of it
	crashes int
}

func newNode(binary, dir, databaseURL string, index int) (*node, error) {
	n := &node{binary: binary, dir: filepath.Join(dir, fmt.Sprint("node", index))}
	for _, address := range []*string{&n.public, &n.operator} {
		var err error
		if *address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	services := ""
	for name, life := range lives {
		services += fmt.Sprintf(`
  - {name: %s, feed: catalogue, sessionSeconds: %d, replaySeconds: 1, rules: {id: "urn:overlayd:rules:attributes:1", parameters: {attributes: [kind]}}}`, name, life)
	}
	// Both nodes are one provider: one base URL, one identity.
	files := map[string]string{
		"identity.key":   strings.Repeat("0", 63) + "1\n",
		"operator.token": token + "\n",
		"overlayd.yaml": fmt.Sprintf(`
baseURL: http://127.0.0.1:1/api
localDevelopment: true
listen: %s
operator: {listen: %s, tokenFile: operator.token}
identity: {keyFile: identity.key}
chain: {network: main, genesisHash: "%s"}
database: {url: "%s"}
stateFile: state
manifestSeconds: 12
shutdownSeconds: 5
retention: {everySeconds: 1}
quotas: {opensPerSecond: 100000, openBurst: 100000, waitersPerClient: 10000, sessionsPerClient: 100000}
services:%s
`, n.public, n.operator, genesis, databaseURL, services),
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// freeAddress is an address that nothing of this machine takes while a node that was killed is down: connections draw their own ports
// above these, and no two nodes get one.
func freeAddress() (string, error) {
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		if _, taken := ports.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", errors.New("no port is free between 12000 and 32000")
}

// ports are those that freeAddress gave out.
var ports sync.Map

// start runs overlayd with failpoints armed and returns when it is ready, or was killed on the way.
func (n *node) start(failpoints string) error {
	cmd := exec.Command(n.binary, "serve", "--config", "overlayd.yaml")
	cmd.Dir = n.dir
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "OVERLAYD_") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	cmd.Env = append(cmd.Env, "OVERLAYD_FAILPOINTS="+failpoints)
	cmd.Stderr = n
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is asked of ProcessState
		close(ended)
	}()
	n.mu.Lock()
	n.cmd, n.ended = cmd, ended
	n.mu.Unlock()
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); {
		select {
		case <-ended:
			if n.killed() {
				return nil
			}
			return errors.New("overlayd ended by itself: " + n.text())
		case <-time.After(10 * time.Millisecond):
		}
		if response, err := client.Get("http://" + n.operator + "/readyz"); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return errors.New("overlayd was not ready in time: " + n.text())
}

// Write keeps the end of what overlayd logs.
func (n *node) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.log.Len() > 1<<20 {
		n.log.Next(1 << 19)
	}
	return n.log.Write(b)
}

// text is the end of the log.
func (n *node) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.log.Bytes()
	return string(b[max(0, len(b)-3000):])
}

// killed reports whether SIGKILL ended the process.
func (n *node) killed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	status, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// kill ends it as kill -9 does.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.ended
}

// await reports whether the process ended by a kill within d. An end of another kind is an error.
func (n *node) await(d time.Duration) (bool, error) {
	select {
	case <-n.ended:
		if !n.killed() {
			return false, errors.New("overlayd ended by itself: " + n.text())
		}
		n.crashes++
		return true, nil
	case <-time.After(d):
		return false, nil
	}
}

// stop asks it to stop; an end that is not clean is an error.
func (n *node) stop() error {
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.ended:
		if code := n.cmd.ProcessState.ExitCode(); code != 0 && !strings.Contains(n.text(), "stopping takes too long, because the database does not answer") {
			return fmt.Errorf("overlayd was asked to stop and ended with %d: %s", code, n.text())
		}
		return nil
	case <-time.After(45 * time.Second): // shutdownSeconds, 15 s more, and a busy machine
		n.kill()
		return errors.New("overlayd did not stop when it was asked to: " + n.text())
	}
}
