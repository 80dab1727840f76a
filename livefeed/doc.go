// Package livefeed keeps feeds: one ordered log of committed groups and the versioned rows it builds,
// in Postgres.
package livefeed
