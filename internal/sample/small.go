package sample

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/bsv-blockchain/go-sdk/script"
	"github.com/bsv-blockchain/go-sdk/transaction"

	"github.com/overlayd/overlayd/internal/beef"
)

//go:embed data/*.hex
var mainnet embed.FS

// chapters orders the embedded BEEFs so that a transaction comes after those it
// spends. The height is that of the newest block the BEEF proves anything in.
func chapters() []struct {
	file   string
	height int
} {
	return []struct {
		file   string
		height int
	}{
		{"main-814435.hex", 814435},
		{"main-853649.hex", 853649},
		{"main-874987.hex", 874987},
		{"main-885007.hex", 885007},
		{"main-885388.hex", 885388},
		{"main-885399.hex", 885399},
		{"main-885570.hex", 885570},
		{"main-885570-chain.hex", 885570},
		{"main-905506.hex", 905506},
		{"main-905906.hex", 905906},
	}
}

// Small writes the story of 36 real transactions of the main chain as groups.
// Every output is listed. Where a transaction spends listed outputs, its first
// output takes their place in one group (spend, then put); every fourth time the
// spends come alone and the put follows. It fails only with the writer's or the
// context's error.
func Small(ctx context.Context, w io.Writer) error {
	s := small{w: w, listed: map[outpoint]bool{}, told: map[[32]byte]bool{}}
	for _, c := range chapters() {
		text, err := mainnet.ReadFile("data/" + c.file)
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		data, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("sample: %s: %w", c.file, err)
		}
		bundle, err := beef.Parse(data)
		if err != nil {
			return fmt.Errorf("sample: %s: %w", c.file, err)
		}
		for _, id := range bundle.TxIDs() {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("sample: stopped: %w", err)
			}
			if s.told[id] {
				continue
			}
			s.told[id] = true
			tx, err := bundle.Transaction(id)
			if err != nil {
				return fmt.Errorf("sample: %s: %w", c.file, err)
			}
			if err := s.tell(tx, data, c.height); err != nil {
				return fmt.Errorf("sample: %w", err)
			}
		}
	}
	return nil
}

type small struct {
	w      io.Writer
	line   line
	groups int
	rows   int
	spends int
	listed map[outpoint]bool
	told   map[[32]byte]bool
}

// tell writes the groups of one transaction.
func (s *small) tell(tx *beef.Tx, data []byte, height int) error {
	parsed, err := transaction.NewTransactionFromBytes(tx.Raw)
	if err != nil {
		return fmt.Errorf("read %x: %w", tx.TxID, err)
	}
	var spent []outpoint
	for _, in := range tx.Inputs {
		if at := (outpoint{in.Prev, in.Index}); s.listed[at] {
			spent = append(spent, at)
			delete(s.listed, at)
		}
	}
	open := false
	if len(spent) > 0 {
		s.spends++
		s.begin(tx.TxID)
		for _, at := range spent {
			s.line.spend(at, tx.TxID, data)
		}
		open = s.spends%4 != 0
		if !open {
			if err := s.line.end(s.w); err != nil {
				return err
			}
		}
	}
	for i, out := range parsed.Outputs {
		if !open {
			s.begin(tx.TxID)
		}
		open = false
		at := outpoint{tx.TxID, uint32(i)}
		s.listed[at] = true
		s.line.put(s.describe(at, out, data, height))
		if err := s.line.end(s.w); err != nil {
			return err
		}
	}
	return nil
}

func (s *small) begin(id [32]byte) {
	s.groups++
	s.line.begin(fmt.Sprintf("sample-small-%06d-%x", s.groups, id[:4]))
}

// describe says facts about an output and nothing else: "artist" is the start of
// the hash of its locking script, so that outputs of one owner share it, and
// "genre" what kind of script it is, "proof" the newest block that its evidence
// leads to.
func (s *small) describe(at outpoint, out *transaction.TransactionOutput, data []byte, height int) listing {
	s.rows++
	owner := sha256.Sum256(*out.LockingScript)
	l := listing{
		at:   at,
		beef: data,
		attributes: []attribute{
			{"artist", []string{hex.EncodeToString(owner[:4])}},
			{"genre", genres(out)},
			{"proof", []string{strconv.Itoa(height)}},
		},
	}
	if s.rows%8 != 0 {
		l.order = fmt.Sprintf("%016d", out.Satoshis)
	}
	if s.rows%3 == 0 {
		l.context = fmt.Appendf(nil, `{"satoshis":%d,"scriptBytes":%d}`, out.Satoshis, len(*out.LockingScript))
	}
	return l
}

func genres(out *transaction.TransactionOutput) []string {
	kind := "other"
	switch s := out.LockingScript; {
	case s.IsP2PKH():
		kind = "p2pkh"
	case s.IsData():
		kind = "op-return"
	case s.IsP2PK():
		kind = "p2pk"
	case s.IsMultiSigOut():
		kind = "multisig"
	case len(*s) > 0 && (*s)[0] == script.OpDATA33:
		kind = "key-first" // a public key, then data: tokens such as PushDrop
	}
	kinds := []string{kind}
	if out.Satoshis == 1 {
		kinds = append(kinds, "one-satoshi")
	}
	slices.Sort(kinds)
	return kinds
}
