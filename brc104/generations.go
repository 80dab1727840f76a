package brc104

// generations is a bounded map that forgets by halves: entries go into the newer of two maps, and when that is full, or when
// the owner says so, it becomes the older one and the older one is let go. It has no lock of its own.
type generations[K comparable, V any] struct {
	newer, older map[K]V
	room         int // entries of one generation
}

func newGenerations[K comparable, V any](room int) generations[K, V] {
	return generations[K, V]{newer: make(map[K]V), room: max(1, room)}
}

func (g *generations[K, V]) get(key K) (v V, ok bool) {
	if v, ok = g.newer[key]; ok {
		return v, true
	}
	v, ok = g.older[key]
	return v, ok
}

func (g *generations[K, V]) full() bool { return len(g.newer) >= g.room }

// turn lets the older generation go.
func (g *generations[K, V]) turn() {
	g.older, g.newer = g.newer, make(map[K]V)
}

func (g *generations[K, V]) put(key K, v V) {
	if g.full() {
		if _, there := g.newer[key]; !there {
			g.turn()
		}
	}
	g.newer[key] = v
}
