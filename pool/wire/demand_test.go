package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

func demand(index int, change func(*Demand)) Demand {
	d := Demand{
		Index: index, Claim: fmt.Sprint("claim-", index), Pools: map[string]int{"db": 1, "gpu": 2}, Since: time.Unix(1, 0).UTC(),
		Holder: pool.Holder{Host: "one", Instance: "i"},
	}
	if change != nil {
		change(&d)
	}
	return d
}

func TestDemandsAreReadAsWritten(t *testing.T) {
	list := []Demand{
		demand(0, nil),
		demand(3, func(d *Demand) {
			d.Priority, d.Stamp, d.Reserve, d.Pending, d.Sole = 5, &Stamp{7, 2}, true, []string{"db", "gpu"}, true
		}),
	}
	values := EncodeDemands(list)
	for name, want := range map[string]Demands{"db": {List: list}, "gpu": {First: "db"}} {
		is := DemandKey{Pool: name, Host: "one", Instance: "i", Name: 12}
		key, got, err := keys.DecodeDemands(keys.Demand(is), values[name])
		if diff := cmp.Diff(want, got); diff != "" || key != is || err != nil {
			t.Errorf("%s: %v, %v (-written +read):\n%s", name, key, err, diff)
		}
	}
	if a, b := list[0].Stamped(9), list[1].Stamped(9); a != (Stamp{9, 0}) || b != (Stamp{7, 2}) || b.Compare(a) >= 0 || (Stamp{9, 1}).Compare(a) <= 0 {
		t.Errorf("the stamps are %v and %v", a, b)
	}
}

func TestWhatCannotBeDemandsIsRefused(t *testing.T) {
	main := DemandKey{Pool: "db", Host: "one", Instance: "i"}
	many := make([]Demand, MaxDemands+1)
	for i := range many {
		many[i] = demand(i, nil)
	}
	for want, list := range map[string][]Demand{
		"a key must have 1 to 64":    many,
		"the pool of the key":        {demand(0, func(d *Demand) { d.Pools = map[string]int{"a": 1, "db": 1} })},
		"indexes must ascend":        {demand(1, nil), demand(1, nil)},
		"the same pools":             {demand(0, nil), demand(1, func(d *Demand) { d.Pools = map[string]int{"db": 1} })},
		"priority":                   {demand(0, func(d *Demand) { d.Priority = 5000 })},
		"stamp":                      {demand(0, func(d *Demand) { d.Stamp = &Stamp{} })},
		`"other" must be one of`:     {demand(0, func(d *Demand) { d.Pending = []string{"other"} })},
		`"db" must be one of`:        {demand(0, func(d *Demand) { d.Pending = []string{"gpu", "db"} })},
		"first must be a pool befor": nil,
	} {
		value := store.Encode(demandsValue{V: now, Demands: list})
		if list == nil {
			value = store.Encode(demandsValue{V: now, First: "gpu"})
		}
		key := keys.Demand(main)
		if _, _, err := keys.DecodeDemands(key, value); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), key) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, key := range []string{keys.Spec("db"), keys.Demands("db", "one", "i"), keys.Demands("db", "one", "i") + "01", keys.Demands("db", "One", "i") + "1", keys.Demands("db", "one", "") + "1"} {
		if d, err := keys.DemandKey(key); err == nil {
			t.Errorf("%s is read as %v", key, d)
		}
	}
}

// FuzzDecodeDemands reads values of demands keys. What is read is written as it was read.
func FuzzDecodeDemands(f *testing.F) {
	for name, value := range EncodeDemands([]Demand{demand(0, nil), demand(2, func(d *Demand) { d.Stamp = &Stamp{3, 4} })}) {
		f.Add(name, value)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		key := keys.Demand(DemandKey{Pool: name, Host: "one", Instance: "i"})
		of, d, err := keys.DecodeDemands(key, data)
		if err != nil {
			return
		}
		if keys.Demand(of) != key {
			t.Errorf("%q is read as %v", key, of)
		}
		if len(d.List) == 0 {
			return
		}
		if _, again, err := keys.DecodeDemands(key, EncodeDemands(d.List)[name]); err != nil || len(again.List) != len(d.List) {
			t.Errorf("%s: %v", data, err)
		}
	})
}

func TestOffersAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Offer{Demand: DemandRef{Pool: "db", Name: 3, Created: 12, Index: 1}, Take: map[string]Take{}}
		taken := drawTaken(t)
		for name, h := range taken {
			h.Spec, h.Areas = 5, []slots.Area{{Area: 1, Revision: 9}}
			taken[name], o.Take[name] = h, TakeOf(h)
		}
		list := []Offer{o, {Demand: o.Demand, Refused: true}}
		got, err := DecodeOffers("k", EncodeOffers(list))
		if diff := cmp.Diff(list, got); diff != "" || err != nil {
			t.Fatalf("%v (-written +read):\n%s", err, diff)
		}
		for name, take := range got[0].Take {
			h, err := take.Held()
			if diff := cmp.Diff(taken[name], h); diff != "" || err != nil {
				t.Errorf("%v (-written +read):\n%s", err, diff)
			}
		}
	})
}

func TestWhatCannotBeOffersIsRefused(t *testing.T) {
	of := DemandRef{Pool: "db", Name: 3, Created: 12}
	one := func(take Take) []Offer { return []Offer{{Demand: of, Take: map[string]Take{"db": take}}} }
	for want, list := range map[string][]Offer{
		"1 to 32":            {},
		"demand must name":   {{Refused: true}},
		"either take slots":  {{Demand: of}},
		"name pools":         {{Demand: of, Take: map[string]Take{"": {}}}},
		"it must take slots": one(Take{Spec: 1}),
		"under a spec":       one(Take{Numbers: []int{1}}),
		"and not -1":         one(Take{Numbers: []int{-1}, Spec: 1}),
		"out of range":       one(Take{Blocks: []Block{{Area: 50}}, Spec: 1}),
		"count must be":      one(Take{Blocks: []Block{{}}, Spec: 1}),
		"areas":              one(Take{Numbers: []int{1}, Spec: 1, Areas: [][2]int64{{0, 0}}}),
		"areas: [-1 4]":      one(Take{Numbers: []int{1}, Spec: 1, Areas: [][2]int64{{-1, 4}, {0, 4}}}),
	} {
		if _, err := DecodeOffers("key-1", EncodeOffers(list)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "key-1") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzDecodeOffers reads values of offers keys. What is read can be taken.
func FuzzDecodeOffers(f *testing.F) {
	f.Add(EncodeOffers([]Offer{{Demand: DemandRef{Pool: "db", Created: 1}, Take: map[string]Take{"db": {Numbers: []int{1}, Spec: 1, Areas: [][2]int64{{0, 4}}}}}}))
	f.Add(EncodeOffers([]Offer{{Demand: DemandRef{Pool: "db", Created: 1}, Take: map[string]Take{"db": {Numbers: []int{1}, Spec: 1, Areas: [][2]int64{{-1, 4}}}}}}))
	f.Add(EncodeOffers([]Offer{{Demand: DemandRef{Pool: "db", Created: 1}, Refused: true}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := DecodeOffers("k", data)
		var corrupt *store.CorruptError
		if err != nil && !errors.As(err, &corrupt) {
			t.Error(err)
		}
		for _, o := range list {
			for _, take := range o.Take {
				if h, err := take.Held(); err != nil || h.Slots() < 1 {
					t.Errorf("%s takes %+v, %v", data, h, err)
				}
			}
		}
	})
}

func TestKeysOfOffersAreReadAsWritten(t *testing.T) {
	all := []OfferKey{{"one", "i", 0, ""}, {"one", "i", 64, ""}, {"one", "i", -1, "db"}, {"one", "i", -1, ""}}
	for _, o := range all {
		if got, err := keys.OfferKey(keys.Offer(o)); got != o || err != nil {
			t.Errorf("%s: %v, %v", keys.Offer(o), got, err)
		}
	}
	for _, key := range []string{"/b/offers/one/i/", "/b/offers/one/i/advance~", "/b/offers/one/passed", "/b/offers/one/i/07", "/b/other/one/i/7", "/b/offers/one/i/7/8"} {
		if o, err := keys.OfferKey(key); err == nil {
			t.Errorf("%s is read as %v", key, o)
		}
	}
	if !slices.ContainsFunc(all, OfferKey.Passed) {
		t.Error("none is passed")
	}
}
