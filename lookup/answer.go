package lookup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/overlayd/overlayd/internal/failpoint"
	"github.com/overlayd/overlayd/internal/wire"
)

// answer is a finished body with what the gate must ask before it may leave.
type answer struct {
	built
	status  int
	session *session            // nil: nothing private, nothing to gate
	refusal func(gate) *refusal // how a verdict of the gate is told here; nil unless session is set
}

// seal signs a finished answer for an authenticated caller, headers included. For public services there is none.
type seal func(header http.Header, status int, body []byte) error

// answerWithin bounds the work on a request, the longest wait of a poll included. What a database that hangs has not said by
// then is unavailable: the caller asks again.
const answerWithin = wire.MaxWaitMs*time.Millisecond + 15*time.Second

// rollback gives a transaction up; after its commit it does nothing. It may be asked of a connection that does not answer any
// more: then that is closed.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // the first error counts
}

// respond is the one way out: build, gate, seal, gate, write. Whatever build returns leaves whole or not at all; a body that
// loses at a gate is thrown away and replaced by a refusal (BRC-193 s5, s8).
func (p *Provider) respond(c echo.Context, in *inbound, build func(ctx context.Context) (answer, error)) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), p.within)
	defer cancel()
	defer func() { // of a build that panics
		in.leaveSlot()
		in.room.leave(false)
	}()
	out, err := build(ctx)
	return p.conclude(ctx, c.Response(), c.Request(), in, out, err)
}

// conclude is what respond does with what was built. r is nil when nothing of the request is left to be read.
func (p *Provider) conclude(ctx context.Context, w http.ResponseWriter, r *http.Request, in *inbound, out answer, err error) error {
	taken := false
	defer func() { in.room.leave(taken) }()
	if err == nil {
		err = p.pass(ctx, &out)
	}
	if err != nil {
		if _, told := errors.AsType[*refusal](err); !told && gone(ctx) {
			// Nobody is there to answer, and nothing was consumed. Returning would let net/http send an empty success.
			panic(http.ErrAbortHandler)
		}
		out = p.refused(in, err)
	}
	p.headers(w.Header(), in)
	if in.seal != nil {
		if out, err = p.sealed(ctx, w.Header(), in, out); err != nil {
			return err
		}
	}
	in.leaveSlot() // however slowly its peer takes what is sealed now
	failpoint.Hit(failpoint.BeforeSend)
	if r != nil && in.body == nil {
		drain(w, r)
	}
	if err := p.write(w, r != nil && r.Method == http.MethodHead, out); err != nil {
		return err
	}
	taken = true
	return nil
}

// sealed signs an answer and asks the gate once more, since signing takes time; a refusal is signed in its place.
func (p *Provider) sealed(ctx context.Context, h http.Header, in *inbound, out answer) (answer, error) {
	if err := p.sign(h, in, out); err != nil {
		return out, err
	}
	if out.session != nil {
		p.at(beforeLastGate)
	}
	err := p.pass(ctx, &out)
	if err == nil {
		return out, nil
	}
	out = p.refused(in, err)
	return out, p.sign(h, in, out)
}

// sign signs an answer in its turn, which always comes: who has one waits for nothing.
func (p *Provider) sign(h http.Header, in *inbound, out answer) (err error) {
	_ = p.turnstile.pass(context.Background(), ending, func() { err = in.seal(h, out.status, out.body) })
	return err
}

// pass asks the gate whether an answer may still be sent.
func (p *Provider) pass(ctx context.Context, out *answer) error {
	if out.session == nil {
		return nil
	}
	p.at(beforeGate)
	failpoint.Hit(failpoint.BeforeGate)
	home := out.session.shard
	verdict, err := home.gate(ctx, out.session, out.disclosed, out.evidence)
	if err != nil {
		return err
	}
	r := out.refusal(verdict)
	if r == nil {
		return nil
	}
	if errors.Is(r, errProhibited) || errors.Is(r, errNarrowed) {
		// What it was promised can not be sent again, so it is over, also if the prohibition is lifted or the reader is back.
		list, err := home.end(ctx, home.pool, stateReset, `s.id = $2`, out.session.digest[:])
		if err != nil {
			return fmt.Errorf("lookup: reset a session: %w", err)
		}
		home.told(list)
	}
	return r
}

// refused is the body of a refusal. Its cause goes to the log, never to the peer.
func (p *Provider) refused(in *inbound, err error) answer {
	r := asRefusal(err)
	level := slog.LevelDebug
	if r.public.Code == wire.Unavailable && r.quota == "" {
		level = slog.LevelError
	}
	attrs := []slog.Attr{slog.String("code", string(r.public.Code)), slog.String("endpoint", in.endpoint)}
	if r.cause != nil {
		attrs = append(attrs, slog.String("cause", r.cause.Error()))
	}
	if r.quota != "" {
		attrs = append(attrs, slog.String("quota", string(r.quota)))
		p.quotas.refused[r.quota].Add(1)
	}
	p.log.LogAttrs(context.Background(), level, "lookup request refused", attrs...)
	p.metrics.refusals.WithLabelValues(in.endpoint, string(r.public.Code)).Inc()
	in.room.leave(true)
	return answer{status: r.public.Code.Status(), built: built{body: r.public.AppendCanonical(nil)}}
}

// Values of headers that all responses share. They are never written to.
var (
	privately  = []string{"private, no-store"}
	vary       = []string{"Authorization, x-bsv-auth-identity-key, x-bsv-overlay-capability, x-bsv-overlay-profile"}
	varyOrigin = []string{vary[0] + ", Origin"}
)

// headers sets what every response carries, errors included (BRC-193 s8, BRC-194 s1).
func (p *Provider) headers(h http.Header, in *inbound) {
	h[echo.HeaderCacheControl] = privately
	h[echo.HeaderVary] = vary
	if len(p.origins) > 0 {
		h[echo.HeaderVary] = varyOrigin
	}
	if in.capability != "" {
		h[capabilityKey] = []string{in.capability}
	}
	if in.profile != "" {
		h[profileKey] = []string{in.profile}
	}
	if in.origin != "" {
		h.Set(echo.HeaderAccessControlAllowOrigin, in.origin)
		h.Set(echo.HeaderAccessControlExposeHeaders, exposedHeaders)
	}
	if in.annotate != nil {
		in.annotate(h)
	}
	if in.allow != "" {
		h.Set(echo.HeaderAllow, in.allow)
	}
}

const (
	// drainBytes is how much of an unread body is taken in before its refusal is sent, and drainWithin how long that may take.
	drainBytes  = 4 * wire.MaxRequestBytes
	drainWithin = 5 * time.Second
)

// drain takes in a body that was refused unread. A connection closed on a peer that still sends is reset, and the refusal is
// lost with it. More than drainBytes, announced, is not waited for, nor is what the peer holds back until it is asked to go on.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.ContentLength > drainBytes || r.Header.Get("Expect") != "" {
		return
	}
	// An error means a writer without deadlines of its own, which is not a server's.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainWithin))
	_, _ = io.CopyN(io.Discard, r.Body, drainBytes) // what the peer does not send, it does not send
}

// write sends a whole body, as long as its peer takes it fast enough.
func (p *Provider) write(w http.ResponseWriter, head bool, out answer) error {
	h := w.Header()
	h.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	h.Set(echo.HeaderContentLength, strconv.Itoa(len(out.body)))
	w.WriteHeader(out.status)
	if head {
		return nil
	}
	// An error of a deadline means a writer without any, which is not a server's. Echo's own writer hides the errors of Flush, and
	// panics where there is none.
	direct := w
	if e, ok := w.(*echo.Response); ok {
		direct = e.Writer
	}
	control := http.NewResponseController(direct)
	_ = control.SetWriteDeadline(time.Now().Add(p.writeWithin(len(out.body))))
	if _, err := w.Write(out.body); err != nil {
		return err
	}
	if err := control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_ = control.SetWriteDeadline(time.Time{})
	return nil
}
