package sample

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/overlayd/overlayd/internal/beef"
)

// SmallRoots writes where the Merkle paths of [Small] lead to, one JSON object a
// line, by height: {"height":885570,"merkleRoot":"..."}, the root in display order.
// They are of blocks of the main chain; whoever uses them trusts this program for
// that, and nobody else.
func SmallRoots(w io.Writer) error {
	roots := map[uint32][32]byte{}
	for _, c := range chapters() {
		text, err := mainnet.ReadFile("data/" + c.file)
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		data, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("sample: %s: %w", c.file, err)
		}
		if err := addRoots(roots, data); err != nil {
			return fmt.Errorf("sample: %s: %w", c.file, err)
		}
	}
	out := json.NewEncoder(w)
	for _, height := range slices.Sorted(maps.Keys(roots)) {
		root := roots[height]
		err := out.Encode(struct {
			Height     uint32 `json:"height"`
			MerkleRoot string `json:"merkleRoot"`
		}{height, hex.EncodeToString(root[:])})
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
	}
	return nil
}

// addRoots notes the roots of a bundle by their heights.
func addRoots(roots map[uint32][32]byte, data []byte) error {
	bundle, err := beef.Parse(data)
	if err != nil {
		return err
	}
	ids := bundle.TxIDs()
	for _, id := range ids {
		members, _, err := bundle.Closure(id, len(ids))
		if err != nil {
			return err
		}
		for i := range members {
			p := members[i].Proof
			if p == nil {
				continue
			}
			if other, ok := roots[p.Height]; ok && other != p.Root {
				return fmt.Errorf("two roots at height %d", p.Height)
			}
			roots[p.Height] = p.Root
		}
	}
	return nil
}
