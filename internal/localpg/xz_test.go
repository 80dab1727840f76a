//go:build unix

package localpg

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// xz wraps data in the .xz format without compressing it: one stream of one block of stored LZMA2 chunks.
func xz(data []byte) []byte {
	flags := []byte{0x00, 0x01} // check: CRC32
	var out bytes.Buffer
	out.WriteString("\xfd7zXZ\x00")
	out.Write(flags)
	out.Write(crc(flags))

	// Block header: its size in words less one, no optional fields and one filter, LZMA2 with a 64 KiB dictionary.
	header := []byte{0x02, 0x00, 0x21, 0x01, 0x08, 0x00, 0x00, 0x00}
	begin := out.Len()
	out.Write(header)
	out.Write(crc(header))
	control := byte(0x01) // the first chunk resets the dictionary
	for chunk := range slices.Chunk(data, 1<<16) {
		out.WriteByte(control)
		out.Write(binary.BigEndian.AppendUint16(nil, uint16(len(chunk)-1)))
		out.Write(chunk)
		control = 0x02
	}
	out.WriteByte(0x00)
	unpadded := out.Len() - begin + 4
	out.Write(make([]byte, -(out.Len()-begin)&3))
	out.Write(crc(data))

	index := []byte{0x00, 0x01}
	index = binary.AppendUvarint(index, uint64(unpadded))
	index = binary.AppendUvarint(index, uint64(len(data)))
	index = append(index, make([]byte, -len(index)&3)...)
	index = append(index, crc(index)...)
	out.Write(index)

	footer := binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1))
	footer = append(footer, flags...)
	out.Write(crc(footer))
	out.Write(footer)
	out.WriteString("YZ")
	return out.Bytes()
}

func crc(data []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(data))
}
