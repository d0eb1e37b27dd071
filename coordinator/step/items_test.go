package step

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func itemsOf(values ...string) *Items {
	it := &Items{}
	for _, v := range values {
		it.List = append(it.List, json.RawMessage(v))
	}
	return it
}

func TestItems(t *testing.T) {
	for text, want := range map[string][]string{
		`["a", {"x": 1}, null, 2.50]`:                        {`"a"`, `{"x": 1}`, `null`, `2.50`},
		`{"from": 1, "to": 3}`:                               {"1", "2", "3"},
		`{"from": 1, "to": 6, "by": 2}`:                      {"1", "3", "5"},
		`{"from": 3, "to": -3, "by": -3}`:                    {"3", "0", "-3"},
		`{"from": 7, "to": 7, "by": -1}`:                     {"7"},
		`{"from": 0, "to": 1, "by": 100}`:                    {"0"},
		` [ "leading space" ] `:                              {`"leading space"`},
		`{"to": 9007199254740991, "from": 9007199254740990}`: {"9007199254740990", "9007199254740991"},
	} {
		var it Items
		if err := json.Unmarshal([]byte(text), &it); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err := it.Validate(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var got []string
		for i := range it.Count() {
			got = append(got, string(it.At(i)))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestItemsThatCantBeRead(t *testing.T) {
	for text, want := range map[string]string{
		`5`:                            `items: use an array, and a range as {"from": 1, "to": 20, "by": 1}`,
		`"a"`:                          "",
		`{}`:                           `items: a range needs from and to: use an array, and a range as {"from": 1, "to": 20, "by": 1}`,
		`{"from": 1}`:                  "",
		`{"from": 1, "to": 2, "x": 3}`: "",
		`{"from": 1.5, "to": 2}`:       "",
		`{"from": 1e400, "to": 2}`:     "",
		`{"file": "x"}`:                "",
	} {
		var it Items
		if err := json.Unmarshal([]byte(text), &it); err == nil || want != "" && err.Error() != want {
			t.Errorf("%s: %+v, %v", text, it, err)
		}
	}
}

func TestItemsThatAreRefused(t *testing.T) {
	many := &Items{}
	for range MaxItems + 1 {
		many.List = append(many.List, json.RawMessage("1"))
	}
	long := make([]byte, MaxWork+1)
	for _, c := range []struct {
		field, message string
		items          *Items
	}{
		{"items", "there is none: at least one is needed", &Items{List: []json.RawMessage{}}},
		{"items", "there is none from 2 to 1 by 1: at least one is needed", &Items{Range: &Range{2, 1, 1}}},
		{"items", "there is none from 1 to 2 by -1: at least one is needed", &Items{Range: &Range{1, 2, -1}}},
		{"items", "100001 are too many: use at most 100000", &Items{Range: &Range{0, MaxItems, 1}}},
		{"items", "", &Items{Range: &Range{-maxNumber, maxNumber, 1}}},
		{"items", "there are more than 100000, which is the most that is allowed", many},
		{"items", "", &Items{Range: &Range{1, 2, 1}, List: itemsOf("1").List}},
		{"items.by", "0 leads nowhere: use any other whole number", &Items{Range: &Range{1, 2, 0}}},
		{"items.from", "", &Items{Range: &Range{-maxNumber - 1, 2, 1}}},
		{"items.to", "9007199254740992 is out of range: use -9007199254740991 to 9007199254740991", &Items{Range: &Range{1, maxNumber + 1, 1}}},
		{"items.by", "", &Items{Range: &Range{1, 2, -1 << 63}}},
		{"items[1]", "", itemsOf("1", "{")},
		{"items[1]", "", itemsOf("1", "")},
		{"items[0]", "", itemsOf("\"\xff\"")},
		{"items[0]", "it is 65537 bytes long: use at most 65536", &Items{List: []json.RawMessage{long}}},
		{"items[0]", "", itemsOf(nested(101))},
	} {
		wantField(t, c.items.Validate(), c.field, c.message)
	}
}

// Items are parts of one copy of their text, and those that are too many are not read.
func TestAListIsReadIntoLittleMemory(t *testing.T) {
	const n = 10_000
	text := []byte("[" + strings.Repeat(`{"a": [1]},`, n-1) + `"b"]`)
	var it Items
	allocs := testing.AllocsPerRun(1, func() {
		if err := it.UnmarshalJSON(text); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 100 || it.Count() != n || string(it.At(0)) != `{"a": [1]}` || string(it.At(n-1)) != `"b"` {
		t.Errorf("%d items by %.0f allocations: %s … %s", it.Count(), allocs, it.At(0), it.At(n-1))
	}
	text[1] = '?'
	if string(it.At(0)) != `{"a": [1]}` {
		t.Errorf("the item is part of the input: %s", it.At(0))
	}
	many := "[" + strings.TrimSuffix(strings.Repeat("0,", 2*MaxItems), ",") + "]"
	if err := it.UnmarshalJSON([]byte(many)); err != nil || it.Count() != MaxItems+1 {
		t.Errorf("%d items, %v", it.Count(), err)
	}
}

// A range counts exactly what it lists: the numbers that a plain loop comes to.
func TestARangeCountsWhatItLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		near := rapid.SampledFrom([]int64{0, maxNumber - 1000, -maxNumber + 1000}).Draw(t, "near")
		r := Range{
			From: near + rapid.Int64Range(-1000, 1000).Draw(t, "from"),
			To:   near + rapid.Int64Range(-1000, 1000).Draw(t, "to"),
			By:   rapid.SampledFrom([]int64{1, -1, 2, -3, 7, 999, -2000, maxNumber, -maxNumber}).Draw(t, "by"),
		}
		var want []int64
		for n := r.From; r.By > 0 && n <= r.To || r.By < 0 && n >= r.To; n += r.By {
			want = append(want, n)
		}
		it := Items{Range: &r}
		if it.Count() != len(want) {
			t.Fatalf("%+v: %d, want %d", r, it.Count(), len(want))
		}
		for i, n := range want {
			if got := string(it.At(i)); got != fmt.Sprint(n) {
				t.Fatalf("%+v: item %d is %s, want %d", r, i, got, n)
			}
		}
		if err := it.Validate(); (err == nil) != (len(want) > 0) {
			t.Fatalf("%+v: %v", r, err)
		}
	})
}
