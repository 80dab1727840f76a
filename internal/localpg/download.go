package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// preferredMajor is what is downloaded for a new cluster: the version everything has been measured on.
const preferredMajor = 15

func published(major int) (embeddedpostgres.PostgresVersion, bool) {
	switch major {
	case 15:
		return embeddedpostgres.V15, true
	case 16:
		return embeddedpostgres.V16, true
	case 17:
		return embeddedpostgres.V17, true
	case 18:
		return embeddedpostgres.V18, true
	}
	return "", false
}

func downloadable(major int) bool {
	_, ok := published(major)
	return ok
}

// download brings the server programs of a major version, 0 for any, unless an earlier start did.
func (o Options) download(ctx context.Context, major int) (programs, error) {
	major = cmp.Or(major, preferredMajor)
	version, ok := published(major)
	if !ok {
		return programs{}, fmt.Errorf("PostgreSQL %d is not offered for download", major)
	}
	cache := o.Cache
	if cache == "" {
		cache = filepath.Join(o.Data, "binaries")
		if os.Geteuid() == 0 {
			cache = filepath.Join(o.system, "binaries") // where the server's user can come
		}
	}
	final := filepath.Join(cache, "postgres-"+string(version))
	bin, err := inspect(ctx, filepath.Join(final, "bin"))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return bin, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return programs{}, fmt.Errorf("make a folder for downloaded programs: %w", err)
	}
	o.Log.Info("no PostgreSQL on this machine: downloading", "version", string(version), "folder", final)
	work, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return programs{}, fmt.Errorf("make a folder for downloaded programs: %w", err)
	}
	fetched := make(chan error, 1)
	go func() {
		err := fetch(work, version, o.Repository)
		if ctx.Err() != nil {
			_ = os.RemoveAll(work) // nobody waits any more
		}
		fetched <- err
	}()
	select {
	case err = <-fetched:
	case <-ctx.Done():
		return programs{}, context.Cause(ctx)
	}
	defer os.RemoveAll(work)
	if err != nil {
		return programs{}, err
	}
	tree := filepath.Join(work, "tree")
	if err := os.Chmod(tree, 0o755); err != nil {
		return programs{}, fmt.Errorf("open the downloaded programs to the server's user: %w", err)
	}
	if _, err := inspect(ctx, filepath.Join(tree, "bin")); err != nil {
		return programs{}, fmt.Errorf("the downloaded programs do not work here: %w", err)
	}
	// Another overlayd may have been faster; its copy is as good.
	if err := os.Rename(tree, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return programs{}, fmt.Errorf("keep the downloaded programs: %w", err)
	}
	return inspect(ctx, filepath.Join(final, "bin"))
}

// fetch lets the library download and unpack into work/tree, and nothing more. The library has no call for just that:
// its Start unpacks, makes the runtime folder, empties the data folder, and runs initdb. A data folder named "." cannot
// be emptied, so Start ends there, before it would run anything; the runtime folder tells whether unpacking was complete.
func fetch(work string, version embeddedpostgres.PostgresVersion, repository string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("unpack the download: %v", p)
		}
	}()
	began := filepath.Join(work, "runtime")
	config := embeddedpostgres.DefaultConfig().
		Version(version).
		Port(0).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(filepath.Join(work, "tree")).
		RuntimePath(began).
		DataPath(began + string(filepath.Separator) + ".").
		Logger(io.Discard)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	library := embeddedpostgres.NewDatabase(config)
	err = library.Start()
	removeLibraryLog()
	runtime.KeepAlive(library) // and with it the open log
	if err == nil {
		return errors.Join(errors.New("the download library started a server of its own"), library.Stop())
	}
	if _, statErr := os.Stat(began); statErr != nil {
		return fmt.Errorf("PostgreSQL %s: %w", strconv.Quote(string(version)), err)
	}
	return nil
}

// removeLibraryLog deletes the empty log the library leaves in the temporary folder: of the files named like it, those
// this process has open, so that another process keeps its own.
func removeLibraryLog() {
	named, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	if err != nil {
		return
	}
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		return
	}
	for _, path := range named {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		for _, fd := range open {
			if mine, err := os.Stat(filepath.Join("/dev/fd", fd.Name())); err == nil && os.SameFile(info, mine) {
				_ = os.Remove(path)
			}
		}
	}
}
