//go:build unix

package localpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/overlayd/overlayd/internal/testkit"
)

// installation makes a folder of programs that only tell their version, "" for none at all.
func installation(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	if version == "" {
		script = "#!/bin/sh\nexit 3\n"
	}
	for _, name := range []string{"postgres", "initdb"} {
		program(t, filepath.Join(dir, name), script)
	}
	return dir
}

// program writes a script. Nothing is forked meanwhile: a child that inherits the open file for a moment would make
// running it fail as "text file busy".
func program(t *testing.T, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// nowhere is a machine without Postgres.
func nowhere() *search {
	return &search{lookPath: func(string) (string, error) { return "", os.ErrNotExist }}
}

// realPrograms are those of this machine.
func realPrograms(t *testing.T) programs {
	t.Helper()
	bin, err := Options{Data: folder(t)}.programs(t.Context(), &state{})
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestSearchOrder(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, v := range []string{"9", "15", "16", "9.6"} {
		dirs = append(dirs, installation(t, filepath.Join(base, "lib", v, "bin"), v+".1"))
	}
	inPath := installation(t, filepath.Join(base, "path"), "17.2")
	linked := filepath.Join(base, "links")
	if err := os.Mkdir(linked, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(inPath, "postgres"), filepath.Join(linked, "postgres")); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(base, "pg_config")
	program(t, config, "#!/bin/sh\necho "+dirs[1]+"\n")
	s := &search{
		lookPath: func(name string) (string, error) {
			switch name {
			case "postgres":
				return filepath.Join(linked, "postgres"), nil
			case "pg_config":
				return config, nil
			}
			return "", os.ErrNotExist
		},
		globs: []string{filepath.Join(base, "lib", "*", "bin"), filepath.Join(base, "path")},
	}
	want := []string{inPath, dirs[1], dirs[2], dirs[0], dirs[3]}
	if got := slices.Collect(s.folders(t.Context())); !slices.Equal(got, want) {
		t.Errorf("searched\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// The first good one for a new cluster, the one of its own version for an old one.
	data := folder(t)
	for major, want := range map[string]string{"": inPath, "15": dirs[1], "16": dirs[2], "17": inPath} {
		cluster := filepath.Join(data, major, clusterFolder)
		if major != "" {
			if err := os.MkdirAll(cluster, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(cluster, "PG_VERSION"), []byte(major+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		bin, err := Options{Data: filepath.Join(data, major), search: s}.programs(t.Context(), &state{})
		if err != nil || bin.dir != want {
			t.Errorf("for a cluster of version %q: %s, %v", major, bin.dir, err)
		}
	}
	_, err = Options{Data: filepath.Join(data, "16"), BinDir: inPath}.programs(t.Context(), &state{})
	if err == nil || !strings.Contains(err.Error(), "PostgreSQL 16") || !strings.Contains(err.Error(), "17.2") {
		t.Errorf("a given folder of another version: %v", err)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for version, want := range map[string]int{
		"15.18 (Debian 15.18-0+deb12u1)": 15, "19beta1": 19, "18.3": 18,
		"14.18": 0, "9.6.24": 0, "": 0, "unknown": 0,
	} {
		dir := installation(t, filepath.Join(base, hex.EncodeToString([]byte("v"+version))), version)
		bin, err := inspect(t.Context(), dir)
		if want == 0 {
			if err == nil || errors.Is(err, os.ErrNotExist) {
				t.Errorf("%q: accepted as %d, %v", version, bin.major, err)
			}
			_, err := Options{Data: folder(t), BinDir: dir}.programs(t.Context(), &state{})
			if err == nil || !strings.Contains(err.Error(), dir) {
				t.Errorf("%q as the given folder: %v", version, err)
			}
			continue
		}
		if err != nil || bin.major != want {
			t.Errorf("%q: %d, %v", version, bin.major, err)
		}
	}
}

// repository serves the archives the download library asks for.
type repository struct {
	*httptest.Server
	fetched  atomic.Int32
	checksum func(sum string) string
}

// newRepository offers, as every version, programs that are links to the given ones.
func newRepository(t *testing.T, entries ...tar.Header) *repository {
	t.Helper()
	archive := jar(t, entries)
	sum := sha256.Sum256(archive)
	r := &repository{checksum: func(s string) string { return s }}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch filepath.Ext(req.URL.Path) {
		case ".jar":
			r.fetched.Add(1)
			_, _ = w.Write(archive)
		case ".sha256":
			_, _ = fmt.Fprint(w, r.checksum(hex.EncodeToString(sum[:])))
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// jar is a zip with a .txz of a tar, as the repository publishes them.
func jar(t *testing.T, entries []tar.Header) []byte {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, content := range map[string][]byte{"META-INF/MANIFEST.MF": []byte("Manifest-Version: 1.0\n"), "postgres-any.txz": xz(plain.Bytes())} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func link(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	bin := realPrograms(t)
	r := newRepository(t,
		tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		link("bin/postgres", bin.postgres), link("bin/initdb", bin.initdb))
	cache := filepath.Join(testkit.OpenFolder(t), "cache")
	data := folder(t)
	o := Options{Data: data, Fast: true, Cache: cache, Repository: r.URL, search: nowhere()}
	s := start(t, o)
	write(t, s.URL(), 1)
	stop(t, s)

	// What was fetched once serves every later start, here with a folder of its own again.
	o.Data = folder(t)
	stop(t, start(t, o))
	if n := r.fetched.Load(); n != 1 {
		t.Errorf("downloaded %d times", n)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "postgres-15.13.0" {
		t.Errorf("the cache holds %v, %v", left, err)
	}
}

func TestDownload_FailuresSayWhatToInstall(t *testing.T) {
	t.Parallel()
	bin := realPrograms(t)
	good := []tar.Header{link("bin/postgres", bin.postgres), link("bin/initdb", bin.initdb)}

	closed := newRepository(t, good...)
	closed.Close()
	tampered := newRepository(t, good...)
	tampered.checksum = func(s string) string { return strings.Repeat("0", len(s)) }
	missing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(missing.Close)
	broken := newRepository(t, link("bin/postgres", "/nowhere/postgres"), link("bin/initdb", "/nowhere/initdb"))

	for name, url := range map[string]string{"closed": closed.URL, "tampered": tampered.URL, "missing": missing.URL, "broken": broken.URL} {
		data := folder(t)
		cache := t.TempDir()
		mustFail(t, Options{Data: data, Cache: cache, Repository: url, search: nowhere()},
			"no PostgreSQL server programs", "apt install postgresql", "OVERLAYD_DATABASE_URL")
		left, err := filepath.Glob(filepath.Join(cache, "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("%s: left in the cache: %v, %v", name, left, err)
		}
	}

	// An old cluster whose version is offered, but cannot be fetched.
	data := folder(t)
	cluster := filepath.Join(data, clusterFolder)
	if err := os.MkdirAll(cluster, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cluster, "PG_VERSION"), []byte("16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&state{Password: "x"}).save(data); err != nil {
		t.Fatal(err)
	}
	mustFail(t, Options{Data: data, Repository: closed.URL, Cache: t.TempDir(), search: nowhere()}, "PostgreSQL 16", "none is installed")
	old := installation(t, filepath.Join(t.TempDir(), "old"), "12.1")
	mustFail(t, Options{Data: folder(t), Repository: closed.URL, Cache: t.TempDir(), search: &search{lookPath: nowhere().lookPath, globs: []string{old}}},
		"12.1 is too old", "apt install")
}

// A start that is cut short during a download returns at once.
func TestDownload_Cancelled(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	release := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		close(asked)
		<-release
		http.NotFound(w, req)
	}))
	t.Cleanup(stuck.Close)
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := Start(ctx, Options{Data: folder(t), Cache: testkit.OpenFolder(t), Repository: stuck.URL, search: nowhere()})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while downloading: %v", err)
	}
}
