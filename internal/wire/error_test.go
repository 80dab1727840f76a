package wire

import (
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func ptr[T any](v T) *T { return &v }

func TestH5_StatusOfEachCode(t *testing.T) {
	t.Parallel()
	for code, status := range map[Code]int{
		Invalid: 400, Unauthorized: 401, NotFound: 404, Conflict: 409, Equivocation: 409, ResetRequired: 409,
		ContextChanged: 409, Expired: 410, Limited: 413, Unsupported: 422, Unavailable: 503, Cancelled: 0, "other": 0, "": 0,
	} {
		if code.Status() != status {
			t.Errorf("%s: %d", code, code.Status())
		}
		if code.Known() != (status != 0 || code == Cancelled) {
			t.Errorf("%s: known %t", code, code.Known())
		}
	}
}

func TestH5_ErrorShape(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]*Error{
		`{"error":{"code":"invalid","message":"no","retryable":false},"version":1}`:                        {Code: Invalid, Message: "no"},
		`{"error":{"code":"unavailable","message":"later","retryAfterMs":0,"retryable":true},"version":1}`: {Code: Unavailable, Message: "later", Retryable: true, RetryAfterMs: ptr(uint32(0))},
		`{"error":{"code":"limited","limit":{"kind":"envelope"},"message":"m","retryable":false},"version":1}`: {
			Code: Limited, Message: "m", Limit: &Limit{Kind: LimitEnvelope}},
		`{"error":{"code":"limited","limit":{"kind":"group","minimumBytes":4194304,"minimumObservations":1024},"message":"m","retryAfterMs":4294967295,"retryable":false},"version":1}`: {
			Code: Limited, Message: "m", RetryAfterMs: ptr(uint32(1<<32 - 1)),
			Limit: &Limit{LimitGroup, ptr(uint32(4 << 20)), ptr(uint32(1024))}},
	} {
		got := e.AppendCanonical(nil)
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		back, err := ParseError(got, e.Code.Status())
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if again := back.AppendCanonical(nil); string(again) != want {
			t.Errorf("not a fixed point: %s", again)
		}
	}
}

func TestH5_ErrorNeverExceedsItsBound(t *testing.T) {
	t.Parallel()
	big := ptr(uint32(1<<32 - 1))
	for name, e := range map[string]*Error{
		"empty":                {},
		"cancelled":            {Code: Cancelled, Message: "m"},
		"unknown code":         {Code: Code(strings.Repeat("x", 9000)), Message: "m"},
		"long message":         {Code: Invalid, Message: strings.Repeat("a", 1<<20)},
		"long control message": {Code: Limited, Message: strings.Repeat("\x00", 1<<20), RetryAfterMs: big, Limit: &Limit{LimitPermanentGroup, ptr(uint32(4 << 20)), ptr(uint32(1024))}},
		"long bad utf-8":       {Code: Invalid, Message: strings.Repeat("\xff", 5000)},
		"multi-byte cut":       {Code: Invalid, Message: "a" + strings.Repeat("😀", 1000)},
		"mixed cut":            {Code: Invalid, Message: strings.Repeat("\x01😀", 1000)},
		"minima too large":     {Code: Limited, Message: "m", Limit: &Limit{LimitGroup, big, big}},
		"limit on another":     {Code: Invalid, Message: "m", Limit: &Limit{Kind: LimitGroup}},
		"unknown limit kind":   {Code: Limited, Message: "m", Limit: &Limit{Kind: LimitKind(strings.Repeat("x", 9000))}},
	} {
		got := e.AppendCanonical(nil)
		if len(got) > MaxErrorBytes || !utf8.Valid(got) {
			t.Errorf("%s: %d bytes", name, len(got))
		}
		status := e.Code.Status()
		if status == 0 {
			status = Unavailable.Status()
		}
		if _, err := ParseError(got, status); err != nil {
			t.Errorf("%s: %s: %v", name, got, err)
		}
	}
	if got := (&Error{Code: Invalid, Message: strings.Repeat("é", 1000)}).AppendCanonical(nil); !strings.Contains(string(got), strings.Repeat("é", 512)+`"`) {
		t.Error("a message is cut below its bound")
	}
}

func TestH5_ErrorsRefused(t *testing.T) {
	t.Parallel()
	const good = `{"version":1,"error":{"code":"limited","message":"m","retryable":false,"retryAfterMs":1,"limit":{"kind":"group","minimumBytes":1,"minimumObservations":1}}}`
	if _, err := ParseError([]byte(good), 413); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"status differs":             {good, 400},
		"success status":             {good, 200},
		"payment status":             {good, 402},
		"zero status":                {with(t, good, "limited", "cancelled"), 0},
		"cancelled":                  {`{"version":1,"error":{"code":"cancelled","message":"m","retryable":false}}`, 0},
		"unknown code":               {with(t, good, "limited", "teapot"), 413},
		"unknown code, zero status":  {`{"version":1,"error":{"code":"teapot","message":"m","retryable":false}}`, 0},
		"limit on another code":      {with(t, good, "limited", "invalid"), 400},
		"unknown limit kind":         {with(t, good, `"group"`, `"other"`), 413},
		"minimum bytes too large":    {with(t, good, `"minimumBytes":1`, `"minimumBytes":4194305`), 413},
		"minimum observations large": {with(t, good, `"minimumObservations":1`, `"minimumObservations":1025`), 413},
		"minimum negative":           {with(t, good, `"minimumBytes":1`, `"minimumBytes":-1`), 413},
		"message empty":              {with(t, good, `"m"`, `""`), 413},
		"message long":               {with(t, good, `"m"`, `"`+strings.Repeat("a", 1025)+`"`), 413},
		"message missing":            {with(t, good, `"message":"m",`, ``), 413},
		"retryable missing":          {with(t, good, `"retryable":false,`, ``), 413},
		"retryable null":             {with(t, good, `"retryable":false`, `"retryable":null`), 413},
		"retryAfterMs null":          {with(t, good, `"retryAfterMs":1`, `"retryAfterMs":null`), 413},
		"retryAfterMs above U32":     {with(t, good, `"retryAfterMs":1`, `"retryAfterMs":4294967296`), 413},
		"limit null":                 {with(t, good, `"limit":{"kind":"group","minimumBytes":1,"minimumObservations":1}`, `"limit":null`), 413},
		"unknown key":                {also(good, `"cursor":"c"`), 413},
		"unknown key inside":         {with(t, good, `"message":"m"`, `"message":"m","x":1`), 413},
		"unknown key in the limit":   {with(t, good, `"kind":"group"`, `"kind":"group","x":1`), 413},
		"version 2":                  {with(t, good, `"version":1`, `"version":2`), 413},
		"not JSON":                   {"Bad Gateway", 413},
		"empty":                      {"", 413},
	} {
		e, err := ParseError([]byte(c.text), c.status)
		if e != nil {
			t.Errorf("%s: returned %v", name, e)
		}
		wantCode(t, name, err, Invalid)
	}
	_, err := ParseError([]byte(good+strings.Repeat(" ", MaxErrorBytes)), 413)
	wantCode(t, "too large", err, Limited)
}

func TestH5_CauseStaysPrivate(t *testing.T) {
	t.Parallel()
	e := &Error{Code: Unavailable, Message: "try again later", Retryable: true}
	c := e.WithCause(io.ErrUnexpectedEOF)
	if !errors.Is(c, io.ErrUnexpectedEOF) || errors.Is(e, io.ErrUnexpectedEOF) {
		t.Error("WithCause must change the copy only")
	}
	if string(c.AppendCanonical(nil)) != string(e.AppendCanonical(nil)) {
		t.Error("the cause reached the body")
	}
	if !strings.Contains(c.Error(), "unexpected EOF") {
		t.Error("the cause is not in the log text")
	}
}
