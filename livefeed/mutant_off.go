//go:build !mutant_bigserial

package livefeed

const (
	headStatement = headLock
	headWriting   = headWrite
)
