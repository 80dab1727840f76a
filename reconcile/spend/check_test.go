package spend_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/overlayd/overlayd/reconcile/spend"
)

// closed checks what holds of every selection, from the component and the outcomes alone (G3, G4, G7 and the shape).
func closed(c *spend.Component, sel spend.Selection) error {
	if len(sel.Outcomes) != len(c.Members)+len(c.Border) {
		return fmt.Errorf("%d outcomes of %d members and %d of the border", len(sel.Outcomes), len(c.Members), len(c.Border))
	}
	status := map[spend.TxID]spend.Status{}
	txs := map[spend.TxID]*spend.Tx{}
	for i, o := range sel.Outcomes {
		x := &slices.Concat(c.Members, c.Border)[i]
		if o.ID != x.ID {
			return fmt.Errorf("outcome %d is of another", i)
		}
		if i >= len(c.Members) && o.Status != spend.Included && !sel.Contradiction {
			return fmt.Errorf("one of the border is %s", o.Status)
		}
		if i < len(c.Members) && (o.Status == spend.Included || (o.Status == spend.Pending) != (sel.Barrier || sel.Contradiction)) {
			return fmt.Errorf("a member is %s; barrier %v, contradiction %v", o.Status, sel.Barrier, sel.Contradiction)
		}
		if !slices.IsSortedFunc(o.ConflictsWith, spend.TxID.Compare) || slices.Contains(o.ConflictsWith, o.ID) || len(o.ConflictsWith) > spend.MaxConflicts {
			return fmt.Errorf("conflicts %v", o.ConflictsWith)
		}
		status[o.ID], txs[o.ID] = o.Status, x
	}
	holder := map[spend.Outpoint]spend.TxID{}
	for id, x := range txs {
		s := status[id]
		if s != spend.Included && s != spend.SelectedFinal && s != spend.SelectedNonFinal {
			continue
		}
		for _, in := range x.Inputs {
			if other, held := holder[in.Outpoint]; held && other != id && !sel.Contradiction {
				return fmt.Errorf("%s is consumed by two", in.Outpoint)
			}
			holder[in.Outpoint] = id
			if s == spend.Included || c.Trusted != nil && c.Trusted(in.TxID) {
				continue
			}
			if p := status[in.TxID]; p != spend.Included && p != spend.SelectedFinal || txs[in.TxID] == nil {
				return fmt.Errorf("%s is %s with a parent that is %s", id, s, p)
			}
		}
		if s != spend.Included && (s == spend.SelectedFinal) != spend.Final(x, c.Now.NextHeight, c.Now.MTP) {
			return fmt.Errorf("%s is %s", id, s)
		}
		if s == spend.SelectedNonFinal && !c.NonFinal {
			return fmt.Errorf("%s is %s, which is off", id, s)
		}
	}
	return nil
}

// shuffled is the same component, told differently.
func shuffled(c *spend.Component, r *rand.Rand) *spend.Component {
	d := *c
	d.Members, d.Border = slices.Clone(c.Members), slices.Clone(c.Border)
	r.Shuffle(len(d.Members), func(i, j int) { d.Members[i], d.Members[j] = d.Members[j], d.Members[i] })
	r.Shuffle(len(d.Border), func(i, j int) { d.Border[i], d.Border[j] = d.Border[j], d.Border[i] })
	// Views between two that agree change nothing.
	d.Views = nil
	for _, v := range c.Views {
		d.Views = append(d.Views, v)
		if r.IntN(2) == 0 {
			d.Views = append(d.Views, v)
		}
	}
	return &d
}

// same compares selections of one component told in different ways.
func same(a, b spend.Selection) error {
	byID := func(list []spend.Outcome) []spend.Outcome {
		return slices.SortedFunc(slices.Values(list), func(a, b spend.Outcome) int { return a.ID.Compare(b.ID) })
	}
	if x, y := byID(a.Outcomes), byID(b.Outcomes); !reflect.DeepEqual(x, y) {
		return fmt.Errorf("outcomes differ: %+v and %+v", x, y)
	}
	if !slices.Equal(a.Replacements, b.Replacements) || a.Barrier != b.Barrier || a.Contradiction != b.Contradiction {
		return fmt.Errorf("%+v and %+v", a, b)
	}
	return nil
}

// checked selects and checks what holds of every selection (G1, G3).
func checked(c *spend.Component) (spend.Selection, error) {
	sel := spend.Select(c)
	if err := closed(c, sel); err != nil {
		return sel, err
	}
	r := rand.New(rand.NewPCG(uint64(len(c.Members)), c.Now.At))
	return sel, same(sel, spend.Select(shuffled(c, r)))
}

// FuzzG1_Select feeds components that no graph would give: cycles, repeated inputs, results out of nowhere.
func FuzzG1_Select(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x03\x01 0123456789abcdefghijklmnopqrstuvwxyz0123456789"))
	for seed := range byte(20) {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		data := make([]byte, 60+10*int(seed))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := arbitrary(data)
		before := *arbitrary(data)
		if _, err := checked(c); err != nil {
			t.Fatalf("%v\n%+v", err, c)
		}
		c.Trusted, before.Trusted = nil, nil
		if !reflect.DeepEqual(*c, before) {
			t.Fatal("Select changed its argument")
		}
	})
}

// arbitrary reads a component from bytes; what is missing reads as zero.
func arbitrary(data []byte) *spend.Component {
	next := func() byte {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return b
	}
	c := &spend.Component{NonFinal: next()%2 == 0, Trusted: func(id spend.TxID) bool { return id[0] == 0 }}
	all, border := int(next()%12), int(next()%3)
	for i := range all {
		x := spend.Tx{
			ID: spend.TxID{byte(i + 1)}, LockTime: uint32(next() % 6), Ready: next()%4 > 0, ReadyAt: uint64(next() % 8), Depth: uint32(next() % 3),
			FirstRaw: spend.Position{At: uint64(next() % 8), Index: uint32(i)},
			Result:   spend.Result(next() % 4), Usable: next()%4 > 0, SupportedToday: next()%8 == 0,
			Why: spend.Reason(next() % 3),
		}
		for range next() % 4 {
			x.Inputs = append(x.Inputs, spend.Input{
				Outpoint: spend.Outpoint{TxID: spend.TxID{next() % byte(all+2)}, Index: uint32(next() % 3)}, Sequence: uint32(next()%3) - 1,
			})
		}
		if i >= all-border {
			x.Forced, x.Contradicted = true, next()%16 == 1
			c.Border = append(c.Border, x)
		} else {
			c.Members = append(c.Members, x)
		}
	}
	at := uint64(0)
	for range next() % 5 {
		c.Views = append(c.Views, spend.View{At: at, NextHeight: uint64(next() % 7), MTP: uint64(next())})
		at += 1 + uint64(next()%3)
	}
	if len(c.Views) > 0 && next()%2 == 0 {
		c.Now = c.Views[len(c.Views)-1]
	} else {
		c.Now = spend.View{At: at, NextHeight: uint64(next() % 7)}
	}
	return c
}
