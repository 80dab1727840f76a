package sample

import (
	"fmt"
	"slices"
)

// stream is a splitmix64 generator: small, and the same for ever (N2).
type stream struct{ state uint64 }

func (s *stream) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below gives a number in [0, n); n must not be 0. Its bias is at most
// n/2^64.
func (s *stream) below(n uint64) uint64 { return s.next() % n }

// one says yes once in n times.
func (s *stream) one(n uint64) bool { return s.below(n) == 0 }

// draw gives a stream that depends on these numbers only.
func draw(seed, item, purpose uint64) *stream {
	s := &stream{seed}
	s.state = s.next() ^ item
	s.state = s.next() ^ purpose
	return s
}

// What a draw is for.
const (
	forArtist = iota
	forGenre
	forOrder
	forContext
)

func genreLabels() []string {
	return []string{
		"genre-ambient", "genre-blues", "genre-choral", "genre-dub", "genre-electronic", "genre-folk",
		"genre-funk", "genre-house", "genre-jazz", "genre-metal", "genre-noise", "genre-opera",
		"genre-punk", "genre-soul", "genre-techno", "genre-waltz",
	}
}

// labels says what an item is at an edition: the item's order key stays, its
// artist changes with every fourth edition and the rest with each.
func labels(o Options, genres []string, item uint64, edition uint32) (attributes []attribute, order string, context []byte) {
	artists := draw(o.Seed, item, forArtist|uint64(edition/4)<<8)
	artist := func() string {
		// The lower of two is twice as often in the lower half; twice over, the
		// first labels get a long lead.
		n := uint64(o.Artists)
		return fmt.Sprintf("artist-%03d", min(artists.below(n), artists.below(n), artists.below(n)))
	}
	rest := draw(o.Seed, item, forGenre|uint64(edition)<<8)
	genre := func() string { return genres[rest.below(uint64(len(genres)))] }

	by, kinds := []string{artist()}, []string{genre()}
	if artists.one(8) {
		by = distinct(append(by, artist()))
	}
	if rest.one(3) {
		kinds = distinct(append(kinds, genre()))
	}
	attributes = []attribute{{"artist", by}, {"genre", kinds}}
	if rest.one(2) {
		attributes = append(attributes, attribute{"period", []string{fmt.Sprintf("period-%d", rest.below(9))}})
	}
	if rest.one(4) {
		attributes = append(attributes, attribute{"region", []string{fmt.Sprintf("region-%02d", rest.below(40))}})
	}
	if sort := draw(o.Seed, item, forOrder); !sort.one(8) {
		order = fmt.Sprintf("%08x", sort.below(1<<32))
	}
	if about := draw(o.Seed, item, forContext); about.one(4) {
		context = fmt.Appendf(nil, `{"title":"item %d","edition":%d,"price":%d.%02d}`, item, edition, about.below(100), about.below(100))
	}
	return attributes, order, context
}

// distinct sorts and drops repetitions.
func distinct(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}
