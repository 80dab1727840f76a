package openfence

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is what the package needs of a pgx transaction, connection or pool.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Key names one opening: 16 bytes of a keyed digest of service, principal and request id.
type Key [16]byte

// Entry is what a fence remembers of the Open it stands for.
type Entry struct {
	Params    [16]byte // keyed digest of the canonical Open, limits as requested
	Selection [8]byte  // keyed digest of the capability digest it was sent under
}

// Verdict is how a repeated Open compares with the first one.
type Verdict uint8

// Verdicts in the order in which they are decided (conformance row O3).
const (
	Same           Verdict = iota // the same Open: resolve it by its session
	Conflict                      // other parameters under the same key
	OtherSelection                // the same parameters under another capability digest
)

// Fences makes keyed digests with the database's fence secret and reads and writes fence rows. It is immutable.
type Fences struct {
	keyID  int16
	secret []byte
}

// keyID is the id of the only secret a database ever has.
const keyID int16 = 1

// Load returns the database's fences, creating the secret on first use. Nodes that start at once agree on one secret.
func Load(ctx context.Context, q Querier) (*Fences, error) {
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return nil, fmt.Errorf("openfence: draw a secret: %w", err)
	}
	if _, err := q.Exec(ctx, `insert into fence_key (id, secret) values ($1, $2) on conflict do nothing`, keyID, fresh); err != nil {
		return nil, fmt.Errorf("openfence: store the secret: %w", err)
	}
	f := &Fences{keyID: keyID}
	if err := q.QueryRow(ctx, `select secret from fence_key where id = $1`, keyID).Scan(&f.secret); err != nil {
		return nil, fmt.Errorf("openfence: read the secret: %w", err)
	}
	return f, nil
}

// Key returns the fence key of an Open. principal is the caller's identity key in hex, or empty for an anonymous caller,
// for whom the request id itself is the bearer capability (BRC-193 s8).
func (f *Fences) Key(service, principal, requestID string) Key {
	return Key(f.digest("key", service, principal, requestID)[:16])
}

// Entry returns what a fence for this Open would remember.
func (f *Fences) Entry(canonicalOpen []byte, capability string) Entry {
	return Entry{
		Params:    [16]byte(f.digest("params", string(canonicalOpen))[:16]),
		Selection: [8]byte(f.digest("selection", capability)[:8]),
	}
}

// digest is HMAC-SHA256 over length-prefixed parts, so that no two lists of parts share an input.
func (f *Fences) digest(parts ...string) []byte {
	mac := hmac.New(sha256.New, f.secret)
	var size [4]byte
	for _, part := range parts {
		binary.BigEndian.PutUint32(size[:], uint32(len(part)))
		mac.Write(size[:])
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}

// Compare judges a repeated Open against the remembered one.
func (e Entry) Compare(again Entry) Verdict {
	switch {
	case e.Params != again.Params:
		return Conflict
	case e.Selection != again.Selection:
		return OtherSelection
	}
	return Same
}

// Find reads the fence of a key; found is false when it was never claimed, or its claim is not committed.
func (f *Fences) Find(ctx context.Context, q Querier, key Key) (e Entry, found bool, err error) {
	var params, selection []byte
	err = q.QueryRow(ctx, `select params, selection from open_fence where key = $1`, key[:]).Scan(&params, &selection)
	if errors.Is(err, pgx.ErrNoRows) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("openfence: find: %w", err)
	}
	if len(params) != len(e.Params) || len(selection) != len(e.Selection) {
		return Entry{}, false, errors.New("openfence: find: a fence row has the wrong width")
	}
	return Entry{Params: [16]byte(params), Selection: [8]byte(selection)}, true, nil
}

// Claim takes the key in the caller's transaction, waiting for any other transaction that is claiming it. It reports
// whether this call took it; if not, the winner has committed and Find on the same connection sees its fence.
func (f *Fences) Claim(ctx context.Context, tx pgx.Tx, key Key, e Entry) (bool, error) {
	tag, err := tx.Exec(ctx, `insert into open_fence (key, params, selection, key_id) values ($1, $2, $3, $4)
		on conflict do nothing`, key[:], e.Params[:], e.Selection[:], f.keyID)
	if err != nil {
		return false, fmt.Errorf("openfence: claim: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}
