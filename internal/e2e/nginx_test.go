package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/overlayd/overlayd/internal/pgtest/require"
	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
)

// nginxProgram finds nginx, which often stands outside PATH.
func nginxProgram() string {
	for _, name := range []string{"nginx", "/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/local/nginx/sbin/nginx", "/opt/homebrew/bin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// startNginx runs a real nginx at addr, with the configuration that ships, in front of upstream; it ends with the test.
func startNginx(t *testing.T, program, addr, upstream string) Certificate {
	t.Helper()
	dir := t.TempDir()
	certificate := NewCertificate(t, "overlay.example.com", time.Now().Add(24*time.Hour))
	certFile, keyFile := certificate.Save(t, dir)
	shipped, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nginx", "overlayd.conf"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(shipped)
	for old, new := range map[string]string{
		"\n    listen 443 ssl http2;\n":      "\n    listen " + addr + " ssl http2;\n",
		"\n    server 127.0.0.1:8080;\n":     "\n    server " + upstream + ";\n",
		" /etc/overlayd/tls/cert.pem;\n":     ` "` + certFile + "\";\n",
		" /etc/overlayd/tls/key.pem;\n":      ` "` + keyFile + "\";\n",
		"server_name overlay.example.com;\n": "server_name 127.0.0.1;\n",
	} {
		if strings.Count(text, old) != 1 {
			t.Fatalf("the configuration that ships does not hold %q once", old)
		}
		text = strings.Replace(text, old, new, 1)
	}
	// Nothing of nginx' own defaults is written anywhere but here.
	text = "daemon off;\nmaster_process off;\npid \"" + filepath.Join(dir, "nginx.pid") + "\";\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n" +
		"client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\nuwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n" + text + "}\n"
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // read when the process has ended
	cmd := exec.Command(program, "-p", dir, "-c", conf, "-e", "stderr")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(stopTimeout):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("nginx said:\n%s", log.String())
		}
	})
	testkit.Eventually(t, "nginx listens", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("nginx ended: %v", err)
		default:
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
	return certificate
}

// operate sends an order to the operator API and returns the answer, which must be good.
func operate(t *testing.T, r Ready, method, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.OperatorURL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+r.OperatorToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s, %v", method, path, response.StatusCode, body, err)
	}
	return string(body)
}

func waiters(t *testing.T, r Ready) int {
	t.Helper()
	var v struct{ Waiters int }
	if err := json.Unmarshal([]byte(operate(t, r, http.MethodGet, "/operator/v1/feeds/catalogue")), &v); err != nil {
		t.Fatal(err)
	}
	return v.Waiters
}

// TestH4_NginxChangesNothing puts the nginx that operators are told to use in front of a provider.
func TestH4_NginxChangesNothing(t *testing.T) {
	t.Parallel()
	program := nginxProgram()
	if program == "" {
		require.Missing(t, "nginx", "signed answers, long polls and headers pass nginx unharmed, with the configuration in deploy/nginx")
		return
	}
	front, back := testkit.FreeAddress(t), testkit.FreeAddress(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "overlayd.yaml")
	if err := os.WriteFile(config, []byte("baseURL: https://"+front+"/api\nplainListener: true\ntrustedProxies: [127.0.0.1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ready := Dev(t, filepath.Join(dir, "data"), "--listen", back, "--config", config)
	certificate := startNginx(t, program, front, back)
	anybody := NewCaller(t, ready.BaseURL, certificate)
	member := anybody.As(61)
	operate(t, ready, http.MethodPut, "/operator/v1/services/ls_catalogue_members/grants/"+member.Identity())

	// Every status the signed caller sees is signed, or Do fails; the bytes are those that were signed.
	opened := member.Open("ls_catalogue_members")
	b := opened.Batch(t)
	if opened.Proto != 2 || len(b.Groups) == 0 {
		t.Errorf("HTTP/%d, %d groups", opened.Proto, len(b.Groups))
	}
	for !b.SnapshotComplete || b.Phase != wire.PhaseLive {
		b = member.Read(b, 0).Batch(t)
	}
	member.Open("ls_catalogue").Refused(t, wire.Unauthorized)
	member.Open("ls_nothing").Refused(t, wire.NotFound)
	big, err := member.Do(t.Context(), http.MethodPost, "/overlay/v1/lookup/open", bytes.Repeat([]byte(" "), 1<<20+1))
	if err != nil && big.Status == 0 {
		t.Fatal(err) // what is too long to be verified is answered unsigned
	}
	big.Refused(t, wire.Limited)
	long, err := anybody.Do(t.Context(), http.MethodPost, "/overlay/v1/lookup/open", bytes.Repeat([]byte(" "), 3_500_000))
	if err != nil {
		t.Fatal(err)
	}
	long.Refused(t, wire.Limited)
	for name, length := range map[string]int{"X-Long": 17000, "X-Longer": 40000} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ready.BaseURL+"/overlay/v1/capabilities", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(name, strings.Repeat("h", length))
		request.Header.Set("Cache-Control", "no-store")
		response, err := anybody.Client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		Answer{Status: response.StatusCode, Body: body}.Refused(t, wire.Limited)
	}

	// Public answers are the same through nginx and without it, to clients that would like them compressed.
	same(t, anybody, ready.BaseURL, "http://"+back+"/api")

	// A poll that nothing wakes is answered at its end, whole and signed.
	const wait = 3 * time.Second
	begun := time.Now()
	b = member.Read(b, wait).Batch(t)
	if took := time.Since(begun); took < wait || len(b.Groups) != 0 {
		t.Errorf("a poll of %s took %s and brought %d groups", wait, took, len(b.Groups))
	}
	// One that is woken is answered then.
	type outcome struct {
		answer Answer
		err    error
	}
	poll := func(ctx context.Context) chan outcome {
		got := make(chan outcome, 1)
		go func() {
			a, err := member.ReadFrom(ctx, b, 25*time.Second)
			got <- outcome{a, err}
		}()
		testkit.Eventually(t, "the poll waits behind nginx", func() bool { return waiters(t, ready) == 1 })
		return got
	}
	woken := poll(t.Context())
	begun = time.Now()
	at := change(t, ready, "through-nginx")
	got := <-woken
	if got.err != nil {
		t.Fatal(got.err)
	}
	if w := got.answer.Batch(t); len(w.Groups) != 1 || fmt.Sprint(w.Groups[0].Sequence) != at {
		t.Errorf("the poll brought %s, want the group of sequence %s", got.answer.Body, at)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the answer to a poll that was woken took %s", took)
	}
	// A client that goes away leaves no poll behind.
	b = got.answer.Batch(t)
	ctx, leave := context.WithCancel(t.Context())
	left := poll(ctx)
	leave()
	if o := <-left; o.err == nil {
		t.Error("a poll whose client went away was answered")
	}
	testkit.Eventually(t, "nobody waits any more", func() bool { return waiters(t, ready) == 0 })
	if a := member.Close(b); a.Status != http.StatusOK || string(a.Body) != `{"closed":true,"version":1}` {
		t.Errorf("close: %d %s", a.Status, a.Body)
	}
}

// same compares what two ways to a provider answer to anybody.
func same(t *testing.T, c *Caller, front, back string) {
	t.Helper()
	ask := func(base, method, path, body string) (int, http.Header, []byte) {
		request, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", "gzip, br")
		request.Header.Set("Cache-Control", "no-store")
		request.Header.Set(wire.HeaderProfile, wire.Profile)
		response, err := c.Client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Date", "Server", "Connection"} {
			response.Header.Del(name)
		}
		return response.StatusCode, response.Header, data
	}
	for _, q := range [][3]string{
		{"GET", "/overlay/v1/capabilities", ""}, {"POST", "/overlay/v1/lookup/open", "{}"}, {"PUT", "/overlay/v1/lookup/read", "x"},
		{"GET", "/overlay/v1/lookup//read", ""}, {"GET", "/%6fverlay/v1/capabilities", ""}, {"GET", "/overlay/v1/capabilities?a=%2f&b", ""},
		{"GET", "/overlay/v1/Capabilities", ""}, {"OPTIONS", "/overlay/v1/lookup/open", ""},
	} {
		status, header, body := ask(front, q[0], q[1], q[2])
		wantStatus, wantHeader, wantBody := ask(back, q[0], q[1], q[2])
		if status != wantStatus || !bytes.Equal(body, wantBody) || fmt.Sprint(header) != fmt.Sprint(wantHeader) {
			t.Errorf("%s %s through nginx:\n%d %v %s\nwithout:\n%d %v %s", q[0], q[1], status, header, body, wantStatus, wantHeader, wantBody)
		}
		if cache := header.Get("Cache-Control"); cache != "private, no-store" || header.Get("Content-Encoding") != "" {
			t.Errorf("%s %s: Cache-Control %q, Content-Encoding %q", q[0], q[1], cache, header.Get("Content-Encoding"))
		}
	}
}

// TestH4_NginxPassesRequestsAsTheyAre looks at what arrives behind nginx.
func TestH4_NginxPassesRequestsAsTheyAre(t *testing.T) {
	t.Parallel()
	program := nginxProgram()
	if program == "" {
		require.Missing(t, "nginx", "requests pass nginx byte for byte, with X-Forwarded-For, with the configuration in deploy/nginx")
		return
	}
	type arrived struct {
		uri    string
		header http.Header
		body   []byte
	}
	requests := make(chan arrived, 1)
	reply := bytes.Repeat([]byte("compressible "), 300_000)
	signature := strings.Repeat("5", 9000)
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		requests <- arrived{r.RequestURI, r.Header, body}
		w.Header()["x-bsv-auth-signature"] = []string{signature}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write(reply)
	}))
	defer behind.Close()
	front := testkit.FreeAddress(t)
	certificate := startNginx(t, program, front, behind.Listener.Addr().String())
	client := &http.Client{Transport: Transport(t, certificate)}
	sent := bytes.Repeat([]byte{0, 'a', '\r', '\n', 0xff}, 200_000)
	const uri = "/a%2Fb//c/./%7Ed?x=%41&&y=+"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+front+uri, bytes.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"X-Bsv-Auth-Nonce": "a+/=", "X-Bsv-Odd": " spaced  within ", "Content-Type": "application/json; charset=utf-8", "Authorization": "x"}
	for name, value := range names {
		request.Header.Set(name, value)
	}
	request.Header.Set("X-Forwarded-For", "203.0.113.9") // a claim of the client's own
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := <-requests
	if got.uri != uri || !bytes.Equal(got.body, sent) {
		t.Errorf("%s and %d bytes arrived, want %s and %d", got.uri, len(got.body), uri, len(sent))
	}
	for name, value := range names {
		if !slices.Equal(got.header[name], []string{strings.TrimSpace(value)}) {
			t.Errorf("%s arrived as %q", name, got.header[name])
		}
	}
	if v := got.header["X-Forwarded-For"]; !slices.Equal(v, []string{"203.0.113.9, 127.0.0.1"}) {
		t.Errorf("X-Forwarded-For %q", v)
	}
	if response.ProtoMajor != 2 || response.StatusCode != http.StatusConflict || !bytes.Equal(body, reply) ||
		response.Header.Get("x-bsv-auth-signature") != signature || response.Header.Get("Content-Encoding") != "" {
		t.Errorf("HTTP/%d %d, %d bytes, header %v", response.ProtoMajor, response.StatusCode, len(body), response.Header)
	}
}

// TestNginxTimeoutsOutlastAPoll reads the configuration that ships.
func TestNginxTimeoutsOutlastAPoll(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nginx", "overlayd.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"proxy_read_timeout", "proxy_send_timeout", "send_timeout"} {
		found := regexp.MustCompile(`(?m)^\s*` + name + `\s+(\d+s);`).FindSubmatch(text)
		if found == nil {
			t.Errorf("%s is not set", name)
			continue
		}
		if d, err := time.ParseDuration(string(found[1])); err != nil || d <= wire.MaxWaitMs*time.Millisecond+10*time.Second {
			t.Errorf("%s is %s, %v", name, found[1], err)
		}
	}
}
