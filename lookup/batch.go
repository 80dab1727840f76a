package lookup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/overlayd/overlayd/livefeed"
)

const (
	// batchMost is how many questions one statement takes, batchItems how many things (outpoints, digests) they may name together;
	// of a single question all are taken.
	batchMost  = 256
	batchItems = 4096
	// batchesAtOnce is how many statements of one kind may be on their way. The second sets out when batchCrowd questions wait for the
	// first, or when it takes longer than batchPatience: what few ask is cheaper in one statement than in two.
	batchesAtOnce = 2
	batchCrowd    = 64
	batchPatience = 3 * time.Millisecond
	// batchWithin bounds one statement. What is not answered by then is asked again one by one, each within its caller's own time.
	batchWithin = 10 * time.Second
)

// batcher puts what several callers ask at the same moment to the database as one statement. Nobody waits for company: who asks while
// a statement is on its way goes along with the next. Questions are taken when a connection is at hand, before the
// statement is sent on it: so its snapshot lies after the moment at which each of its callers asked.
//
// At most batchesAtOnce goroutines ask. Each ends when nobody waits, and gives a statement up once all who asked it have left. A
// panic while they ask is of none of them: whoever asked meets it, or does not, when he asks by himself.
type batcher[Q, A any] struct {
	// Static.
	pool *pgxpool.Pool
	// send asks; it returns an answer to each question, in their order.
	send func(ctx context.Context, q livefeed.Querier, questions []Q) ([]A, error)
	// items is how many things a question names; nil: none does.
	items func(Q) int
	// within bounds a statement; 0: batchWithin. After patience another sets out beside it; 0: batchPatience.
	within, patience time.Duration
	// sent and again are told of statements, by the number of their questions, and of questions that are asked one by one.
	sent  func(questions int)
	again func()

	mu      sync.Mutex
	waiting []*asked[Q, A] // the longest first; those who left are among them
	flying  int
	late    int // of those who fly, whose statement takes longer than patience
}

// asked is a question on its way. It is guarded by batcher.mu, but for the channel, and for answer and err once that is closed.
type asked[Q, A any] struct {
	question Q
	left     bool          // whoever asked has gone
	flight   *flight       // nil while it waits
	told     chan struct{} // closed when there is an answer
	answer   A
	err      error
}

// flight is a statement on its way. It is guarded by batcher.mu.
type flight struct {
	aboard int // of those who asked, how many have not left
	cancel context.CancelFunc
}

// errAlone says that a question has no answer yet, and that whoever asked must ask again by himself.
var errAlone = errors.New("lookup: a shared statement failed")

// ask puts a question and returns its answer. When a statement fails that several have shared, or that had no answer within
// batchWithin, each of those who asked asks again by itself.
func (b *batcher[Q, A]) ask(ctx context.Context, question Q) (answer A, err error) {
	a := &asked[Q, A]{question: question, told: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, a)
	b.start()
	b.mu.Unlock()
	select {
	case <-a.told:
	case <-ctx.Done():
		b.leave(a)
		return answer, context.Cause(ctx)
	}
	if a.err != errAlone {
		return a.answer, a.err
	}
	b.again()
	b.sent(1)
	answers, err := b.send(ctx, b.pool, []Q{question})
	if err != nil {
		return answer, err
	}
	return answers[0], nil
}

// leave takes back what is not answered yet.
func (b *batcher[Q, A]) leave(a *asked[Q, A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.left = true
	if f := a.flight; f != nil {
		if f.aboard--; f.aboard == 0 {
			f.cancel()
		}
		return
	}
	var nothing Q
	a.question = nothing // it may wait for long until it is passed over
}

// start has one more statement set out if those who wait are to have one. The caller holds mu.
func (b *batcher[Q, A]) start() {
	if len(b.waiting) > 0 && b.flying < batchesAtOnce && (b.flying == b.late || len(b.waiting) >= batchCrowd) {
		b.flying++
		go b.fly()
	}
}

// await has another statement set out if this one takes long; ended says that it has its answers.
func (b *batcher[Q, A]) await() (ended func()) {
	over, late := false, false // guarded by mu
	timer := time.AfterFunc(cmp.Or(b.patience, batchPatience), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !over {
			late = true
			b.late++
			b.start()
		}
	})
	return func() {
		timer.Stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		if over = true; late {
			b.late--
		}
	}
}

// fly asks for whoever waits until nobody does.
func (b *batcher[Q, A]) fly() {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(b.within, batchWithin))
		f := &flight{cancel: cancel}
		b.mu.Lock()
		batch := b.board(f, nil)
		if len(batch) == 0 {
			b.flying--
			b.mu.Unlock()
			cancel()
			return
		}
		b.mu.Unlock()
		ended := b.await()
		batch, answers, err := b.flown(ctx, f, batch)
		ended()
		cancel()
		b.mu.Lock()
		for i, a := range batch {
			switch {
			case err == nil:
				a.answer = answers[i]
			case len(batch) > 1 || errors.Is(err, context.DeadlineExceeded):
				a.err = errAlone
			default:
				a.err = err
			}
			a.flight = nil
			close(a.told)
		}
		b.mu.Unlock()
	}
}

// flown sends one statement, with those aboard who wait when there is a connection for it.
func (b *batcher[Q, A]) flown(ctx context.Context, f *flight, batch []*asked[Q, A]) (aboard []*asked[Q, A], answers []A, err error) {
	defer func() {
		if recover() != nil { // told by the request that meets it again
			aboard, answers, err = batch, nil, errAlone
		}
	}()
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return batch, nil, fmt.Errorf("lookup: acquire a connection: %w", err)
	}
	defer conn.Release()
	b.mu.Lock()
	batch = b.board(f, batch)
	b.mu.Unlock()
	questions := make([]Q, len(batch))
	for i, a := range batch {
		questions[i] = a.question
	}
	b.sent(len(questions))
	answers, err = b.send(ctx, conn, questions)
	if err == nil && len(answers) != len(questions) {
		err = fmt.Errorf("lookup: %d questions have %d answers", len(questions), len(answers))
	}
	return batch, answers, err
}

// board takes those who wait into a flight, as far as there is room. The caller holds mu.
func (b *batcher[Q, A]) board(f *flight, batch []*asked[Q, A]) []*asked[Q, A] {
	items := 0
	count := func(a *asked[Q, A]) {
		if b.items != nil {
			items += b.items(a.question)
		}
	}
	for _, a := range batch {
		count(a)
	}
	n := 0
	for _, a := range b.waiting {
		if len(batch) == batchMost || len(batch) > 0 && items >= batchItems {
			break
		}
		n++
		if a.left {
			continue
		}
		count(a)
		a.flight = f
		f.aboard++
		batch = append(batch, a)
	}
	rest := copy(b.waiting, b.waiting[n:])
	clear(b.waiting[rest:])
	b.waiting = b.waiting[:rest]
	return batch
}
