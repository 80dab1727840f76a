//go:build mutant_bigserial

package livefeed

// The mutant's counter is made by the crash lab; each step of it is room for one batch.
const (
	headStatement = `select nextval('mutant_sequence'), tag, live, versions from feed_head where feed_id = $1`
	headWriting   = `update feed_head set head = greatest(head, $2), tag = case when head < $2 then $3 else tag end, live = $4, versions = $5 where feed_id = $1`
)
