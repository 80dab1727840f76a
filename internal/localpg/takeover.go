package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const pidFileName = "postmaster.pid"

// takeOverPatience is how long a left server may take after each of: asked to stop, told to stop at once, killed.
func takeOverPatience() []time.Duration {
	return []time.Duration{30 * time.Second, 10 * time.Second, 5 * time.Second}
}

// pidFile is what a server says about itself while it runs.
type pidFile struct {
	pid     int // 0: none
	cluster string
}

func readPIDFile(path string) pidFile {
	raw, err := os.ReadFile(path)
	if err != nil {
		return pidFile{}
	}
	lines := strings.SplitN(string(raw), "\n", 3)
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 || len(lines) < 2 {
		return pidFile{}
	}
	return pidFile{pid: pid, cluster: lines[1]}
}

// takeOver ends the server that a killed overlayd left in the cluster and clears its postmaster.pid. The caller holds the
// lock of the folder, so no living overlayd owns that server. On Linux the kernel has interrupted it already; asking a
// second time does no harm.
func takeOver(ctx context.Context, cluster string, patience []time.Duration, log *slog.Logger) error {
	path := filepath.Join(cluster, pidFileName)
	signals := [...]syscall.Signal{signalFast, signalImmediate, syscall.SIGKILL}
	for i, wait := range patience {
		pids := serversIn(cluster)
		if len(pids) == 0 {
			break
		}
		// The postmaster ends its children. Where it is gone, they are on their own.
		if main := readPIDFile(path); main.cluster == cluster && slices.Contains(pids, main.pid) {
			log.Info("taking over the private Postgres of a process that is gone", "server", main.pid, "signal", signals[i].String())
			pids = []int{main.pid}
		}
		for _, pid := range pids {
			kill(pid, signals[i])
		}
		if awaitGone(ctx, cluster, wait) {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the Postgres server left in %s to end: %w", cluster, context.Cause(ctx))
		}
	}
	if pids := serversIn(cluster); len(pids) > 0 {
		return fmt.Errorf("a Postgres server (process %d) still runs in %s and does not end: end it, then start again", pids[0], cluster)
	}
	// Nothing runs here, so the file is a leftover. Postgres itself would trip over it when its number was given to another
	// process of the same user.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear the leftover %s: %w", path, err)
	}
	return nil
}

// awaitGone tells whether every server process in the cluster has gone within the time.
func awaitGone(ctx context.Context, cluster string, wait time.Duration) bool {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if len(serversIn(cluster)) == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-deadline.C:
			return false
		case <-tick.C:
		}
	}
}
