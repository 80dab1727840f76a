package schema

import "fmt"

// NotMigratedError says that the database lacks migrations of this program.
type NotMigratedError struct {
	Current int32 // version of the database, 0 for an empty one
	Target  int32 // version of this program
}

// Error says what to do about it.
func (e *NotMigratedError) Error() string {
	if e.Current == 0 {
		return fmt.Sprintf("the database has no overlayd schema yet (this overlayd needs version %d): run `overlayd migrate`, then start again", e.Target)
	}
	return fmt.Sprintf("the database schema is at version %d and this overlayd needs version %d: run `overlayd migrate`, then start again", e.Current, e.Target)
}

// NewerError says that a newer overlayd has migrated the database.
type NewerError struct {
	Current int32 // version of the database
	Target  int32 // version of this program
}

// Error says what to do about it.
func (e *NewerError) Error() string {
	return fmt.Sprintf("the database schema is at version %d and this overlayd knows only version %d: upgrade overlayd to the release that migrated the database", e.Current, e.Target)
}
