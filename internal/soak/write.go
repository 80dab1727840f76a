package soak

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/overlayd/overlayd/livefeed"
)

// row is one row for the whole run. Its edits are numbered from 0 in its context.
type row struct {
	number int
	txid   string
	raw    []byte

	mu   sync.Mutex
	seqs []uint64 // of each edit, as the writer was told
}

// genreOf never changes: what a query selects is the same at every W.
func (s *soak) genreOf(number int) int { return number % s.Genres }

func newRow(number int) *row {
	raw := transaction(fmt.Sprint("row ", number))
	return &row{number: number, txid: txidOf(raw), raw: raw}
}

// transaction is a distinct transaction of one input and one output. Nobody asks for more than structure.
func transaction(name string) []byte {
	seed := sha256.Sum256([]byte(name))
	raw := append([]byte{1, 0, 0, 0, 1}, seed[:]...)
	raw = append(raw, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 1)
	raw = binary.LittleEndian.AppendUint64(raw, 1)
	raw = append(append(raw, 34, 0x6a, 32), seed[:]...)
	return append(raw, 0, 0, 0, 0)
}

func txidOf(raw []byte) string {
	first := sha256.Sum256(raw)
	txid := sha256.Sum256(first[:])
	slices.Reverse(txid[:])
	return hex.EncodeToString(txid[:])
}

// put is the edit that brings the row to edit n. Every eighth brings new evidence as well: another transaction beside it.
func (s *soak) put(r *row, n int) string {
	beef := []byte{0x02, 0x00, 0xbe, 0xef, 0, 1, 0}
	if at := n / 8; at > 0 {
		beef = append([]byte{0x02, 0x00, 0xbe, 0xef, 0, 2, 0}, transaction(fmt.Sprint("beside ", r.number, " ", at))...)
		beef = append(beef, 0)
	}
	beef = append(beef, r.raw...)
	context := binary.BigEndian.AppendUint64(nil, uint64(n))
	return fmt.Sprintf(`{"op":"put","output":{"txid":"%s","outputIndex":0,"beef":"%s"},"attributes":{"genre":["%d"],"mood":["%d"]},"order":"%06d","context":{"schema":"urn:soak:edit","bytes":"%s"}}`,
		r.txid, base64.StdEncoding.EncodeToString(beef), s.genreOf(r.number), n%5, r.number, base64.StdEncoding.EncodeToString(context))
}

func (s *soak) append(ctx context.Context, key string, edits []string) (uint64, error) {
	p, err := livefeed.DecodeGroup([]byte(`{"key":"` + key + `","edits":[` + strings.Join(edits, ",") + `]}`))
	if err != nil {
		return 0, err
	}
	for {
		receipt, err := s.feed.Append(ctx, p)
		if livefeed.CodeOf(err) == livefeed.Unavailable && ctx.Err() == nil {
			s.retried.Add(1)
			continue
		}
		return receipt.Sequence, err
	}
}

func (s *soak) fillRows(ctx context.Context) error {
	const perGroup = 250
	for i := 0; i < s.Rows; i += perGroup {
		var edits []string
		for number := i; number < min(i+perGroup, s.Rows); number++ {
			r := newRow(number)
			s.rows = append(s.rows, r)
			s.numbers[r.txid] = number
			edits = append(edits, s.put(r, 0))
		}
		seq, err := s.append(ctx, fmt.Sprintf("soak-fill-%016d", i), edits)
		if err != nil {
			return err
		}
		for _, r := range s.rows[i:] {
			r.seqs = []uint64{seq}
		}
	}
	return nil
}

// write edits rows of its own, one to four in a group, until the load ends.
func (s *soak) write(ctx context.Context, writer int) {
	rng := rand.New(rand.NewPCG(uint64(writer), 1))
	for n := 0; ctx.Err() == nil; n++ {
		touched := map[*row]bool{}
		for range 1 + rng.IntN(4) {
			touched[s.rows[rng.IntN(s.Rows/s.Writers)*s.Writers+writer]] = true
		}
		var edits []string
		for r := range touched {
			edits = append(edits, s.put(r, len(r.seqs))) // only this writer adds to them
		}
		// What was sent is waited for, also when the load ends: its outcome must be known.
		seq, err := s.append(context.WithoutCancel(ctx), fmt.Sprintf("soak-writer-%d-%016d", writer, n), edits)
		if err != nil {
			s.fault(fmt.Errorf("append: %w", err))
			return
		}
		for r := range touched {
			r.mu.Lock()
			r.seqs = append(r.seqs, seq)
			r.mu.Unlock()
		}
		s.groups.Add(1)
		if s.Pause > 0 {
			time.Sleep(s.Pause)
		}
	}
}

// at returns what the writer was told of edit n: whether it knows it by now, its sequence, and that of the next, 0 if there
// is none.
func (r *row) at(n int) (known bool, seq, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n >= len(r.seqs) {
		return false, 0, 0
	}
	if n+1 < len(r.seqs) {
		next = r.seqs[n+1]
	}
	return true, r.seqs[n], next
}
