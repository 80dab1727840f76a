package lookup

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/overlayd/overlayd/internal/testkit"
	"github.com/overlayd/overlayd/internal/wire"
	"github.com/overlayd/overlayd/livefeed"
)

// TestL10_AnOpenStoresNoKeptEvidence: the first body of an Open is stored and answered again, so what it carries is read for it. When
// the database has lost evidence that this node still keeps, the Open leaves nothing; when it is back, the same Open is a new one.
func TestL10_AnOpenStoresNoKeptEvidence(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{}`)
	n.append(mint("kept", 0).put(genre(0), ""))
	if len(n.read(b, wide).Groups) != 1 || n.provider.encoded.size() == 0 {
		t.Fatal("nothing was kept")
	}
	if _, err := n.db.Pool.Exec(t.Context(), `create table lost as table blob; delete from blob`); err != nil {
		t.Fatal(err)
	}
	sessions := n.count("lookup_session")
	again := ask{id: newID()}.body()
	for range 2 {
		n.request(openPath, again).refused(t, wire.ResetRequired)
	}
	if got := n.count("lookup_session"); got != sessions {
		t.Fatalf("%d sessions are stored of Opens that were refused", got-sessions)
	}
	if _, err := n.db.Pool.Exec(t.Context(), `insert into blob table lost`); err != nil {
		t.Fatal(err)
	}
	first := n.request(openPath, again).batch(t)
	if got := n.request(openPath, again).batch(t); len(first.Groups) != 1 || got.Session != first.Session {
		t.Fatalf("%d groups, session %s and then %s", len(first.Groups), first.Session, got.Session)
	}
}

// TestL10_AKeptPageIsAskedFor: a page of a snapshot that takes evidence from memory is refused as well once the database has lost it,
// before and after it is built.
func TestL10_AKeptPageIsAskedFor(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{}`)
	n.append(mint("kept", 0).put(genre(0), `,"order":"02"`), mint("first", 0).put(genre(0), `,"order":"01"`))
	page := n.open(ask{limits: few(1)})
	if len(n.read(b, wide).Groups) != 1 || len(n.read(page, few(1)).Groups) != 1 {
		t.Fatal("nothing was served")
	}
	stop := n.during(beforeGate, func() {
		if _, err := n.db.Pool.Exec(context.Background(), `delete from blob`); err != nil {
			t.Error(err)
		}
	})
	n.request(readPath, readBody(page.Session, page.Cursor, few(1))).refused(t, wire.ResetRequired)
	stop()
	n.request(readPath, readBody(page.Session, page.Cursor, few(1))).refused(t, wire.ResetRequired)
}

// TestA5_KeptEvidenceIsNotServedOnceProhibited: this node has served a row's evidence and keeps it. Once the row is prohibited at
// another node it is served from memory to nobody, not from the log and not from a page, and others are served as before.
func TestA5_KeptEvidenceIsNotServedOnceProhibited(t *testing.T) {
	t.Parallel()
	n, m := twoNodes(t, setup{})
	first, second, other := n.live(`{"match":{"genre":"jazz"}}`), n.live(`{"match":{"genre":"jazz"}}`), n.live(`{"match":{"genre":"rock"}}`)
	banned, fine := mint("banned", 0), mint("fine", 0)
	n.append(banned.put(genre(0), `,"order":"02"`))
	n.append(fine.put(genre(1), `,"order":"01"`))
	page := n.open(ask{limits: few(1)})
	if len(n.read(first, wide).Groups) != 1 || n.provider.encoded.size() == 0 {
		t.Fatal("nothing was kept")
	}
	n.digest = n.capability()
	n.read(other, wide)
	m.prohibit(banned)
	n.request(readPath, readBody(second.Session, second.Cursor, wide)).refused(t, wire.ResetRequired)
	n.request(readPath, readBody(page.Session, page.Cursor, few(1))).refused(t, wire.ResetRequired)
	if got := outputs(n.read(other, wide)); !slices.Equal(got, []string{fine.hex()}) {
		t.Fatalf("%v", got)
	}
}

// TestL10_EvidenceThatBecameKeptIsAskedFor: it was not kept when a body asked for it, and was when the question was taken: read for
// somebody else, and lost since. The gate is asked about it all the same.
func TestL10_EvidenceThatBecameKeptIsAskedFor(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := n.live(`{}`)
	c := mint("kept meanwhile", 0)
	n.append(c.put(genre(0), ""))
	p, sum := n.provider.main, sha256.Sum256(c.beef)
	hold := make(chan struct{})
	var standing atomic.Int32
	// The statements that are on their way stand still; what the poll asks goes along with the next.
	send := p.reads.send
	p.reads.send = func(ctx context.Context, q livefeed.Querier, questions []evidenceQuestion) ([]evidenceAnswer, error) {
		if questions[0].feed == nil {
			standing.Add(1)
			<-hold
			return make([]evidenceAnswer, len(questions)), nil
		}
		return send(ctx, q, questions)
	}
	var holders sync.WaitGroup
	for i := range batchesAtOnce {
		holders.Go(func() { _, _ = p.reads.ask(context.Background(), evidenceQuestion{}) })
		testkit.Eventually(t, "it is on its way", func() bool { return standing.Load() == int32(i+1) })
	}
	answered := make(chan reply, 1)
	go func() { answered <- n.request(readPath, readBody(b.Session, b.Cursor, wide)) }()
	testkit.Eventually(t, "the poll waits", func() bool { waiting, _ := p.reads.queued(); return waiting == 1 })
	text := base64.StdEncoding.AppendEncode(nil, c.beef)
	p.encoded.put(p.stored(sum), text, len(text))
	if _, err := n.db.Pool.Exec(t.Context(), `delete from blob`); err != nil {
		t.Fatal(err)
	}
	close(hold)
	holders.Wait()
	within(t, "answer", answered).refused(t, wire.ResetRequired)
}

// TestW5_AStatementOfEvidenceIsBounded: it reads at most 4 MiB and what one body needs.
func TestW5_AStatementOfEvidenceIsBounded(t *testing.T) {
	t.Parallel()
	n := start(t, setup{})
	b := &batcher[evidenceQuestion, evidenceAnswer]{items: n.provider.main.reads.items}
	for range 20 {
		b.waiting = append(b.waiting, &asked[evidenceQuestion, evidenceAnswer]{question: evidenceQuestion{size: 1 << 20}})
	}
	if got := len(b.board(&flight{}, nil)); got != 4 {
		t.Fatalf("%d bodies of 1 MiB of evidence each are read for at once", got)
	}
}
