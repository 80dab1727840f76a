package localpg

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser       = "overlayd" // role that owns the cluster
	defaultDatabase = "overlayd"
	systemFolder    = "/var/lib/overlayd"

	clusterFolder = "cluster"
	logName       = "postgres.log"
	lockName      = "lock"
)

// Options say where and how a server runs. Only Data is needed.
type Options struct {
	// Data is the folder of the server. It is created with its parents; only the user overlayd runs as can list it.
	Data string
	// Log gets what happens outside the server's own log file. Nil means nowhere.
	Log *slog.Logger
	// Port is the TCP port on 127.0.0.1. Zero means the port of the first start where it is free, else a free one.
	Port int
	// Database is created when missing. Empty means "overlayd".
	Database string
	// MaxConnections is the server's max_connections. Zero means 100.
	MaxConnections int
	// Fast gives up durability for speed: fsync off. For tests only.
	Fast bool
	// BinDir is the folder of postgres and initdb. Empty means to look for it, and to download where there is none.
	BinDir string
	// Cache keeps downloaded programs. Empty means Data/binaries, for root a system folder.
	Cache string
	// Repository is the URL of the Maven repository downloads come from. Empty means the public one.
	Repository string

	// For tests of this package.
	search   *search         // nil: the machine
	system   string          // "": systemFolder
	patience []time.Duration // nil: takeOverPatience
}

// A Server is a running Postgres. Its methods may be called from any goroutine.
type Server struct {
	// Set by Start, not changed after.
	url     string
	log     *slog.Logger
	cluster string
	logFile *logFile
	process *process
	release func() // gives Data back

	stopping sync.Once
	stopped  chan struct{} // closed when Stop was called; never by the server
}

// InUseError says that a living process holds Data.
type InUseError struct {
	Data string
	PID  int // 0 when it could not be read
}

// Error says what to do about it.
func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("the private Postgres in %s is in use by %s: stop that one, or use another data folder", e.Data, who)
}

// Start makes the cluster where there is none, takes over what a killed process left running, starts the server and
// returns when Database can be used. ctx bounds Start only; the server runs until Stop or until this process ends.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if !supported {
		return nil, errors.New("a private Postgres cannot be run on this operating system: set OVERLAYD_DATABASE_URL to a database of your own")
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Database = cmp.Or(o.Database, defaultDatabase)
	o.MaxConnections = cmp.Or(o.MaxConnections, 100)
	o.system = cmp.Or(o.system, systemFolder)
	if o.patience == nil {
		o.patience = takeOverPatience()
	}
	if o.Data == "" {
		return nil, errors.New("no data folder given for the private Postgres")
	}
	if o.Data, err = realPath(o.Data); err != nil {
		return nil, fmt.Errorf("prepare the data folder of the private Postgres: %w", err)
	}

	release, err := acquire(o.Data)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()

	st, err := loadState(o.Data)
	if err != nil {
		return nil, err
	}
	bin, err := o.programs(ctx, st)
	if err != nil {
		return nil, err
	}
	pl, err := o.place(ctx, st, bin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pl.release()
		}
	}()
	if err := takeOver(ctx, pl.cluster(), o.patience, o.Log); err != nil {
		return nil, err
	}
	logFile, err := openLog(filepath.Join(o.Data, logName))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			logFile.close()
		}
	}()
	if err := o.initialise(ctx, st, bin, pl, logFile); err != nil {
		return nil, err
	}
	s := &Server{
		log:     o.Log,
		cluster: pl.cluster(),
		logFile: logFile,
		release: func() { pl.release(); release() },
		stopped: make(chan struct{}),
	}
	if err := s.run(ctx, o, st, bin, pl); err != nil {
		return nil, err
	}
	return s, nil
}

// run launches the server, on another port when somebody else was faster to take a chosen one.
func (s *Server) run(ctx context.Context, o Options, st *state, bin programs, pl *place) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		port, err := choosePort(o.Port, st.Port)
		if err != nil {
			return err
		}
		s.url = serverURL(st.Password, port, o.Database)
		s.logFile.mark()
		s.process, err = launch(pl.command(bin.postgres, o.serverArguments(pl, port), s.logFile, deathSignal(o.Fast)), s)
		if err != nil {
			return fmt.Errorf("start %s as %s: %w", bin.postgres, pl.user, err)
		}
		err = s.ready(ctx, serverURL(st.Password, port, "postgres"), o.Database)
		if err == nil {
			if st.Port != 0 && st.Port != port && o.Port == 0 {
				s.log.Warn("the port of the first start is taken", "wanted", st.Port, "port", port)
			}
			if st.Port == 0 {
				st.Port = port
				err = st.save(o.Data)
			}
		}
		if err == nil {
			s.log.Info("private Postgres runs", "port", port, "version", bin.version, "user", pl.user.String(), "cluster", s.cluster)
			return nil
		}
		ended := s.process.ended()
		s.end(context.WithoutCancel(ctx), true)
		if ended && o.Port == 0 && attempt < attempts && !portFree(port) {
			continue
		}
		return fmt.Errorf("start the private Postgres in %s: %w%s", s.cluster, err, s.logFile.quote())
	}
}

// ready waits until the server lets us in, makes sure that it is ours, and creates the database.
func (s *Server) ready(ctx context.Context, adminURL, database string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	report := time.NewTicker(10 * time.Second)
	defer report.Stop()
	for {
		err := s.prepare(ctx, adminURL, database)
		if err == nil || !isStarting(err) {
			return err
		}
		select {
		case <-s.process.done:
			return fmt.Errorf("it ended at once (%v)", s.process.result())
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w", context.Cause(ctx))
		case <-report.C:
			s.log.Info("still waiting for the private Postgres to be ready", "cause", err)
		case <-tick.C:
		}
	}
}

func (s *Server) prepare(ctx context.Context, adminURL, database string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return &connectError{err}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var data string
	if err := conn.QueryRow(ctx, "select current_setting('data_directory')").Scan(&data); err != nil {
		return fmt.Errorf("ask the server for its folder: %w", err)
	}
	if data != s.cluster {
		return fmt.Errorf("a server of another folder (%s) answers on its port", data)
	}
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", database).Scan(&exists); err != nil {
		return fmt.Errorf("look for the database %s: %w", database, err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{database}.Sanitize()); err != nil {
			return fmt.Errorf("create the database %s: %w", database, err)
		}
	}
	return nil
}

// URL is the connection string of Database, with the password, as the superuser "overlayd".
func (s *Server) URL() string { return s.url }

// PID is the process id of the server.
func (s *Server) PID() int { return s.process.pid }

// Done is closed when the server process has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.process.done }

// Err tells why the server ended without Stop; nil while it runs and after Stop.
func (s *Server) Err() error {
	if !s.process.ended() {
		return nil
	}
	select {
	case <-s.stopped:
		return nil
	default:
		return fmt.Errorf("the private Postgres in %s ended (%v)%s", s.cluster, s.process.result(), s.logFile.quote())
	}
}

// Stop shuts the server down: sessions are ended, a checkpoint is written, and the process is gone on return. When ctx ends
// first the server is stopped without the checkpoint, which costs the next start a recovery but loses nothing; Stop then
// returns an error, and still no process is left. Stopping twice is harmless.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Do(func() { close(s.stopped) })
	return s.end(ctx, false)
}

// end is Stop, with the choice to skip the checkpoint. It may run twice: nothing in it minds.
func (s *Server) end(ctx context.Context, immediate bool) error {
	defer func() {
		if !immediate { // run keeps its place for another attempt
			s.release()
			s.logFile.close()
		}
	}()
	if s.process.ended() {
		return nil
	}
	if !immediate {
		s.process.signal(signalFast)
		select {
		case <-s.process.done:
			return nil
		case <-ctx.Done():
		}
	}
	s.process.signal(signalImmediate)
	grace := time.NewTimer(10 * time.Second)
	defer grace.Stop()
	select {
	case <-s.process.done:
	case <-grace.C:
		s.process.signal(os.Kill)
		<-s.process.done
		awaitGone(context.WithoutCancel(ctx), s.cluster, 5*time.Second)
	}
	if immediate {
		return nil
	}
	return fmt.Errorf("the private Postgres in %s was stopped before its shutdown was complete (the next start recovers): %w", s.cluster, context.Cause(ctx))
}

// Remove deletes Data and its cluster, after stopping a server that a killed process left. It refuses with *InUseError
// while a process holds Data. A folder that is not there is no error.
func Remove(ctx context.Context, data string) error {
	if !supported {
		return nil
	}
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	data, err := realPath(data)
	if err != nil {
		return fmt.Errorf("remove the private Postgres: %w", err)
	}
	release, err := acquire(data)
	if err != nil {
		return err
	}
	defer release()
	st, err := loadState(data)
	if err != nil {
		return err
	}
	home := cmp.Or(st.Home, data)
	if err := takeOver(ctx, filepath.Join(home, clusterFolder), takeOverPatience(), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if st.Home != "" {
		// Only what is known to be ours: the name of the folder comes from a file.
		for _, name := range []string{clusterFolder, clusterFolder + ".new", clusterFolder + ".old", lockName} {
			err = errors.Join(err, os.RemoveAll(filepath.Join(home, name)))
		}
		err = errors.Join(err, os.Remove(home))
	}
	if err := errors.Join(err, os.RemoveAll(data)); err != nil {
		return fmt.Errorf("remove the private Postgres: %w", err)
	}
	return nil
}

func serverURL(password string, port int, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, password),
		Host:     "127.0.0.1:" + strconv.Itoa(port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// clusterName is in the title of every process of the server. It stands for the folder, which would be too long.
func clusterName(cluster string) string {
	sum := sha256.Sum256([]byte(cluster))
	return "overlayd-" + hex.EncodeToString(sum[:8])
}

func (o Options) serverArguments(pl *place, port int) []string {
	durable := "on"
	if o.Fast {
		durable = "off"
	}
	args := []string{"-D", pl.cluster(), "-p", strconv.Itoa(port)}
	for _, setting := range [...]string{
		"listen_addresses=127.0.0.1",
		"unix_socket_directories=",
		"cluster_name=" + clusterName(pl.cluster()),
		"max_connections=" + strconv.Itoa(o.MaxConnections),
		"shared_buffers=128MB",
		"fsync=" + durable,
		"full_page_writes=" + durable,
		"synchronous_commit=on",
		"wal_level=replica",
		"random_page_cost=1.1",
		"password_encryption=scram-sha-256",
		"logging_collector=off",
		"log_destination=stderr",
		"log_line_prefix=%m [%p] ",
	} {
		args = append(args, "-c", setting)
	}
	return args
}
