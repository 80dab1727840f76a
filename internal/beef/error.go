package beef

import "errors"

// What a caller may want to tell apart with errors.Is. Every error of this
// package also is an [*Error].
var (
	// ErrNotFound: the bundle has no entry for the txid.
	ErrNotFound = errors.New("transaction not in the BEEF")
	// ErrTxIDOnly: the bundle names the txid without its raw bytes.
	ErrTxIDOnly = errors.New("transaction is txid-only in the BEEF")
	// ErrSubject: the bundle is an Atomic BEEF about another transaction.
	ErrSubject = errors.New("atomic BEEF has another subject")
	// ErrUnresolved: verification needs an ancestor whose raw bytes are absent.
	ErrUnresolved = errors.New("ancestor not in the BEEF")
	// ErrLimit: the evidence asks for more work than it was given. It says nothing
	// about whether the evidence is right.
	ErrLimit = errors.New("the evidence asks for more work than is allowed")
)

// Error says what is wrong with evidence.
type Error struct {
	// Reason is short and safe to show to whoever sent the bytes: it holds
	// positions, counts and txids, never a cause from inside a library.
	Reason string

	kind  error // one of the sentinels above, or nil
	cause error // for the log
}

func (e *Error) Error() string { return "beef: " + e.Reason }

// Unwrap gives the sentinel and the library's cause, where there are any.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.kind != nil {
		errs = append(errs, e.kind)
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}
