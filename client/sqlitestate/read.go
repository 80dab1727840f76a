package sqlitestate

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"iter"

	"github.com/overlayd/overlayd/client"
)

// Freshness says how far a row may be relied on as the source's answer.
type Freshness string

// The values of Freshness; the package comment draws how they follow each other.
const (
	Current Freshness = "current" // of the published generation, which still goes on
	Stale   Freshness = "stale"   // of the published generation, which is over: a replacement is not complete
	Partial Freshness = "partial" // of a snapshot that is still arriving
)

// Source is one source of a state directory and how far it is.
type Source struct {
	Base, Service, Query, QueryDigest string
	Principal                         string // whose requests it answers, public key in hex; "" for anonymous ones

	Published uint64 // generation that is the answer; 0 for none yet
	Latest    uint64 // newest generation; 0 for none yet
	Phase     client.Phase
	Through   uint64
	HighWater uint64
	Ended     *client.Ending

	id int64
}

// Sources lists the sources of the state, oldest first.
func (s *Store) Sources(ctx context.Context) ([]Source, error) {
	principal := "principal"
	if s.schema < 2 {
		principal = "''"
	}
	rows, err := s.reader.QueryContext(ctx, `SELECT source, base, service, query, query_digest, `+principal+` FROM sources ORDER BY source`)
	if err != nil {
		return nil, fmt.Errorf("list the sources: %w", err)
	}
	defer rows.Close()
	var out []Source
	for rows.Next() {
		var src Source
		if err := rows.Scan(&src.id, &src.Base, &src.Service, &src.Query, &src.QueryDigest, &src.Principal); err != nil {
			return nil, fmt.Errorf("list the sources: %w", err)
		}
		out = append(out, src)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the sources: %w", err)
	}
	for i := range out {
		st, err := readStatus(ctx, s.reader, out[i].id)
		if err != nil {
			return nil, fmt.Errorf("list the sources: %w", err)
		}
		out[i].Published = st.Published
		if g := st.Latest; g != nil {
			out[i].Latest, out[i].Ended = g.Number, g.Ended
			if g.Checkpoint != nil {
				out[i].Phase, out[i].Through, out[i].HighWater = g.Checkpoint.Phase, g.Checkpoint.Through, g.Checkpoint.HighWater
			}
		}
	}
	return out, nil
}

// Row is what a source says of one outpoint. It is the provider's word: the
// evidence is stored, not verified.
type Row struct {
	TxID        string
	OutputIndex uint32
	Present     bool // false: withdrawn, kept with its last sequence
	Sequence    uint64
	Generation  uint64
	Freshness   Freshness
	Observation string // id of the last applicable observation
	Evidence    string // SHA-256 of its BEEF in hex, "" when it has none
}

// Rows yields the rows of one source in outpoint order: those of the published
// generation, then those of a snapshot that is still arriving. It reads one
// coherent state.
func (s *Store) Rows(ctx context.Context, src Source) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		rows, err := s.reader.QueryContext(ctx, `
			SELECT m.txid, m.output_index, m.present, m.sequence, m.generation, o.id, e.sha256,
			       CASE WHEN m.generation <> s.published THEN 'partial'
			            WHEN l.generation = s.published AND l.end_code IS NULL THEN 'current' ELSE 'stale' END
			FROM sources s
			JOIN generations l ON l.source = s.source AND l.generation = (SELECT max(generation) FROM generations WHERE source = s.source)
			JOIN memberships m ON m.source = s.source AND m.generation IN (s.published, l.generation)
			JOIN observations o ON o.observation = m.observation
			LEFT JOIN evidence e ON e.evidence = o.evidence
			WHERE s.source = ? ORDER BY m.generation, m.txid, m.output_index`, src.id)
		if err != nil {
			yield(Row{}, fmt.Errorf("read the rows: %w", err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			var (
				r                    Row
				txid, sum            []byte
				sequence, generation int64
			)
			if err := rows.Scan(&txid, &r.OutputIndex, &r.Present, &sequence, &generation, &r.Observation, &sum, &r.Freshness); err != nil {
				yield(Row{}, fmt.Errorf("read the rows: %w", err))
				return
			}
			r.TxID, r.Evidence = hex.EncodeToString(txid), hex.EncodeToString(sum)
			r.Sequence, r.Generation = uint64(sequence), uint64(generation)
			if !yield(r, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(Row{}, fmt.Errorf("read the rows: %w", err))
		}
	}
}

// Entry is one received group at its place in the retained order.
type Entry struct {
	Generation, Page uint64
	Snapshot         bool
	client.Receipt   // of Received only ID, Kind and Canonical are set
}

// Receipts yields every group recorded for a source, in the retained order. This
// is what verification and reconciliation start from.
func (s *Store) Receipts(ctx context.Context, src Source) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		type place struct {
			generation, page int64
			snapshot         bool
		}
		var pages []place
		rows, err := s.reader.QueryContext(ctx, `SELECT generation, page, snapshot FROM pages WHERE source = ? ORDER BY generation, page`, src.id)
		if err != nil {
			yield(Entry{}, fmt.Errorf("read the receipts: %w", err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			var p place
			if err := rows.Scan(&p.generation, &p.page, &p.snapshot); err != nil {
				yield(Entry{}, fmt.Errorf("read the receipts: %w", err))
				return
			}
			pages = append(pages, p)
		}
		if err := rows.Err(); err != nil {
			yield(Entry{}, fmt.Errorf("read the receipts: %w", err))
			return
		}
		for _, p := range pages {
			groups, err := readGroups(ctx, s.reader, src.id, p.generation, p.page)
			if err != nil {
				yield(Entry{}, fmt.Errorf("read the receipts: %w", err))
				return
			}
			for _, g := range groups {
				if !yield(Entry{Generation: uint64(p.generation), Page: uint64(p.page), Snapshot: p.snapshot, Receipt: g}, nil) {
					return
				}
			}
		}
	}
}

// Claim is a refused claim in quarantine.
type Claim struct {
	Generation uint64
	At         uint64 // Unix seconds
	Code       string
	Reason     string
	ID         string
	Bytes      []byte // at most 1 MiB of what was refused
}

// Quarantine lists the refused claims of a source, oldest first; the newest 64
// are kept.
func (s *Store) Quarantine(ctx context.Context, src Source) ([]Claim, error) {
	rows, err := s.reader.QueryContext(ctx, `SELECT generation, at, code, reason, id, bytes FROM quarantine WHERE source = ? ORDER BY claim`, src.id)
	if err != nil {
		return nil, fmt.Errorf("read the quarantine: %w", err)
	}
	defer rows.Close()
	var out []Claim
	for rows.Next() {
		var (
			c              Claim
			generation, at int64
		)
		if err := rows.Scan(&generation, &at, &c.Code, &c.Reason, &c.ID, &c.Bytes); err != nil {
			return nil, fmt.Errorf("read the quarantine: %w", err)
		}
		c.Generation, c.At = uint64(generation), uint64(at)
		out = append(out, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the quarantine: %w", err)
	}
	return out, nil
}

// readGroups returns the groups of one page, in order.
func readGroups(ctx context.Context, q querier, source, generation, page int64) ([]client.Receipt, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT r.receipt, r.id, r.sequence, o.id, o.kind, o.head, e.beef, o.tail
		FROM receipts r
		LEFT JOIN observations o ON o.receipt = r.receipt
		LEFT JOIN evidence e ON e.evidence = o.evidence
		WHERE r.source = ? AND r.generation = ? AND r.page = ? ORDER BY r.idx, o.idx`, source, generation, page)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var (
		groups []client.Receipt
		last   int64
	)
	for rows.Next() {
		var (
			receipt, sequence int64
			id                string
			oid, kind         *string
			head, beef, tail  []byte
		)
		if err := rows.Scan(&receipt, &id, &sequence, &oid, &kind, &head, &beef, &tail); err != nil {
			return nil, err
		}
		if len(groups) == 0 || receipt != last {
			groups, last = append(groups, client.Receipt{ID: id, Sequence: uint64(sequence)}), receipt
		}
		if oid != nil {
			g := &groups[len(groups)-1]
			g.Observations = append(g.Observations, client.Received{ID: *oid, Kind: *kind, Canonical: join(head, beef, tail)})
		}
	}
	return groups, rows.Err()
}

// readObservations returns the observations of one group, in order.
func readObservations(ctx context.Context, q querier, receipt int64) ([]client.Received, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT o.id, o.kind, o.head, e.beef, o.tail FROM observations o LEFT JOIN evidence e ON e.evidence = o.evidence
		WHERE o.receipt = ? ORDER BY o.idx`, receipt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []client.Received
	for rows.Next() {
		var (
			o                client.Received
			head, beef, tail []byte
		)
		if err := rows.Scan(&o.ID, &o.Kind, &head, &beef, &tail); err != nil {
			return nil, err
		}
		o.Canonical = join(head, beef, tail)
		out = append(out, o)
	}
	return out, rows.Err()
}

// join puts an observation's canonical bytes together again.
func join(head, beef, tail []byte) []byte {
	out := make([]byte, 0, len(head)+base64.StdEncoding.EncodedLen(len(beef))+len(tail))
	out = append(out, head...)
	out = base64.StdEncoding.AppendEncode(out, beef)
	return append(out, tail...)
}
