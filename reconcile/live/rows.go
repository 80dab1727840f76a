package live

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/overlayd/overlayd/client"
	"github.com/overlayd/overlayd/reconcile"
)

// What a run keeps beside the knowledge. Rows of a source begin with its number;
// session, cursor and request id in them are bearer secrets, as the store is.
var (
	keyChain  = []byte("live/run/chain")  // the chain that the store is pinned to
	keyEvents = []byte("live/run/events") // accepted revision through which the events were told
)

// Rows of a source.
const (
	rowIntent     = "intent"     // what the latest generation was opened with
	rowCheckpoint = "checkpoint" // where it is; absent until its first batch
	rowIdentity   = "identity"   // of the provider
	rowTold       = "told"       // latest generation whose ending was told
	rowThrough    = "through/"   // and the digest of a scope: how far it was ever read
)

// sourceKey is the key of a source's row.
func sourceKey(id reconcile.SourceID, row string) []byte {
	k := binary.BigEndian.AppendUint32([]byte("live/src/"), uint32(id))
	return append(append(k, '/'), row...)
}

// throughKey is the row of one scope, named by the hex digest of it.
func throughKey(id reconcile.SourceID, scopeDigest string) []byte {
	return sourceKey(id, rowThrough+scopeDigest[:min(32, len(scopeDigest))])
}

// get reads one row; nil when it is absent.
func get(ctx context.Context, s reconcile.Store, key []byte) ([]byte, error) {
	for e, err := range s.Attachments(ctx, key) {
		if err != nil {
			return nil, err
		}
		if bytes.Equal(e.Key, key) {
			return e.Value, nil
		}
		break
	}
	return nil, nil
}

// getJSON reads one row into v, and reports whether it is there.
func getJSON(ctx context.Context, s reconcile.Store, key []byte, v any) (bool, error) {
	text, err := get(ctx, s, key)
	if err != nil || text == nil {
		return false, err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return false, fmt.Errorf("a row that a run keeps cannot be read: %w", errDamaged)
	}
	return true, nil
}

// errDamaged does not quote what was read: there may be secrets in it.
var errDamaged = reconcile.ErrDamaged

func getNumber(ctx context.Context, s reconcile.Store, key []byte) (uint64, bool, error) {
	text, err := get(ctx, s, key)
	if err != nil || text == nil {
		return 0, false, err
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("a row that a run keeps cannot be read: %w", errDamaged)
	}
	return n, true, nil
}

// asJSON is a row with the JSON of v, which is always possible for these types.
func asJSON(key []byte, v any) reconcile.Entry {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return reconcile.Entry{Key: key, Value: text}
}

func asNumber(key []byte, n uint64) reconcile.Entry {
	return reconcile.Entry{Key: key, Value: strconv.AppendUint(nil, n, 10)}
}

// sameChain compares the chain of a new generation with the one that the store is
// pinned to, and gives the row that pins it when there is none.
func sameChain(ctx context.Context, s reconcile.Store, chain client.Chain) ([]reconcile.Entry, error) {
	var pinned client.Chain
	found, err := getJSON(ctx, s, keyChain, &pinned)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return []reconcile.Entry{asJSON(keyChain, chain)}, nil
	case pinned != chain:
		return nil, &client.PinError{What: "chain", Want: pinned.Network + " " + pinned.GenesisHash, Got: chain.Network + " " + chain.GenesisHash}
	}
	return nil, nil
}
