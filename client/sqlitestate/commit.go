package sqlitestate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/overlayd/overlayd/client"
)

// sweepRows is how many memberships of retired generations go with each commit.
const sweepRows = 2048

func (r *record) Commit(ctx context.Context, c client.Commit) (done client.Committed, err error) {
	err = r.write(ctx, "record the batch", func(ctx context.Context, tx *sql.Tx) error {
		done, err = (&commit{record: r, tx: tx, batch: c, prepared: make(map[string]*sql.Stmt)}).run(ctx)
		return err
	})
	if err != nil {
		return client.Committed{}, err
	}
	return done, nil
}

// commit is one batch on its way into the tables, inside one transaction.
type commit struct {
	*record
	tx    *sql.Tx
	batch client.Commit

	space, other int64 // where this batch's ids are unique, and where they must not be
	page         int64
	prepared     map[string]*sql.Stmt // closed with the transaction
}

// statement prepares what is run for each group or observation once a batch.
func (c *commit) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.prepared[query]; s != nil {
		return s, nil
	}
	s, err := c.tx.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	c.prepared[query] = s
	return s, nil
}

// insert runs a prepared insertion and returns the new row's number.
func (c *commit) insert(ctx context.Context, query string, args ...any) (int64, error) {
	s, err := c.statement(ctx, query)
	if err != nil {
		return 0, err
	}
	res, err := s.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// number runs a prepared query for one number.
func (c *commit) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	s, err := c.statement(ctx, query)
	if err != nil {
		return 0, err
	}
	err = s.QueryRowContext(ctx, args...).Scan(&n)
	return n, err
}

func (c *commit) run(ctx context.Context) (client.Committed, error) {
	var none client.Committed
	st, err := readStatus(ctx, c.tx, c.source)
	if err != nil {
		return none, err
	}
	if err := c.admit(st); err != nil {
		return none, err
	}
	before, after := st.Latest.Checkpoint, c.batch.Checkpoint
	snapshot := after.Phase != client.PhaseLive
	complete := after.Phase == client.PhaseComplete
	firstLive := !snapshot && before.Phase == client.PhaseComplete
	opened := before == nil
	if opened {
		if err := c.continuity(ctx); err != nil {
			return none, err
		}
	}

	// A batch that shows nothing moves the checkpoint only.
	shows := opened || complete || firstLive || len(c.batch.Groups) > 0
	err = c.tx.QueryRowContext(ctx, `
		UPDATE generations SET session = ?, cursor = ?, scope = ?, scope_digest = ?, phase = ?, w = ?, through = ?, high_water = ?,
		       expires_at = ?, replay_until = ?, pages = pages + ?
		WHERE source = ? AND generation = ? RETURNING pages`,
		after.Session, after.Cursor, after.Scope, after.ScopeDigest, string(after.Phase), int64(after.W), int64(after.Through), int64(after.HighWater),
		int64(after.ExpiresAt), int64(after.ReplayUntil), shows, c.source, int64(c.batch.Generation)).Scan(&c.page)
	if err != nil {
		return none, err
	}
	if err := c.sweep(ctx, st.Published); err != nil {
		return none, err
	}
	if !shows {
		return none, nil
	}
	if err := c.spaces(ctx, snapshot); err != nil {
		return none, err
	}
	done := client.Committed{Mark: client.Mark{Generation: c.batch.Generation, Page: uint64(c.page)}}
	_, err = c.tx.ExecContext(ctx, `
		INSERT INTO pages (source, generation, page, snapshot, complete, first_live, through, high_water) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		c.source, int64(c.batch.Generation), c.page, snapshot, complete, firstLive, int64(after.Through), int64(after.HighWater))
	if err != nil {
		return none, err
	}
	for i, group := range c.batch.Groups {
		if err := c.group(ctx, i, group); err != nil {
			return none, err
		}
	}
	if complete {
		done.Replaces = st.Published
		if done.Unseen, err = c.publish(ctx, st.Published); err != nil {
			return none, err
		}
	}
	return done, nil
}

// admit checks that the batch continues what is recorded (C3.2).
func (c *commit) admit(st client.Status) error {
	g := st.Latest
	switch {
	case g == nil || g.Number != c.batch.Generation:
		return fmt.Errorf("generation %d is not the latest", c.batch.Generation)
	case g.Ended != nil:
		return fmt.Errorf("generation %d has ended", g.Number)
	case g.Checkpoint == nil && c.batch.From != "":
		return errors.New("the batch was read with a cursor that is not recorded")
	case g.Checkpoint != nil && g.Checkpoint.Cursor != c.batch.From:
		return errors.New("the batch was read with a cursor other than the recorded one")
	}
	return nil
}

// continuity refuses a snapshot taken before what an earlier generation of the
// same scope, epoch included, has already seen.
func (c *commit) continuity(ctx context.Context) error {
	rows, err := c.tx.QueryContext(ctx, `SELECT through FROM generations WHERE source = ? AND generation < ? AND scope_digest = ?`,
		c.source, int64(c.batch.Generation), c.batch.Checkpoint.ScopeDigest)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var through int64
		if err := rows.Scan(&through); err != nil {
			return err
		}
		if uint64(through) > c.batch.Checkpoint.W {
			return &client.ViolationError{Rule: client.RuleContinuation,
				Detail: fmt.Sprintf("the new snapshot stands at %d, but this epoch was already read through %d", c.batch.Checkpoint.W, uint64(through))}
		}
	}
	return rows.Err()
}

// spaces finds where the ids of this batch belong.
func (c *commit) spaces(ctx context.Context, snapshot bool) error {
	ids := [2]int64{}
	for i, name := range []string{fmt.Sprintf("snapshot %d", c.batch.Generation), "live " + c.batch.Checkpoint.ScopeDigest} {
		// The update makes RETURNING speak for an existing row too.
		err := c.tx.QueryRowContext(ctx, `
			INSERT INTO spaces (source, name) VALUES (?, ?) ON CONFLICT (source, name) DO UPDATE SET name = excluded.name RETURNING space`,
			c.source, name).Scan(&ids[i])
		if err != nil {
			return err
		}
	}
	c.space, c.other = ids[0], ids[1]
	if !snapshot {
		c.space, c.other = c.other, c.space
	}
	return nil
}

func (c *commit) group(ctx context.Context, index int, g client.Receipt) error {
	taken, err := c.number(ctx, `SELECT space FROM receipts WHERE id = ? AND space IN (?, ?)`, g.ID, c.space, c.other)
	switch {
	case err == nil && taken == c.other:
		return &client.ViolationError{Rule: client.RuleDuplicate, Detail: "a group id is used in the snapshot and in the live log"}
	case err == nil:
		return c.sameGroup(ctx, g)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	receipt, err := c.insert(ctx, `INSERT INTO receipts (source, generation, page, idx, space, id, sequence) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		c.source, int64(c.batch.Generation), c.page, index, c.space, g.ID, int64(g.Sequence))
	if err != nil {
		return err
	}
	for i, o := range g.Observations {
		if err := c.observation(ctx, receipt, i, g.Sequence, o); err != nil {
			return err
		}
	}
	return nil
}

// sameGroup tells a group that came again from one that came changed.
func (c *commit) sameGroup(ctx context.Context, g client.Receipt) error {
	var receipt, sequence int64
	err := c.tx.QueryRowContext(ctx, `SELECT receipt, sequence FROM receipts WHERE space = ? AND id = ?`, c.space, g.ID).Scan(&receipt, &sequence)
	if err != nil {
		return err
	}
	old, err := readObservations(ctx, c.tx, receipt)
	if err != nil {
		return err
	}
	same := uint64(sequence) == g.Sequence && len(old) == len(g.Observations)
	for i := 0; same && i < len(old); i++ {
		same = bytes.Equal(old[i].Canonical, g.Observations[i].Canonical)
	}
	if same {
		return &client.ViolationError{Rule: client.RuleDuplicate, Detail: "a group that is already recorded came again"}
	}
	var claim []byte
	for _, o := range g.Observations {
		claim = append(append(claim, o.Canonical...), '\n')
	}
	return &client.EquivocationError{What: "group", ID: g.ID, Claim: claim}
}

func (c *commit) observation(ctx context.Context, receipt int64, index int, sequence uint64, o client.Received) error {
	taken, err := c.number(ctx, `SELECT space FROM observations WHERE id = ? AND space IN (?, ?)`, o.ID, c.space, c.other)
	switch {
	case err == nil && taken == c.other:
		return &client.ViolationError{Rule: client.RuleDuplicate, Detail: "an observation id is used in the snapshot and in the live log"}
	case err == nil:
		return c.sameObservation(ctx, o)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	head, tail := o.Canonical, []byte{}
	var evidence sql.NullInt64
	if len(o.Evidence) > 0 {
		text := base64.StdEncoding.AppendEncode(nil, o.Evidence)
		if at := bytes.LastIndex(o.Canonical, text); at >= 0 {
			if evidence.Int64, err = c.evidence(ctx, o.Evidence); err != nil {
				return err
			}
			evidence.Valid = true
			head, tail = o.Canonical[:at], o.Canonical[at+len(text):]
		}
	}
	id, err := c.insert(ctx, `INSERT INTO observations (receipt, idx, space, id, kind, head, evidence, tail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		receipt, index, c.space, o.ID, o.Kind, head, evidence, tail)
	if err != nil || o.Effect == client.EffectNone {
		return err
	}
	txid, err := hex.DecodeString(o.TxID)
	if err != nil {
		return fmt.Errorf("outpoint of an observation: %w", err)
	}
	_, err = c.insert(ctx, `
		INSERT INTO memberships (source, generation, txid, output_index, present, sequence, observation) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET present = excluded.present, sequence = excluded.sequence, observation = excluded.observation`,
		c.source, int64(c.batch.Generation), txid, int64(o.Index), o.Effect == client.EffectPresent, int64(sequence), id)
	return err
}

// sameObservation tells an observation that came again from one that came changed.
func (c *commit) sameObservation(ctx context.Context, o client.Received) error {
	var receipt int64
	err := c.tx.QueryRowContext(ctx, `SELECT receipt FROM observations WHERE space = ? AND id = ?`, c.space, o.ID).Scan(&receipt)
	if err != nil {
		return err
	}
	old, err := readObservations(ctx, c.tx, receipt)
	if err != nil {
		return err
	}
	for _, have := range old {
		if have.ID == o.ID && bytes.Equal(have.Canonical, o.Canonical) {
			return &client.ViolationError{Rule: client.RuleDuplicate, Detail: "an observation that is already recorded came again"}
		}
	}
	return &client.EquivocationError{What: "observation", ID: o.ID, Claim: o.Canonical}
}

func (c *commit) evidence(ctx context.Context, beef []byte) (id int64, err error) {
	sum := sha256.Sum256(beef)
	id, err = c.number(ctx, `SELECT evidence FROM evidence WHERE sha256 = ?`, sum[:])
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	return c.insert(ctx, `INSERT INTO evidence (sha256, beef) VALUES (?, ?)`, sum[:], beef)
}

// publish makes the generation whose snapshot is now whole the source's answer,
// and counts the present rows of the old answer that it does not have.
func (c *commit) publish(ctx context.Context, old uint64) (unseen uint64, err error) {
	if old != 0 {
		err := c.tx.QueryRowContext(ctx, `
			SELECT count(*) FROM memberships o WHERE o.source = ?1 AND o.generation = ?2 AND o.present = 1 AND NOT EXISTS (
				SELECT 1 FROM memberships n
				WHERE n.source = ?1 AND n.generation = ?3 AND n.txid = o.txid AND n.output_index = o.output_index AND n.present = 1)`,
			c.source, int64(old), int64(c.batch.Generation)).Scan(&unseen)
		if err != nil {
			return 0, err
		}
	}
	_, err = c.tx.ExecContext(ctx, `UPDATE sources SET published = ? WHERE source = ?`, int64(c.batch.Generation), c.source)
	if err != nil {
		return 0, err
	}
	_, err = c.tx.ExecContext(ctx, `UPDATE pages SET replaces = ?, unseen = ? WHERE source = ? AND generation = ? AND page = ?`,
		int64(old), int64(unseen), c.source, int64(c.batch.Generation), c.page)
	return unseen, err
}

// sweep removes a bounded number of memberships that no reader can see any more.
func (c *commit) sweep(ctx context.Context, published uint64) error {
	if published <= 1 {
		return nil
	}
	_, err := c.tx.ExecContext(ctx, `
		DELETE FROM memberships WHERE (source, generation, txid, output_index) IN (
			SELECT source, generation, txid, output_index FROM memberships WHERE source = ? AND generation < ? LIMIT ?)`,
		c.source, int64(published), sweepRows)
	return err
}
