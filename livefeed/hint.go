package livefeed

import (
	"context"
	"fmt"
)

// What stands on a store can tell its like on the other nodes something of its own, over the connection that hears of commits.

const (
	hintChannel = "overlayd_hint"
	hintSend    = `select pg_notify('` + hintChannel + `', u.hint) from unnest($1::text[]) as u(hint)`
)

// MaxHint is how many bytes a hint may have.
const MaxHint = 7999

// Hint tells something to whoever set [Store.OnHint] on the nodes of the database, this one included. Each text has 1..MaxHint
// bytes. Like notifications of commits it is no promise: a node that does not listen just then, or never does, is not told.
func (s *Store) Hint(ctx context.Context, hints ...string) error {
	if _, err := s.cfg.Pool.Exec(ctx, hintSend, hints); err != nil {
		return fmt.Errorf("livefeed: tell the other nodes: %w", err)
	}
	return nil
}

// OnHint sets who takes hints, one at a time, in the order in which they were committed. take must not block: nothing else is
// heard meanwhile.
func (s *Store) OnHint(take func(hint string)) { s.hints.Store(&take) }

func (s *Store) hinted(text string) {
	if take := s.hints.Load(); take != nil {
		(*take)(text)
	}
}
