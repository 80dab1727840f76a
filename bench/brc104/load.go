package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"

	"github.com/overlayd/overlayd/brc104"
)

// process is a server in a process of its own.
type process struct {
	kind, url, control string
	cmd                *exec.Cmd
	stdin              io.Closer // the process ends with it
	session            *brc104.Session
}

func startProcess(ctx context.Context, kind string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve", kind)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{kind: kind, cmd: cmd, stdin: in}
	if _, err := fmt.Fscan(out, &p.url, &p.control); err != nil {
		return nil, fmt.Errorf("the server %s did not start: %w", kind, err)
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Wait() // how it ended does not matter any more
}

func (p *process) usage(path string) (usage, error) {
	resp, err := http.Get(p.control + path)
	if err != nil {
		return usage{}, err
	}
	defer resp.Body.Close()
	var u usage
	return u, json.NewDecoder(resp.Body).Decode(&u)
}

// greet does a handshake over HTTP.
func greet(url string, c *brc104.Client) (*brc104.Session, error) {
	hello := c.Hello()
	resp, err := http.Post(url+brc104.HandshakePath, "application/json", bytes.NewReader(hello.Body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return c.Begin(hello, body)
}

// shot is a request signed beforehand, and its answer.
type shot struct {
	sent   *brc104.Sent
	bytes  []byte
	status int
	header http.Header
	body   []byte
}

const question = `{"version":1,"session":"0123456789abcdef"}`

func aim(s *brc104.Session, url string) (*http.Request, *brc104.Sent, error) {
	r, err := http.NewRequest(http.MethodPost, url+"/small", strings.NewReader(question))
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Bsv-Overlay-Capability", strings.Repeat("ab", 32))
	r.Header.Set("X-Bsv-Overlay-Profile", "https://bsv.brc.dev/overlays/0193#lookup-live-v1")
	sent, err := s.Sign(r, []byte(question))
	return r, sent, err
}

// figures are what one measurement of a server gives.
type figures struct {
	cpu  time.Duration // of the server, per request
	rate float64       // requests per second
}

// fire sends n requests signed beforehand over conns connections, and verifies every answer afterwards.
func (p *process) fire(n, conns int) (figures, error) {
	shots := make([][]shot, conns)
	for i := range n {
		r, sent, err := aim(p.session, p.url)
		if err != nil {
			return figures{}, err
		}
		var b bytes.Buffer
		if err := r.Write(&b); err != nil {
			return figures{}, err
		}
		shots[i%conns] = append(shots[i%conns], shot{sent: sent, bytes: b.Bytes()})
	}
	before, err := p.usage("/cpu")
	if err != nil {
		return figures{}, err
	}
	began := time.Now()
	var all sync.WaitGroup
	faults := make([]error, conns)
	for i := range conns {
		all.Go(func() { faults[i] = shoot(strings.TrimPrefix(p.url, "http://"), shots[i]) })
	}
	all.Wait()
	took := time.Since(began)
	after, err := p.usage("/cpu")
	if err = errors.Join(append(faults, err)...); err != nil {
		return figures{}, err
	}
	for _, line := range shots {
		for _, s := range line {
			if err := s.sent.Verify(s.status, s.header, s.body); err != nil || s.status != http.StatusOK {
				return figures{}, fmt.Errorf("%s answered %d %q: %w", p.kind, s.status, s.body, err)
			}
		}
	}
	return figures{(after.CPU - before.CPU) / time.Duration(n), float64(n) / took.Seconds()}, nil
}

// shoot sends requests over one connection, one after the other.
func shoot(addr string, shots []shot) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for i := range shots {
		s := &shots[i]
		if _, err := conn.Write(s.bytes); err != nil {
			return err
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		s.status, s.header = resp.StatusCode, resp.Header
		if s.body, err = io.ReadAll(resp.Body); err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil {
			return err
		}
	}
	return nil
}

// handshakes sends n handshakes of one identity over four connections and tells how many a second there were and how much heap
// they left in use.
func (p *process) handshakes(key *secp256k1.PrivateKey, n int) (rate float64, kept int64, err error) {
	const conns = 4
	c, err := brc104.NewClient(key)
	if err != nil {
		return 0, 0, err
	}
	shots := make([][]shot, conns)
	for i := range n {
		r, err := http.NewRequest(http.MethodPost, p.url+brc104.HandshakePath, bytes.NewReader(c.Hello().Body))
		if err != nil {
			return 0, 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		var b bytes.Buffer
		if err := r.Write(&b); err != nil {
			return 0, 0, err
		}
		shots[i%conns] = append(shots[i%conns], shot{bytes: b.Bytes()})
	}
	before, err := p.usage("/heap")
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	var all sync.WaitGroup
	faults := make([]error, conns)
	for i := range conns {
		all.Go(func() { faults[i] = shoot(strings.TrimPrefix(p.url, "http://"), shots[i]) })
	}
	all.Wait()
	rate = float64(n) / time.Since(began).Seconds()
	for _, line := range shots {
		for _, s := range line {
			if s.status != http.StatusOK {
				faults = append(faults, fmt.Errorf("%s answered a handshake with %d", p.kind, s.status))
			}
		}
	}
	after, err := p.usage("/heap")
	return rate, after.Heap - before.Heap, errors.Join(append(faults, err)...)
}
