package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/overlayd/overlayd/internal/config"
	"github.com/overlayd/overlayd/livefeed"
)

// configuration asks what serve would refuse, and what it takes and should not be kept.
func (x *examination) configuration(context.Context) (Finding, error) {
	if err := x.Config.Validate(); err != nil {
		faults := strings.Split(err.Error(), "\n")
		rest := ""
		if n := len(faults) - 1; n > 0 {
			rest = fmt.Sprintf(" (and %d more)", n)
		}
		return failure("serve would refuse it: "+faults[0]+rest, "correct it; `overlayd config --check` lists every fault"), nil
	}
	if x.Config.Retention.EverySeconds == 0 && x.Nodes == 1 {
		return warning("retention.everySeconds is 0, so this process removes nothing", "leave that to another process that has it, or set it to 30"), nil
	}
	if x.Config.LocalDevelopment {
		return warning("localDevelopment is true, so that clients may reach the provider without TLS", "leave it out anywhere but on a development machine"), nil
	}
	return ok("%d services on %d feeds can be served", len(x.Config.Services), len(x.Config.FeedNames())), nil
}

// identityKey asks for the key as serve would, and who could replace its file.
func (x *examination) identityKey(context.Context) (Finding, error) {
	if x.Identity == nil {
		return Finding{}, errNothing
	}
	key, err := x.Identity()
	if err != nil {
		return failure(err.Error(), "correct it: without the key nothing can be signed"), nil
	}
	x.identity = key
	if x.Config.Identity.Key != "" {
		return ok("the key of the environment signs as %s", key), nil
	}
	f := ok("the key signs as %s and only its owner may read it", key)
	return worstOf(f, folderOf("identity.keyFile", x.Config.Identity.KeyFile)), nil
}

func (x *examination) operatorToken(context.Context) (Finding, error) {
	if x.Token == nil {
		return Finding{}, errNothing
	}
	if err := x.Token(); err != nil {
		return failure(err.Error(), "correct it: without a token there is no operator API"), nil
	}
	return worstOf(ok("the token is long enough and only its owner may read it"), folderOf("operator.tokenFile", x.Config.Operator.TokenFile)), nil
}

// folderOf warns where others than the owner may put another file into a file's place.
func folderOf(key, path string) Finding {
	folder := filepath.Dir(path)
	info, err := os.Stat(folder)
	if err != nil {
		return ok("")
	}
	if mode := info.Mode(); permissionsTell && mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		return warning(fmt.Sprintf("others may put another file into the place of %s: its folder %s has mode %04o", key, folder, mode.Perm()),
			"run chmod go-w "+folder)
	}
	return ok("")
}

// operatorListen asks who can come to the operator API, which speaks plain HTTP.
func (x *examination) operatorListen(context.Context) (Finding, error) {
	host, _, err := net.SplitHostPort(x.Config.Operator.Listen)
	if err != nil {
		return failure(fmt.Sprintf("operator.listen %q is no address", x.Config.Operator.Listen), "write host:port, such as 127.0.0.1:8081"), nil
	}
	if loopback(host) {
		return ok("the operator API is reached from this machine only, at %s", x.Config.Operator.Listen), nil
	}
	return warning(fmt.Sprintf("the operator API listens on %s, in plain HTTP: whoever reads along has the token", x.Config.Operator.Listen),
		"listen on 127.0.0.1, or keep that address within a network of your own"), nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// stateFile asks whether what is remembered outside the database can be, and is.
func (x *examination) stateFile(context.Context) (Finding, error) {
	path := x.Config.StateFile
	if path == "" {
		return warning("stateFile is not set: a database that is set back while no node runs is noticed by a client's cursor and not at start",
			"name a file on a disk of this machine, outside the database and its backups"), nil
	}
	folder := filepath.Dir(path)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := mayWrite(folder); err != nil {
			return failure(fmt.Sprintf("the state file cannot be made in %s: %v", folder, err), "make the folder, owned by the user that overlayd runs as"), nil
		}
		return warning(fmt.Sprintf("the state file %s is not there yet: nothing is remembered of the database so far", path),
			"nothing, before the first start; later put it back, or do as docs/operations.md says of a restore"), nil
	}
	if _, err := livefeed.OpenWitness(path, slog.New(slog.DiscardHandler)); err != nil { // reads only: the file is there
		return failure(err.Error(), "put a copy back, or remove it if the database is known to have lost nothing"), nil
	}
	for _, p := range []string{folder, path} {
		if err := mayWrite(p); err != nil {
			return failure(fmt.Sprintf("%s cannot be written: %v", p, err), "give it to the user that overlayd runs as"), nil
		}
	}
	return ok("the state file can be read and replaced"), nil
}

// proxy asks whether what stands in front, and whose word counts for addresses, go together.
func (x *examination) proxy(context.Context) (Finding, error) {
	c := x.Config
	for _, text := range c.TrustedProxies {
		p, err := config.ParseProxy(text)
		if err != nil {
			return failure(fmt.Sprintf("trustedProxies holds %q, which is neither an address nor a network", text), "write 192.0.2.7 or 192.0.2.0/24"), nil
		}
		if p.Bits() == 0 {
			return failure(fmt.Sprintf("trustedProxies holds %s, which is everybody: any caller can claim any address, and no quota of a client holds", text),
				"name the addresses of your proxies alone"), nil
		}
	}
	switch behind := c.PlainListener || len(c.TrustedProxies) > 0; {
	case behind && len(c.TrustedProxies) == 0:
		return warning("plainListener says that a proxy stands in front, and trustedProxies is empty: all anonymous callers are one client to the quotas",
			"put the proxy's address into trustedProxies"), nil
	case c.TLS.Set() && len(c.TrustedProxies) > 0:
		return warning("overlayd speaks TLS itself and trusts the X-Forwarded-For of "+strings.Join(c.TrustedProxies, ", "),
			"leave trustedProxies empty unless a proxy is there that speaks TLS to overlayd"), nil
	case behind:
		return ok("a proxy stands in front, and the word of %s counts for addresses", strings.Join(c.TrustedProxies, ", ")), nil
	}
	return ok("no proxy stands in front: the address of a connection is the client's"), nil
}
