package livefeed

import (
	"errors"
	"fmt"
)

// ErrorCode says what kind of failure an [Error] is.
type ErrorCode uint8

const (
	Invalid     ErrorCode = iota + 1 // the group is at fault; sending it again will not help
	Conflict                         // the group key was used before for another body
	Limited                          // permanent group: no service showing the feed could deliver it whole
	TooLarge                         // the body is above 8 MiB
	Unavailable                      // not now: ask again with the same group key
	Reset                            // a position is outside the retained log, or history was rewritten
)

func (c ErrorCode) String() string {
	switch c {
	case Invalid:
		return "invalid"
	case Conflict:
		return "conflict"
	case Limited:
		return "limited"
	case TooLarge:
		return "too-large"
	case Unavailable:
		return "unavailable"
	case Reset:
		return "reset"
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

// Error is every failure this package classifies. Reason is public text; the cause, reached with
// errors.Is and errors.As, is for the log only.
type Error struct {
	Code   ErrorCode
	Edit   int // index of the edit at fault, or -1
	Reason string
	cause  error
}

// Error returns the public text only.
func (e *Error) Error() string {
	if e.Edit >= 0 {
		return fmt.Sprintf("%s: edit %d: %s", e.Code, e.Edit, e.Reason)
	}
	return e.Code.String() + ": " + e.Reason
}

// Unwrap returns the cause, if there is one.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of the first *Error in err's tree, or 0.
func CodeOf(err error) ErrorCode {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 0
}

func fault(code ErrorCode, reason string) *Error { return &Error{Code: code, Edit: -1, Reason: reason} }

func faultf(code ErrorCode, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Edit: -1, Reason: fmt.Sprintf(format, args...), cause: cause}
}

func editFault(edit int, format string, args ...any) *Error {
	return &Error{Code: Invalid, Edit: edit, Reason: fmt.Sprintf(format, args...)}
}

func resetFault(format string, args ...any) *Error {
	return &Error{Code: Reset, Edit: -1, Reason: fmt.Sprintf(format, args...)}
}
