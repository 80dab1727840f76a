package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldestMajor is the oldest Postgres the schema has been tried on.
const oldestMajor = 15

const howToInstall = "install PostgreSQL (Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql), or set OVERLAYD_DATABASE_URL to a database of your own"

// programs are the server programs of one installation.
type programs struct {
	dir, postgres, initdb string
	version               string // as "15.18"
	major                 int
}

// search says where server programs may be.
type search struct {
	lookPath func(string) (string, error)
	globs    []string // each newest first
}

func machine() *search {
	return &search{
		lookPath: exec.LookPath,
		globs: []string{
			"/usr/lib/postgresql/*/bin",
			"/usr/pgsql-*/bin",
			"/usr/bin",
			"/opt/homebrew/opt/postgresql*/bin",
			"/usr/local/opt/postgresql*/bin",
			"/usr/local/pgsql/bin",
		},
	}
}

// programs finds the installation that serves the cluster: one of its own major version when it exists, else the first.
func (o Options) programs(ctx context.Context, st *state) (programs, error) {
	want, err := clusterMajor(filepath.Join(cmp.Or(st.Home, o.Data), clusterFolder))
	if err != nil {
		return programs{}, err
	}
	if o.BinDir != "" {
		bin, err := inspect(ctx, o.BinDir)
		if err != nil {
			return programs{}, fmt.Errorf("no usable PostgreSQL in %s: %w", o.BinDir, err)
		}
		if want != 0 && bin.major != want {
			return programs{}, mismatch(o.Data, want, []programs{bin})
		}
		return bin, nil
	}
	s := o.search
	if s == nil {
		s = machine()
	}
	var others []programs
	var refused []error
	for dir := range s.folders(ctx) {
		bin, err := inspect(ctx, dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			refused = append(refused, fmt.Errorf("%s: %w", dir, err))
		case want == 0 || bin.major == want:
			return bin, nil
		default:
			others = append(others, bin)
		}
	}
	if err := ctx.Err(); err != nil {
		return programs{}, fmt.Errorf("look for PostgreSQL: %w", context.Cause(ctx))
	}
	if want != 0 && !downloadable(want) {
		return programs{}, mismatch(o.Data, want, others)
	}
	bin, err := o.download(ctx, want)
	switch {
	case err == nil:
		return bin, nil
	case want != 0:
		return programs{}, fmt.Errorf("%w (a download failed: %w)", mismatch(o.Data, want, others), err)
	case len(refused) > 0:
		return programs{}, fmt.Errorf("no usable PostgreSQL on this machine (%w), and the download failed (%w): %s", errors.Join(refused...), err, howToInstall)
	default:
		return programs{}, fmt.Errorf("no PostgreSQL server programs on this machine, and the download failed (%w): %s", err, howToInstall)
	}
}

func mismatch(data string, want int, have []programs) error {
	found := "none is installed here"
	if len(have) > 0 {
		var versions []string
		for _, h := range have {
			versions = append(versions, fmt.Sprintf("%s in %s", h.version, h.dir))
		}
		found = "here is only " + strings.Join(versions, ", ")
	}
	return fmt.Errorf("the cluster in %s was made by PostgreSQL %d and no other version can open it; %s: install PostgreSQL %d, or move the folder away to begin anew", data, want, found, want)
}

// clusterMajor is the version that made the cluster, 0 where there is none.
func clusterMajor(cluster string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(cluster, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(cluster); err == nil {
			return 0, fmt.Errorf("%s is not a Postgres cluster (PG_VERSION is missing): put back a copy, or move the folder away", cluster)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the Postgres cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("%s is not a Postgres cluster this overlayd knows (PG_VERSION is %q)", cluster, strings.TrimSpace(string(raw)))
	}
	return major, nil
}

// folders yields every place once, in the order of the search; the places behind are not touched before they are asked for.
func (s *search) folders(ctx context.Context) iter.Seq[string] {
	return func(yield func(string) bool) {
		seen := map[string]bool{}
		once := func(dir string) bool {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				dir = real
			}
			if seen[dir] {
				return true
			}
			seen[dir] = true
			return yield(dir)
		}
		if p, err := s.lookPath("postgres"); err == nil {
			if abs, err := filepath.Abs(p); err == nil {
				// The link may stand alone in its folder; initdb is where it points to.
				if real, err := filepath.EvalSymlinks(abs); err == nil {
					abs = real
				}
				if !once(filepath.Dir(abs)) {
					return
				}
			}
		}
		if p, err := s.lookPath("pg_config"); err == nil {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			out, err := exec.CommandContext(ctx, p, "--bindir").Output()
			cancel()
			if dir := strings.TrimSpace(string(out)); err == nil && dir != "" && !once(dir) {
				return
			}
		}
		for _, g := range s.globs {
			dirs, _ := filepath.Glob(g) // the patterns are constants
			slices.SortFunc(dirs, func(a, b string) int {
				return cmp.Or(versionIn(b)-versionIn(a), strings.Compare(a, b))
			})
			for _, dir := range dirs {
				if !once(dir) {
					return
				}
			}
		}
	}
}

// versionIn is the last number in a folder name like /usr/lib/postgresql/15/bin.
func versionIn(dir string) int {
	numbers := strings.FieldsFunc(dir, notDigit)
	if len(numbers) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(numbers[len(numbers)-1])
	return n
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// inspect asks the programs in a folder for their version. fs.ErrNotExist: there are none.
func inspect(ctx context.Context, dir string) (programs, error) {
	bin := programs{dir: dir, postgres: filepath.Join(dir, "postgres"), initdb: filepath.Join(dir, "initdb")}
	for _, p := range []string{bin.postgres, bin.initdb} {
		if _, err := os.Stat(p); err != nil {
			return programs{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin.postgres, "--version").Output()
	if err != nil {
		return programs{}, fmt.Errorf("%s does not run: %w", bin.postgres, err)
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "postgres (PostgreSQL) 19beta1"
	_, rest, _ := strings.Cut(string(out), "(PostgreSQL) ")
	words := strings.Fields(rest)
	if len(words) == 0 || notDigit(rune(words[0][0])) {
		return programs{}, fmt.Errorf("%s tells no version", bin.postgres)
	}
	bin.version = words[0]
	if bin.major, err = strconv.Atoi(strings.FieldsFunc(bin.version, notDigit)[0]); err != nil || bin.major < oldestMajor {
		return programs{}, fmt.Errorf("PostgreSQL %s is too old, %d is the oldest that works", bin.version, oldestMajor)
	}
	return bin, nil
}
