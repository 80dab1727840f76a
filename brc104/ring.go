package brc104

import (
	"context"
	"errors"
	"fmt"
)

// Bounds of a ring.
const (
	MinSecretBytes = 32
	MaxRingKeys    = 8
)

// Ring is what every node of a deployment shares: the secrets that seal session nonces. A ring is not changed once it was
// handed out; to rotate, hand out another.
//
// The first secret seals new sessions, all of them open old ones. To rotate without harm: put the fresh secret second until
// every node has it, then first, and drop the old one when its last session has expired (Config.SessionTTL after that). Another
// epoch, or dropping every old secret, ends all sessions at once; clients begin new ones by themselves.
type Ring struct {
	Epoch   uint32
	Secrets [][]byte // 1 to 8, each at least 32 random bytes
}

func (r *Ring) check() error {
	if r == nil || len(r.Secrets) == 0 || len(r.Secrets) > MaxRingKeys {
		return fmt.Errorf("brc104: a ring needs 1 to %d secrets", MaxRingKeys)
	}
	for _, s := range r.Secrets {
		if len(s) < MinSecretBytes {
			return fmt.Errorf("brc104: a secret of the ring is shorter than %d bytes", MinSecretBytes)
		}
	}
	return nil
}

// KeySource tells the ring now in force. It is asked for every handshake and every signed request, so it answers from memory.
// An error means that nobody can be authenticated just now.
type KeySource interface {
	Ring(ctx context.Context) (*Ring, error)
}

// Ring makes a fixed ring a KeySource.
func (r *Ring) Ring(context.Context) (*Ring, error) {
	if r == nil {
		return nil, errors.New("brc104: no ring")
	}
	return r, nil
}
