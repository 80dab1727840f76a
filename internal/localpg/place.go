package localpg

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// user is who the server runs as.
type user struct {
	name     string
	uid, gid uint32
	change   bool // false: whoever we are
}

func (u user) String() string {
	if !u.change {
		return "this user"
	}
	return "user " + u.name
}

// place is where the cluster is and how its server can reach it.
type place struct {
	home       string // holds the cluster
	user       user
	capability bool   // the user needs CAP_DAC_READ_SEARCH to get there
	release    func() // gives home back, when it is not Data
}

func (p *place) cluster() string { return filepath.Join(p.home, clusterFolder) }

// command is a server program as the server's user, with nothing of our environment.
func (p *place) command(program string, args []string, output *logFile, death syscall.Signal) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/bin:/bin"}
	if output != nil {
		cmd.Stdout, cmd.Stderr = output.file, output.file // the file itself: nobody has to stay and copy
	}
	cmd.SysProcAttr = attributes(p.user, p.capability, death)
	return cmd
}

// place finds the folder of the cluster: the one of the first start, else Data, else a system folder when the server's
// user cannot be let into Data.
func (o Options) place(ctx context.Context, st *state, bin programs) (*place, error) {
	home := cmp.Or(st.Home, o.Data)
	info, err := os.Stat(filepath.Join(home, clusterFolder))
	if err == nil {
		return o.existing(ctx, st, bin, home, info)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the Postgres cluster: %w", err)
	}
	u, err := serverUser()
	if err != nil {
		return nil, err
	}
	if st.Home != "" {
		// The pointer is written just before the new cluster gets its name.
		if _, err := os.Stat(filepath.Join(home, clusterFolder+".new")); err != nil {
			return nil, fmt.Errorf("%s says the Postgres cluster is in %s, and it is not there: put it back, or move %s away to begin anew",
				filepath.Join(o.Data, stateName), st.Home, o.Data)
		}
		return o.outside(ctx, st, bin, u, errors.New("its cluster was begun elsewhere"))
	}
	var reasons []error
	for _, capability := range []bool{false, true} {
		if capability && !u.change {
			break
		}
		p := &place{home: home, user: u, capability: capability, release: func() {}}
		err := o.try(ctx, p, bin, true)
		if err == nil {
			return p, nil
		}
		reasons = append(reasons, err)
	}
	if ctx.Err() != nil || !u.change {
		return nil, fmt.Errorf("make a folder for the Postgres cluster in %s: %w", home, errors.Join(reasons...))
	}
	return o.outside(ctx, st, bin, u, errors.Join(reasons...))
}

// outside makes a place in the system folder for the cluster of Data; why tells what was wrong with Data itself.
func (o Options) outside(ctx context.Context, st *state, bin programs, u user, why error) (_ *place, err error) {
	sum := sha256.Sum256([]byte(o.Data))
	p := &place{home: filepath.Join(o.system, hex.EncodeToString(sum[:8])), user: u}
	if err := os.MkdirAll(p.home, 0o711); err != nil {
		return nil, fmt.Errorf("make a system folder for the Postgres cluster: %w", err)
	}
	if p.release, err = acquire(p.home); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	// A cluster that no localpg.json points to is what remained of a deleted Data. It is kept once, in case that was a mistake.
	if _, err := os.Stat(p.cluster()); err == nil {
		if err := takeOver(ctx, p.cluster(), o.patience, o.Log); err != nil {
			return nil, err
		}
		if err := errors.Join(os.RemoveAll(p.cluster()+".old"), os.Rename(p.cluster(), p.cluster()+".old")); err != nil {
			return nil, fmt.Errorf("put an old Postgres cluster aside: %w", err)
		}
	}
	if err := o.try(ctx, p, bin, true); err != nil {
		return nil, fmt.Errorf("%s can run PostgreSQL neither in %s (%w) nor in %s (%w): make %s reachable for that user, start overlayd as an ordinary user, or set OVERLAYD_DATABASE_URL",
			u, o.Data, why, p.home, err, bin.dir)
	}
	o.Log.Info("the private Postgres is kept outside its data folder, which its user cannot reach", "data", o.Data, "cluster", p.cluster(), "user", u.name)
	st.Home = p.home
	return p, nil
}

// existing serves a cluster that is there, as its owner.
func (o Options) existing(ctx context.Context, st *state, bin programs, home string, cluster fs.FileInfo) (*place, error) {
	u, err := ownerUser(cluster, home)
	if err != nil {
		return nil, err
	}
	p := &place{home: home, user: u, release: func() {}}
	if st.Home != "" {
		if p.release, err = acquire(home); err != nil {
			return nil, err
		}
	}
	if err = o.try(ctx, p, bin, false); err != nil && u.change {
		p.capability = true
		err = o.try(ctx, p, bin, false)
	}
	if err != nil {
		p.release()
		return nil, fmt.Errorf("%s cannot reach the Postgres cluster in %s: let that user through the folders above it (chmod o+x): %w", u, home, err)
	}
	return p, nil
}

// try proves that the user can run the programs with the cluster as its folder, by doing so. With fresh it first makes
// the folder initdb will fill.
func (o Options) try(ctx context.Context, p *place, bin programs, fresh bool) error {
	folder := p.cluster()
	if fresh {
		folder += ".new"
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		if err := os.Mkdir(folder, 0o700); err != nil {
			return err
		}
		if p.user.change {
			if err := os.Chown(folder, int(p.user.uid), int(p.user.gid)); err != nil {
				return err
			}
		}
	}
	// The shell goes into the folder as the server will: a capability works from the first program on, not in our own chdir.
	for _, args := range [][]string{
		{bin.postgres, "--version"},
		{bin.initdb, "--version"},
		{"/bin/sh", "-c", `cd "$1" && test -w .`, "sh", folder},
	} {
		if err := run(ctx, p.command(args[0], args[1:], nil, syscall.SIGKILL)); err != nil {
			if fresh {
				_ = os.RemoveAll(folder)
			}
			return fmt.Errorf("run %s on %s as %s: %w", args[0], folder, p.user, err)
		}
	}
	return nil
}

// initialise makes the cluster where there is none.
func (o Options) initialise(ctx context.Context, st *state, bin programs, p *place, log *logFile) error {
	if _, err := os.Stat(p.cluster()); err == nil {
		return os.RemoveAll(p.cluster() + ".new")
	}
	fresh := p.cluster() + ".new"
	secret := filepath.Join(p.home, "password.new")
	if err := os.RemoveAll(secret); err != nil {
		return fmt.Errorf("make the Postgres cluster: %w", err)
	}
	if err := writeFile(secret, []byte(st.Password+"\n")); err != nil {
		return fmt.Errorf("make the Postgres cluster: %w", err)
	}
	defer os.Remove(secret)
	if p.user.change {
		if err := os.Chown(secret, int(p.user.uid), int(p.user.gid)); err != nil {
			return fmt.Errorf("make the Postgres cluster: %w", err)
		}
	}
	args := []string{"-D", fresh, "-U", superuser, "-A", "scram-sha-256", "--pwfile=" + secret,
		"-E", "UTF8", "--locale=C", "--data-checksums"}
	if o.Fast {
		args = append(args, "--no-sync")
	}
	log.mark()
	if err := run(ctx, p.command(bin.initdb, args, log, syscall.SIGTERM)); err != nil {
		_ = os.RemoveAll(fresh)
		return fmt.Errorf("make the Postgres cluster in %s with %s: %w%s", p.home, bin.initdb, err, log.quote())
	}
	if err := st.save(o.Data); err != nil { // with Home, before there is a cluster to lose
		return err
	}
	if err := os.Rename(fresh, p.cluster()); err != nil {
		return fmt.Errorf("make the Postgres cluster: %w", err)
	}
	return syncFolder(p.home)
}

// run waits for a helper program. When ctx ends it, its own children end with it.
func run(ctx context.Context, cmd *exec.Cmd) error {
	p, err := launch(cmd, nil)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	killGroup(p.pid, syscall.SIGTERM)
	grace := time.NewTimer(5 * time.Second)
	defer grace.Stop()
	select {
	case <-p.done:
	case <-grace.C:
		killGroup(p.pid, syscall.SIGKILL)
		<-p.done
	}
	return context.Cause(ctx)
}

// serverUser is who runs a new cluster: us, or for root the first of postgres, nobody, and any other user with an entry
// in the password file, which initdb insists on.
func serverUser() (user, error) {
	if os.Geteuid() != 0 {
		return user{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := osuser.Lookup(name); err == nil {
			if found, ok := asUser(u.Username, u.Uid, u.Gid); ok {
				return found, nil
			}
		}
	}
	f, err := os.Open("/etc/passwd")
	if err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Split(lines.Text(), ":")
			if len(fields) < 4 {
				continue
			}
			if found, ok := asUser(fields[0], fields[2], fields[3]); ok {
				return found, nil
			}
		}
	}
	return user{}, errors.New("a Postgres server does not run as root, and there is no other user on this machine: add one (useradd postgres), start overlayd as an ordinary user, or set OVERLAYD_DATABASE_URL")
}

// ownerUser is who runs an existing cluster: its owner, because Postgres insists on that too.
func ownerUser(cluster fs.FileInfo, home string) (user, error) {
	uid := owner(cluster)
	if me := os.Geteuid(); me != 0 {
		if uid != me {
			return user{}, fmt.Errorf("the Postgres cluster in %s belongs to user %d: start overlayd as that user or as root, or use another data folder", home, uid)
		}
		return user{}, nil
	}
	u, err := osuser.LookupId(strconv.Itoa(uid))
	if err != nil {
		return user{}, fmt.Errorf("the Postgres cluster in %s belongs to user %d, who is not known here: give it to the user postgres (chown -R): %w", home, uid, err)
	}
	found, ok := asUser(u.Username, u.Uid, u.Gid)
	if !ok {
		return user{}, fmt.Errorf("the Postgres cluster in %s belongs to root, which Postgres refuses: give it to the user postgres (chown -R)", home)
	}
	return found, nil
}

func asUser(name, uid, gid string) (user, bool) {
	u, errU := strconv.ParseUint(uid, 10, 32)
	g, errG := strconv.ParseUint(gid, 10, 32)
	if errU != nil || errG != nil || u == 0 {
		return user{}, false
	}
	return user{name: name, uid: uint32(u), gid: uint32(g), change: true}, true
}
