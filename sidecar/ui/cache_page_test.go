package ui

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/run"
)

// fleetOf is a list of runs that are queued, in some order.
func fleetOf(t *rapid.T, most int) (*recordSet, *runSet) {
	shore := newShore()
	for i := range rapid.IntRange(0, most).Draw(t, "runs") {
		shore.put(fmt.Sprintf("r%d", i), record(run.Queued, func(r *run.Record) {
			r.Priority = rapid.IntRange(-1, 1).Draw(t, "priority")
			r.Name = rapid.SampledFrom([]string{"load", "Report", ""}).Draw(t, "name")
		}), i > 0 && rapid.Bool().Draw(t, "together"))
	}
	return shore, shore.set()
}

var lists = map[string]func(*runSet) *ordered{
	"queue":  func(s *runSet) *ordered { return &s.queue },
	"newest": func(s *runSet) *ordered { return &s.newest },
}

// Pages, one behind the other, are the list: nothing is missing and nothing comes twice,
// and the way back leads over the same pages.
func TestPagesAreTheList(t *testing.T) {
	for name, list := range lists {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				_, set := fleetOf(t, 40)
				f := parseRunFilter(map[string][]string{"q": {rapid.SampledFrom([]string{"", "r", "LOAD", "none"}).Draw(t, "words")}})
				all := list(set).only(&f)
				size := rapid.IntRange(1, 7).Draw(t, "size")
				var seen []string
				var begins []listPlace
				after := listPlace{}
				for {
					s := all.pageAfter(after, size)
					if s.of != len(all.all) || s.first != len(seen)+1 || s.hasPrevious != (len(seen) > 0) {
						t.Fatalf("%+v behind %d", s, len(seen))
					}
					if n := len(begins); n > 0 && s.previous != begins[n-1] {
						t.Fatalf("the page before begins behind %v, not %v", s.previous, begins[n-1])
					}
					seen, begins = append(seen, idsOf(s.rows)...), append(begins, after)
					if !s.hasNext {
						break
					}
					if len(s.rows) != size {
						t.Fatalf("%d rows, and there are more", len(s.rows))
					}
					after = s.next
				}
				if !slices.Equal(seen, idsOf(all.all)) && len(seen)+len(all.all) > 0 {
					t.Fatalf("pages %v of %v", seen, idsOf(all.all))
				}
			})
		})
	}
}

// While runs come, go and change between one page and the next, one that stays is seen on
// just one page.
func TestPagingLosesAndDoublesNoRun(t *testing.T) {
	for name, list := range lists {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				shore, set := fleetOf(t, 30)
				size := rapid.IntRange(1, 5).Draw(t, "size")
				stays := map[string]bool{}
				for id := range set.byID {
					stays[id] = true
				}
				seen := map[string]int{}
				after := listPlace{}
				for n := 0; ; n++ {
					s := list(set).pageAfter(after, size)
					for _, id := range idsOf(s.rows) {
						seen[id]++
					}
					if !s.hasNext {
						break
					}
					after = s.next
					for range rapid.IntRange(0, 3).Draw(t, "changes") {
						id := fmt.Sprintf("r%d", rapid.IntRange(0, 29).Draw(t, "id"))
						if rapid.Bool().Draw(t, "leaves") {
							set.apply(shore.delete(id))
							delete(stays, id)
						} else if set.byID[id] == nil && n < 50 { // so that it ends
							set.apply(shore.put("new"+id, record(run.Queued), false))
						}
					}
				}
				for id := range stays {
					if seen[id] != 1 {
						t.Fatalf("%s was there all the time, and seen %d times", id, seen[id])
					}
				}
			})
		})
	}
}

func TestAPageBehindTheEndLeadsBack(t *testing.T) {
	shore := newShore()
	for i := range 5 {
		shore.put(fmt.Sprintf("r%d", i), record(run.Queued), false)
	}
	set := shore.set()
	last := placeOf(set.queue.all[4].Run)
	set.apply(shore.delete("r4"))
	s := set.queue.pageAfter(last, 2)
	if len(s.rows) != 0 || s.hasNext || !s.hasPrevious || s.previous.id != "r1" {
		t.Errorf("%+v", s)
	}
	if s = set.queue.pageAfter(s.previous, 2); !slices.Equal(idsOf(s.rows), []string{"r2", "r3"}) {
		t.Errorf("%v", idsOf(s.rows))
	}
}

// What was shown stays as it was: it is rendered while the list goes on.
func TestAPageDoesNotChangeWithItsList(t *testing.T) {
	for name, list := range lists {
		shore := newShore()
		for i := range 5 {
			shore.put(fmt.Sprintf("r%d", i), record(run.Queued), false)
		}
		set := shore.set()
		s := list(set).pageAfter(listPlace{}, 3)
		want := idsOf(s.rows)
		for _, id := range want {
			set.apply(shore.delete(id))
		}
		set.apply(shore.put("r9", record(run.Queued), false))
		for _, l := range s.rows {
			if l == nil {
				t.Fatalf("%s: a row is gone", name)
			}
		}
		if got := idsOf(s.rows); !slices.Equal(got, want) {
			t.Errorf("%s: the rows are %v, and were %v", name, got, want)
		}
	}
}

func TestPlacesAreReadAsTheyAreSpelled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := listPlace{rapid.IntRange(-1000, 1000).Draw(t, "priority"), rapid.Int64().Draw(t, "created"), rapid.Int64().Draw(t, "joined"), rapid.Int64().Draw(t, "due"), rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,30}`).Draw(t, "id")}
		if got, ok := parsePlace(p.String()); !ok || got != p {
			t.Fatalf("%s is read as %v, %v", p, got, ok)
		}
	})
	for _, text := range []string{"", "1", "1~2", "1~2~a", "1~2~0~0~", "1~2~0~0~a/b", "x~2~0~0~a", "1~y~0~0~a", "1~2~x~0~a", "1~2~0~y~a", "1~2~0~0~<b>", "9999999999999999999~2~0~0~a"} {
		if p, ok := parsePlace(text); ok {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}
