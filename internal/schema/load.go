package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// set is every migration of one program, in order.
type set []Migration

func (s set) target() int32 { return int32(len(s)) }

// Hash names the whole schema: equal for equal files, 64 hex digits.
func Hash() string {
	set, err := load(files)
	if err != nil {
		// The files are compiled in, so this fails in the first test of the build or never.
		panic(err)
	}
	return set.hash()
}

func (s set) hash() string {
	h := sha256.New()
	for _, m := range s {
		for _, part := range [...]string{m.Name, m.SQL} {
			var size [8]byte
			binary.BigEndian.PutUint64(size[:], uint64(len(part)))
			h.Write(size[:])
			h.Write([]byte(part))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// load reads sql/NNN_name.sql of fsys. Other files are left alone.
func load(fsys fs.FS) (set, error) {
	entries, err := fs.ReadDir(fsys, "sql")
	if err != nil {
		return nil, fmt.Errorf("read the embedded migrations: %w", err)
	}
	type numbered struct {
		number int32
		Migration
	}
	var found []numbered
	for _, e := range entries {
		if path.Ext(e.Name()) != ".sql" {
			continue
		}
		digits, _, ok := strings.Cut(e.Name(), "_")
		number, err := strconv.ParseInt(digits, 10, 32)
		if !ok || err != nil || len(digits) != 3 || number < 1 {
			return nil, fmt.Errorf("migration %q is not named like 001_name.sql", e.Name())
		}
		text, err := fs.ReadFile(fsys, path.Join("sql", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the embedded migration %s: %w", e.Name(), err)
		}
		if err := forwardOnly(string(text)); err != nil {
			return nil, fmt.Errorf("migration %s %w", e.Name(), err)
		}
		found = append(found, numbered{int32(number), Migration{Name: e.Name(), SQL: string(text)}})
	}
	slices.SortFunc(found, func(a, b numbered) int { return int(a.number - b.number) })
	var out set
	for i, f := range found {
		if i > 0 && f.number == found[i-1].number {
			return nil, fmt.Errorf("migrations %s and %s have the same number", found[i-1].Name, f.Name)
		}
		f.Version = int32(i) + 1
		out = append(out, f.Migration)
	}
	return out, nil
}

// forwardOnly refuses what tern would obey silently: a part below the line is never run here, and a file without
// a transaction could be half done.
func forwardOnly(sql string) error {
	switch {
	case strings.TrimSpace(sql) == "":
		return fmt.Errorf("is empty")
	case strings.Contains(sql, "---- create above / drop below ----"):
		return fmt.Errorf("has a part that goes back down: migrations are forward only")
	case strings.Contains(sql, "---- tern: disable-tx ----"):
		return fmt.Errorf("wants to run without a transaction: migrations are all or nothing")
	}
	return nil
}
