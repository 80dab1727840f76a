package livefeed

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// An order key is what rows are sorted by in a feed:
//
//	order bytes, each 0x00 written as 0x00 0xff | 0x00 0x00 | txid, 32 bytes | output index, 4 bytes big-endian
//
// Compared byte by byte, order keys sort as (order bytes, txid hex, output index) do, and no two rows of a feed share
// one. At most 2*128 + 2 + 36 bytes.

const maxOrderLen = 128

func orderKey(order []byte, o Outpoint) []byte {
	key := make([]byte, 0, len(order)+bytes.Count(order, []byte{0})+2+outpointLen)
	for _, c := range order {
		key = append(key, c)
		if c == 0 {
			key = append(key, 0xff)
		}
	}
	key = append(key, 0, 0)
	key = append(key, o.TxID[:]...)
	return binary.BigEndian.AppendUint32(key, o.Index)
}

// orderOf takes an order key apart again.
func orderOf(key []byte) (order []byte, o Outpoint, err error) {
	bad := func() ([]byte, Outpoint, error) {
		return nil, Outpoint{}, fmt.Errorf("the order key %x is malformed", key)
	}
	if len(key) < outpointLen+2 {
		return bad()
	}
	head, tail := key[:len(key)-outpointLen], key[len(key)-outpointLen:]
	if o, err = outpointOf(tail); err != nil {
		return bad()
	}
	for i := 0; i < len(head); i++ {
		if head[i] != 0 {
			order = append(order, head[i])
			continue
		}
		switch {
		case i+1 < len(head) && head[i+1] == 0xff:
			order = append(order, 0)
			i++
		case i+2 == len(head) && head[i+1] == 0:
			return order, o, nil
		default:
			return bad()
		}
	}
	return bad()
}
