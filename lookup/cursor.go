package lookup

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"strings"
	"sync"
)

// position is where a session stands: after a snapshot row version, or after a sequence of the log.
type position struct {
	live  bool
	after uint64  // snapshot: version of the last row examined (0: none yet); live: the sequence read through
	tag   [8]byte // the tag of the group at that sequence (snapshot: at W); a rewritten history has another
}

// A cursor is base64url, without padding, of
//
//	1 byte   phase: 1 snapshot, 2 live
//	8 bytes  position, big-endian
//	8 bytes  tag of the group at the position
//	16 bytes HMAC-SHA256 under the deployment's cursor secret over session digest, epoch and the bytes above, truncated
//
// It is deterministic, so the same position always gives the same text, on every node; and it is bound to its session and
// epoch, so every foreign, forged, altered or truncated cursor is the same reset-required (conformance row L9).
const (
	cursorPlainSize = 1 + 8 + 8
	cursorMacSize   = 16
	// cursorSize is the length of every cursor in characters (44 of the 1024 that the protocol admits).
	cursorSize = (cursorPlainSize + cursorMacSize) * 4 / 3
)

const (
	cursorSnapshot byte = 1
	cursorLive     byte = 2
)

// cursorSealer authenticates under the deployment's cursor secret.
type cursorSealer struct {
	secret []byte
	idle   *sync.Pool // of *keyedMAC under the secret, so that none has to be made for each request; nil: there is none
}

type keyedMAC struct {
	hash.Hash
	text []byte
	sum  [sha256.Size]byte
}

// sum is the HMAC of a label and what follows it, one after the other.
func (c cursorSealer) sum(label string, parts ...[]byte) (sum [cursorMacSize]byte) {
	var mac *keyedMAC
	if c.idle != nil {
		mac, _ = c.idle.Get().(*keyedMAC)
	}
	if mac == nil {
		mac = &keyedMAC{Hash: hmac.New(sha256.New, c.secret)}
	}
	mac.text = append(mac.text[:0], label...)
	for _, part := range parts {
		mac.text = append(mac.text, part...)
	}
	mac.Write(mac.text)
	sum = [cursorMacSize]byte(mac.Sum(mac.sum[:0]))
	if c.idle != nil {
		mac.Reset()
		c.idle.Put(mac)
	}
	return sum
}

func (c cursorSealer) mac(session [32]byte, epoch string, plain []byte) [cursorMacSize]byte {
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(epoch)))
	return c.sum("overlayd/cursor/1", session[:], length[:], []byte(epoch), plain)
}

// anyCursor is as long as every cursor.
var anyCursor = strings.Repeat("A", cursorSize)

func (c cursorSealer) seal(session [32]byte, epoch string, p position) string {
	var room [cursorPlainSize + cursorMacSize]byte
	plain := room[:0]
	if p.live {
		plain = append(plain, cursorLive)
	} else {
		plain = append(plain, cursorSnapshot)
	}
	plain = binary.BigEndian.AppendUint64(plain, p.after)
	plain = append(plain, p.tag[:]...)
	mac := c.mac(session, epoch, plain)
	var text [cursorSize]byte
	base64.RawURLEncoding.Encode(text[:], append(plain, mac[:]...))
	return string(text[:])
}

var strictCursor = base64.RawURLEncoding.Strict()

// open reads a cursor; ok is false for anything this deployment did not make for this session and epoch.
func (c cursorSealer) open(session [32]byte, epoch, cursor string) (p position, ok bool) {
	if len(cursor) != cursorSize {
		return position{}, false
	}
	raw, err := strictCursor.DecodeString(cursor)
	if err != nil || len(raw) != cursorPlainSize+cursorMacSize {
		return position{}, false
	}
	plain := raw[:cursorPlainSize]
	if mac := c.mac(session, epoch, plain); !hmac.Equal(raw[cursorPlainSize:], mac[:]) {
		return position{}, false
	}
	switch plain[0] {
	case cursorSnapshot:
	case cursorLive:
		p.live = true
	default:
		return position{}, false
	}
	p.after = binary.BigEndian.Uint64(plain[1:9])
	p.tag = [8]byte(plain[9:17])
	return p, true
}
