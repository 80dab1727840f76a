package spend

import "cmp"

// Before is the total order of candidates: readyAt, depth, first raw position and index, txid. Those that are not ready
// come last, by txid alone.
func Before(a, b *Tx) int {
	switch {
	case a.Ready != b.Ready:
		if a.Ready {
			return -1
		}
		return 1
	case !a.Ready:
		return a.ID.Compare(b.ID)
	}
	return cmp.Or(
		cmp.Compare(a.ReadyAt, b.ReadyAt),
		cmp.Compare(a.Depth, b.Depth),
		cmp.Compare(a.FirstRaw.At, b.FirstRaw.At),
		cmp.Compare(a.FirstRaw.Index, b.FirstRaw.Index),
		a.ID.Compare(b.ID),
	)
}
