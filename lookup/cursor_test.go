package lookup

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"
)

func FuzzL9_Cursor(f *testing.F) {
	sealer := cursorSealer{secret: bytes.Repeat([]byte{7}, 32)}
	session := sha256.Sum256([]byte("session"))
	for _, p := range []position{{}, {live: true}, {after: 1<<63 - 1}, {live: true, after: 42, tag: [8]byte{1, 2, 3}}} {
		f.Add(sealer.seal(session, "epoch", p), uint64(3), []byte("tag......"))
	}
	f.Add("", uint64(0), []byte{})
	f.Add(strings.Repeat("A", cursorSize), uint64(1), []byte{1})
	f.Add(strings.Repeat("A", cursorSize-1)+"\n", uint64(1), []byte{1})
	f.Fuzz(func(t *testing.T, cursor string, after uint64, tag []byte) {
		// Whatever opens is exactly what was sealed, in its one spelling.
		if p, ok := sealer.open(session, "epoch", cursor); ok && sealer.seal(session, "epoch", p) != cursor {
			t.Fatalf("%q opens but is not what its position is sealed as", cursor)
		}
		p := position{live: after%2 == 0, after: after}
		copy(p.tag[:], tag)
		text := sealer.seal(session, "epoch", p)
		if got, ok := sealer.open(session, "epoch", text); !ok || got != p || len(text) != cursorSize {
			t.Fatalf("%+v became %+v (%v) through %q", p, got, ok, text)
		}
		// And nowhere else.
		if _, ok := sealer.open(session, "epoch2", text); ok {
			t.Fatal("it opens in another epoch")
		}
		other := sha256.Sum256(append(tag, 1))
		if _, ok := sealer.open(other, "epoch", text); ok && other != session {
			t.Fatal("it opens for another session")
		}
		if len(cursor) > 0 {
			i := int(after % uint64(len(text)))
			altered := text[:i] + cursor[:1] + text[i+1:]
			if _, ok := sealer.open(session, "epoch", altered); ok && altered != text {
				t.Fatalf("%q opens after a change at %d", altered, i)
			}
		}
	})
}
