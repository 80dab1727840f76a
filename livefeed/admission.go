package livefeed

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/overlayd/overlayd/internal/canon"
)

// AdmissionLimit is one pair of maxima under which the feed must stay deliverable: a group that could not be sent whole
// within every one of them is refused when it is appended, because no client could ever get past it (BRC-193 s8).
type AdmissionLimit struct {
	Service         string
	MaxBytes        uint32 // of a response body
	MaxObservations uint32
	// EnvelopeBytes and ObservationBytes are the largest sizes of a batch without observations, and of an observation
	// without its BEEF, context, reason and context id.
	EnvelopeBytes, ObservationBytes int
	// Until is the Unix second from which the limit no longer binds, for maxima that only promised sessions still
	// have. 0 = while configured.
	Until uint64
}

// fallbackLimit binds while no service shows the feed: the profile's hard maxima, so that what is appended early can be
// delivered later.
var fallbackLimit = AdmissionLimit{Service: "the profile", MaxBytes: 4 << 20, MaxObservations: 1024, EnvelopeBytes: 8 << 10, ObservationBytes: 2 << 10}

const (
	limitsGet = `
select service, max_bytes, max_observations, envelope_bytes, observation_bytes, coalesce(until, 0)
from feed_limits where feed_id = $1
order by service, max_bytes, max_observations, envelope_bytes, observation_bytes`

	// limitsPut takes the head lock first: a group that is being admitted under the old limits is in the log before the
	// new ones are in force.
	limitsPut = `
with h as materialized (
  select feed_id from feed_head where feed_id = $1 for update
), new as materialized (
  select distinct on (u.service, u.max_bytes, u.max_observations, u.envelope_bytes, u.observation_bytes) u.*
  from h, unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
       as u(service, max_bytes, max_observations, envelope_bytes, observation_bytes, until)
  order by u.service, u.max_bytes, u.max_observations, u.envelope_bytes, u.observation_bytes, nullif(u.until, 0) desc nulls first
), gone as (
  delete from feed_limits l using h
  where l.feed_id = h.feed_id and not exists (
    select from new n
    where (n.service, n.max_bytes, n.max_observations, n.envelope_bytes, n.observation_bytes)
        = (l.service, l.max_bytes, l.max_observations, l.envelope_bytes, l.observation_bytes))
)
insert into feed_limits as l (feed_id, service, max_bytes, max_observations, envelope_bytes, observation_bytes, until)
select $1, n.service, n.max_bytes, n.max_observations, n.envelope_bytes, n.observation_bytes, nullif(n.until, 0) from new n
on conflict (feed_id, service, max_bytes, max_observations, envelope_bytes, observation_bytes)
do update set until = excluded.until where l.until is distinct from excluded.until`
)

// SetLimits replaces the feed's limits by exactly these. Whoever narrows or removes a service's maxima passes the old
// ones too (see [Feed.Limits]), with Until at the end of the last session that was promised them. Of limits equal
// but for Until the longest counts.
func (f *Feed) SetLimits(ctx context.Context, q Querier, limits []AdmissionLimit) error {
	var service []string
	var bytes, observations, envelope, observation, until []int64
	for _, l := range limits {
		if l.MaxBytes == 0 || l.MaxObservations == 0 || l.EnvelopeBytes < 0 || l.ObservationBytes < 0 || l.Until > maxSequence {
			return fmt.Errorf("livefeed: the limits of service %q are out of range", l.Service)
		}
		service = append(service, l.Service)
		bytes = append(bytes, int64(l.MaxBytes))
		observations = append(observations, int64(l.MaxObservations))
		envelope = append(envelope, int64(l.EnvelopeBytes))
		observation = append(observation, int64(l.ObservationBytes))
		until = append(until, int64(l.Until))
	}
	if _, err := q.Exec(ctx, limitsPut, f.id, service, bytes, observations, envelope, observation, until); err != nil {
		return fmt.Errorf("livefeed: set the limits of feed %q: %w", f.name, err)
	}
	return nil
}

// Limits returns the feed's limits, those that no longer bind included.
func (f *Feed) Limits(ctx context.Context, q Querier) ([]AdmissionLimit, error) {
	rows, err := q.Query(ctx, limitsGet, f.id)
	if err != nil {
		return nil, fmt.Errorf("livefeed: limits of feed %q: %w", f.name, err)
	}
	list, err := scanLimits(rows)
	if err != nil {
		return nil, fmt.Errorf("livefeed: limits of feed %q: %w", f.name, err)
	}
	return list, nil
}

// widestRow walks the rows present once: it is asked when maxima are narrowed, and then only.
const widestRow = `
select v.outpoint, (v.evidence_size::bigint + 2) / 3 * 4
     + coalesce((octet_length(v.context)::bigint + 2) / 3 * 4 + octet_length(v.context_schema) + 2, 0) as bytes
from row_version v
where v.feed_id = $1 and v.valid_to = 9223372036854775807
order by 2 desc limit 1`

// Narrow is [Feed.SetLimits], except that limits under which a row that is present could not be delivered alone are refused with a
// Limited error that names the row, and nothing is changed. The rows are looked at only if one of the limits gives less room
// than all that bind now; the feed takes no groups meanwhile.
func (f *Feed) Narrow(ctx context.Context, tx pgx.Tx, limits []AdmissionLimit) error {
	if _, err := tx.Exec(ctx, headOnlyLock, f.id); err != nil {
		return fmt.Errorf("livefeed: lock feed %q: %w", f.name, err)
	}
	before, err := f.Limits(ctx, tx)
	if err != nil {
		return err
	}
	room := fallbackLimit.room()
	for _, l := range before {
		if l.Until == 0 {
			room = min(room, l.room())
		}
	}
	for _, l := range limits {
		if l.Until != 0 || l.room() >= room {
			continue
		}
		var raw []byte
		var size int64
		err := tx.QueryRow(ctx, widestRow, f.id).Scan(&raw, &size)
		if errors.Is(err, pgx.ErrNoRows) {
			break
		}
		if err != nil {
			return fmt.Errorf("livefeed: look for the widest row of feed %q: %w", f.name, err)
		}
		if size > l.room() {
			o, err := outpointOf(raw)
			if err != nil {
				return fmt.Errorf("livefeed: the widest row of feed %q: %w", f.name, err)
			}
			return faultf(Limited, nil, "feed %q holds row %s, which can need a response of %d bytes, and %s would deliver at most %d: raise its maxResponseBytes or withdraw the row",
				f.name, o, size+int64(l.MaxBytes)-l.room(), l.Service, l.MaxBytes)
		}
	}
	return f.SetLimits(ctx, tx, limits)
}

// room is how many bytes of BEEF, context and texts one observation alone may have.
func (l AdmissionLimit) room() int64 {
	return int64(l.MaxBytes) - int64(l.EnvelopeBytes) - int64(l.ObservationBytes)
}

// compare orders limits as limitsGet does, so that of several the same one is named.
func (l AdmissionLimit) compare(m AdmissionLimit) int {
	return cmp.Or(strings.Compare(l.Service, m.Service), cmp.Compare(l.MaxBytes, m.MaxBytes), cmp.Compare(l.MaxObservations, m.MaxObservations),
		cmp.Compare(l.EnvelopeBytes, m.EnvelopeBytes), cmp.Compare(l.ObservationBytes, m.ObservationBytes))
}

// need is what delivering a group can take at worst, whatever the rows were before.
type need struct {
	observations int
	bytes        int64 // of BEEF, contexts and texts, as they are in JSON
}

func needOf(edits []Edit) need {
	var n need
	for i := range edits {
		e := &edits[i]
		n.observations++
		if e.Op == Spend { // spend, and withdraw with reason `spent`
			n.observations++
		}
		n.bytes += int64(base64.StdEncoding.EncodedLen(len(e.BEEF)))
		if e.Context != nil {
			n.bytes += int64(base64.StdEncoding.EncodedLen(len(e.Context.Bytes)) + canon.StringSize(e.Context.Schema))
		}
		n.bytes += int64(canon.StringSize(e.Reason) + canon.StringSize(e.ContextID))
	}
	return n
}

// admit refuses what one of the limits in force at now could not deliver.
func (n need) admit(limits []AdmissionLimit, now uint64) *Error {
	bound := false
	for _, l := range limits {
		if l.Until != 0 && l.Until <= now {
			continue
		}
		bound = true
		if err := n.within(l); err != nil {
			return err
		}
	}
	if !bound {
		return n.within(fallbackLimit)
	}
	return nil
}

func (n need) within(l AdmissionLimit) *Error {
	if uint64(n.observations) > uint64(l.MaxObservations) {
		return faultf(Limited, nil, "the group can give %d observations, and %s delivers at most %d in one response: split it",
			n.observations, l.Service, l.MaxObservations)
	}
	size := int64(l.EnvelopeBytes) + int64(n.observations)*int64(l.ObservationBytes) + n.bytes
	if size > int64(l.MaxBytes) {
		return faultf(Limited, nil, "the group can need a response of %d bytes, and %s delivers at most %d: split it, or trim its BEEF",
			size, l.Service, l.MaxBytes)
	}
	return nil
}
