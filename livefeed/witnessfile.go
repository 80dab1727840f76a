package livefeed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/overlayd/overlayd/internal/canon"
)

// The file of a witness is JSON, closed and versioned, replaced as a whole:
//
//	{"version":1,"feeds":[{"name","id","born","epoch","turn","broken","head","tag","prohibitions","evaluated","marks":[{"name","value"}]}]}
//
// Counters are U64 strings, the tag is 16 hex digits.

const (
	witnessVersion  = 1
	maxWitnessBytes = 16 << 20
	witnessPeriod   = time.Second // between writes, when something changed
)

// OpenWitness reads what this node has seen of its database from the file at path, and makes the file where there is none. Keep it
// outside the database and out of its backups: a copy that is restored together with the database remembers nothing
// else. "" keeps all in memory: then a restore during which no node ran is noticed by a client's cursor alone. A file
// that cannot be read is an error that says what to do.
func OpenWitness(path string, log *slog.Logger) (*Witness, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	w := &Witness{path: path, log: log, seen: map[string]sight{}, missing: map[string]bool{}, doubted: map[string]bool{}}
	if path == "" {
		return w, nil
	}
	raw, err := readWitness(path)
	if errors.Is(err, fs.ErrNotExist) {
		return w, w.save() // a folder that cannot be written is noticed now
	}
	if err == nil {
		w.seen, err = decodeWitness(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("livefeed: the state file %s cannot be read (%w): put a copy back, or remove it if the database is known to have lost nothing since this node ran", path, err)
	}
	return w, nil
}

func readWitness(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxWitnessBytes {
		return nil, fmt.Errorf("it is not a file of at most %d bytes", maxWitnessBytes)
	}
	return os.ReadFile(path)
}

// keep writes the file when something changed, at most once a period, until ctx ends.
func (w *Witness) keep(ctx context.Context) {
	if w.path == "" {
		return
	}
	failing := false
	for pause(ctx, witnessPeriod) {
		err := w.save()
		if err != nil && !failing {
			w.log.Error("livefeed: the state file could not be written; tried again each second. Until then a restart forgets what this node saw of its database", "stateFile", w.path, "err", err)
		}
		failing = err != nil
	}
}

// save writes the file if something changed, durably and as a whole.
func (w *Witness) save() error {
	if w.path == "" {
		return nil
	}
	w.mu.Lock()
	_, err := os.Lstat(w.path)
	if !w.changed && err == nil {
		w.mu.Unlock()
		return nil
	}
	w.changed = false
	seen := maps.Clone(w.seen)
	w.mu.Unlock()
	if err := replaceFile(w.path, encodeWitness(seen)); err != nil {
		w.mu.Lock()
		w.changed = true
		w.mu.Unlock()
		return fmt.Errorf("livefeed: write the state file %s: %w", w.path, err)
	}
	return nil
}

// replaceFile writes a file that only its owner can read: under another name first, so that it is always whole.
func replaceFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func encodeWitness(seen map[string]sight) []byte {
	number := func(name string, n uint64) canon.Member {
		return canon.Member{Name: name, Value: canon.Str(strconv.FormatUint(n, 10))}
	}
	text := func(name, s string) canon.Member { return canon.Member{Name: name, Value: canon.Str(s)} }
	var feeds []canon.Value
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		s := seen[name]
		if !s.known {
			continue
		}
		marks := []canon.Value{}
		for _, m := range slices.Sorted(maps.Keys(s.marks)) {
			marks = append(marks, canon.Obj(text("name", m), number("value", s.marks[m])))
		}
		feeds = append(feeds, canon.Obj(
			text("name", name), canon.Member{Name: "id", Value: canon.Num(int64(s.id))}, number("born", s.born), text("epoch", s.epoch),
			number("turn", s.turn), number("broken", s.broken), number("head", s.head), text("tag", fmt.Sprintf("%x", s.tag)),
			number("prohibitions", s.prohibitions), number("evaluated", s.evaluated),
			canon.Member{Name: "marks", Value: canon.Arr(marks...)}))
	}
	root := canon.Obj(canon.Member{Name: "version", Value: canon.Num(witnessVersion)}, canon.Member{Name: "feeds", Value: canon.Arr(feeds...)})
	return append(root.AppendCanonical(nil), '\n')
}

func decodeWitness(raw []byte) (map[string]sight, error) {
	root, err := canon.Parse(raw, canon.Limits{MaxBytes: maxWitnessBytes})
	if err != nil {
		return nil, err
	}
	o := &object{v: root}
	if version, ok := o.need("version", canon.Number).Int(); o.err == nil && (!ok || version != witnessVersion) {
		return nil, fmt.Errorf("it is of another version than %d, which this overlayd writes", witnessVersion)
	}
	seen := map[string]sight{}
	for _, v := range o.need("feeds", canon.Array).Elements() {
		f := &object{v: v}
		name := f.text("name", maxFeedName)
		s := sight{known: true, epoch: f.text("epoch", 64)}
		id, ok := f.need("id", canon.Number).Int()
		if !ok || id < 1 || id > 1<<31-1 {
			f.fail("id must be a number of a feed")
		}
		s.id = int32(id)
		s.born = f.counter("born")
		s.turn, s.broken, s.head = f.counter("turn"), f.counter("broken"), f.counter("head")
		s.prohibitions, s.evaluated = f.counter("prohibitions"), f.counter("evaluated")
		s.tag = f.hex8("tag")
		for _, v := range f.need("marks", canon.Array).Elements() {
			m := &object{v: v}
			mark, value := m.text("name", maxMarkName), m.counter("value")
			f.adopt(m.close())
			if _, twice := s.marks[mark]; twice {
				f.fail("a mark is there twice")
			}
			s.mark(mark, value)
		}
		if s.broken > s.turn {
			f.fail("broken is greater than turn")
		}
		if _, twice := seen[name]; twice {
			f.fail("a feed is there twice")
		}
		o.adopt(f.close())
		seen[name] = s
	}
	return seen, o.close()
}

// maxMarkName bounds the name of a mark, in bytes.
const maxMarkName = 256

func (o *object) counter(name string) uint64 {
	n, err := canon.ParseU64(o.need(name, canon.String).Str())
	if err != nil || n > maxSequence {
		o.adopt(fmt.Errorf("%s must be a U64 below 2^63 - 1", name))
		return 0
	}
	return n
}

func (o *object) hex8(name string) (b [8]byte) {
	text := o.need(name, canon.String).Str()
	n, err := strconv.ParseUint(text, 16, 64)
	for i := range b {
		b[i] = byte(n >> (56 - 8*i))
	}
	if err != nil || fmt.Sprintf("%x", b) != text {
		o.adopt(fmt.Errorf("%s must be 16 lowercase hexadecimal characters", name))
	}
	return b
}
