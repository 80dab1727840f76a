package reconcile

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// records are one empty record of each kind.
func records() []record {
	return []record{
		&metaRow{}, &mutationRow{}, &Context{}, &sourceRow{}, &generationRow{}, &groupRow{}, &observationRow{}, &candidateRow{}, &txRow{},
		&carrierRow{}, &idsRow{}, &waitersRow{}, &jobRow{}, &idRow{}, &membershipRow{}, &outputRow{}, &projectorRow{}, &Quarantined{},
		&Change{},
	}
}

// fill puts something into every field, so that one which code forgets is missed.
func fill(v reflect.Value, n *uint64) {
	*n++
	switch v.Kind() {
	case reflect.Uint8:
		v.SetUint(1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(*n)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		if v.Type() == reflect.TypeFor[OutputState]() {
			v.SetString(string(Spent))
			return
		}
		v.SetString(string(rune('a' + *n%26)))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic(v.Kind())
	}
}

func TestK1_EveryFieldComesBack(t *testing.T) {
	t.Parallel()
	for _, r := range records() {
		n := uint64(0)
		fill(reflect.ValueOf(r).Elem(), &n)
		if g, ok := r.(*generationRow); ok { // where it is the row's own place says that
			g.Ending.Source, g.Ending.Generation, g.Ending.Claim = 0, 0, nil
		}
		if q, ok := r.(*Context); ok {
			q.Now = math.MaxUint64
		}
		b := encode(r)
		again := reflect.New(reflect.TypeOf(r).Elem()).Interface().(record)
		if err := decode(b, again); err != nil {
			t.Errorf("%T: %v", r, err)
			continue
		}
		if !reflect.DeepEqual(r, again) {
			t.Errorf("%T came back as\n%+v\nfrom\n%+v", r, again, r)
		}
		for i := range b { // no beginning of it is one
			if decode(b[:i], again) == nil {
				t.Errorf("%T: %d bytes of %d are enough", r, i, len(b))
			}
		}
		if decode(append(b, 0), again) == nil {
			t.Errorf("%T: a byte is left over", r)
		}
		if err := decode(append([]byte{codecVersion + 1}, b[1:]...), again); err != ErrNewer { //nolint:errorlint // as it is
			t.Errorf("%T of a newer program: %v", r, err)
		}
	}
}

func FuzzK1_Codec(f *testing.F) {
	for i, r := range records() {
		f.Add(uint8(i), encode(r))
		n := uint64(0)
		fill(reflect.ValueOf(r).Elem(), &n)
		f.Add(uint8(i), encode(r))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		list := records()
		r := list[int(kind)%len(list)]
		if decode(b, r) != nil {
			return
		}
		if again := encode(r); !bytes.Equal(again, b) {
			t.Errorf("%T: %x was read, %x written", r, b, again)
		}
	})
}

func FuzzK1_Transaction(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	one := append([]byte{1, 0, 0, 0, 1}, make([]byte, 36)...)
	f.Add(append(one, 0, 1, 2, 3, 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0x51, 9, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		tx, err := parseTx(b)
		if err != nil {
			return
		}
		n := 8 + len(tx.inputs)*41 + 2
		for _, o := range tx.outputs {
			n += 9 + len(o.Script)
		}
		if len(b) < n || len(tx.inputs) == 0 {
			t.Errorf("%d bytes hold %d inputs and %d outputs", len(b), len(tx.inputs), len(tx.outputs))
		}
	})
}

func TestK1_KeysAreOrdered(t *testing.T) {
	t.Parallel()
	o := spend.Outpoint{TxID: spend.TxID{1, 2}, Index: 7}
	k := key(spaceMember, uint32(3), uint64(9), o)
	if u32At(k, 1) != 3 || u64At(k, 5) != 9 || outpointAt(k, 13) != o || len(k) > 128 {
		t.Errorf("%x", k)
	}
	if bytes.Compare(key(spaceGroup, uint64(255)), key(spaceGroup, uint64(256))) >= 0 {
		t.Error("numbers are not in order")
	}
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "\xff\xff": "", "ab": "ac"} {
		if got := after([]byte(prefix)); string(got) != want {
			t.Errorf("after %q comes %q, not %q", prefix, got, want)
		}
	}
}
