package ui

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

func someStatus(name string, claimed, limit int, change ...func(*pool.Status)) pool.Status {
	s := pool.Status{Name: name, Claimed: claimed}
	s.Spec = pool.DefaultSpec()
	s.Limit = limit
	for _, f := range change {
		f(&s)
	}
	return s
}

func namesOf(p poolsPage) []string {
	var names []string
	for _, c := range p.Cards {
		names = append(names, c.Name)
	}
	return names
}

func TestTheAddressOfThePoolsIsChecked(t *testing.T) {
	for text, want := range map[string]poolsQuery{
		"":                               {Sort: byFullness, Page: 1},
		"q=+DB+&sort=name&page=3":        {Text: "db", Sort: byName, Page: 3},
		"open=b&open=a&open=b&something": {Sort: byFullness, Page: 1, Open: []string{"b", "a"}},
	} {
		q, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := poolsQueryOf(q); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, field := range map[string]string{"page=0": "page", "page=-1": "page", "page=x": "page", "sort=size": "sort"} {
		q, _ := url.ParseQuery(text)
		_, err := poolsQueryOf(q)
		if p, ok := err.(*problem.Error); !ok || p.Field != field || !strings.Contains(p.Message, "must be") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPoolsThatNeedALookComeFirst(t *testing.T) {
	all := []pool.Status{
		someStatus("almost", 9, 10),
		someStatus("broken", 0, 0, func(s *pool.Status) { s.Problem = "no JSON" }),
		someStatus("closed", 0, 0),
		someStatus("closed-held", 1, 0),
		someStatus("empty", 0, 5),
		someStatus("full", 3, 3),
		someStatus("full-line", 3, 3, func(s *pool.Status) { s.Waiting = 2 }),
		someStatus("gone", 2, 0, func(s *pool.Status) { s.Deleted = true }),
		someStatus("over", 4, 2),
		someStatus("unlimited", 1000, -1),
	}
	before := slices.Clone(all)
	q := poolsQuery{Sort: byFullness, Page: 1}
	want := []string{"broken", "gone", "closed-held", "over", "full-line", "full", "almost", "closed", "empty", "unlimited"}
	if got := namesOf(poolsOf(all, q, nil)); !slices.Equal(got, want) {
		t.Errorf("by fullness: %q", got)
	}
	q.Sort = byName
	if got := namesOf(poolsOf(all, q, nil)); !slices.IsSorted(got) || len(got) != len(all) {
		t.Errorf("by name: %q", got)
	}
	if !reflect.DeepEqual(all, before) {
		t.Error("what was given was changed")
	}
	sums := poolsOf(all, poolsQuery{Text: "ful", Page: 1}, nil).Sums // of all, whichever are shown
	if want := (poolSums{Pools: 10, Claimed: 22, Slots: 23, Unlimited: 1000, HasUnlimited: true, Waiting: 2, Troubled: 1}); sums != want {
		t.Errorf("sums: %+v, want %+v", sums, want)
	}
}

func TestPagesOfPoolsHaveEachPoolOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3*poolsPerPage+1).Draw(t, "pools")
		var all []pool.Status
		for i := range n {
			limit := rapid.SampledFrom([]int{-1, 0, 1, 3, 10}).Draw(t, "limit")
			all = append(all, someStatus(fmt.Sprintf("p%03d", i), rapid.IntRange(0, 4).Draw(t, "claimed"), limit))
		}
		q := poolsQuery{Sort: rapid.SampledFrom([]string{byFullness, byName}).Draw(t, "sort"), Page: 1, Text: rapid.SampledFrom([]string{"", "1", "p00"}).Draw(t, "text")}
		seen := map[string]bool{}
		for {
			p := poolsOf(all, q, nil)
			if len(p.Cards) > poolsPerPage || p.To-p.From+1 != len(p.Cards) {
				t.Fatalf("a page of %d, from %d to %d", len(p.Cards), p.From, p.To)
			}
			for _, name := range namesOf(p) {
				if seen[name] || !strings.Contains(name, q.Text) {
					t.Fatalf("%s is there, again or in spite of %q", name, q.Text)
				}
				seen[name] = true
			}
			if p.Next == 0 {
				if len(seen) != p.Found {
					t.Fatalf("%d of %d are shown", len(seen), p.Found)
				}
				break
			}
			if p.Next != q.Page+1 || p.Previous != q.Page-1 {
				t.Fatalf("of page %d the next is %d, the one before %d", q.Page, p.Next, p.Previous)
			}
			q.Page = p.Next
		}
		q.Page = 1000
		if p := poolsOf(all, q, nil); p.Query.Page != p.Pages || len(p.Cards) == 0 && p.Found > 0 {
			t.Fatalf("behind the last page: %+v", p)
		}
	})
}

func TestNoMoreThanSomePoolsAreExpanded(t *testing.T) {
	var all []pool.Status
	var open []string
	for i := range maxOpen + 3 {
		name := fmt.Sprintf("p%02d", i)
		all = append(all, someStatus(name, 0, 1))
		open = append(open, name)
	}
	p := poolsOf(all, poolsQuery{Sort: byName, Page: 1, Open: append(open, "unknown")}, nil)
	opened := 0
	for _, c := range p.Cards {
		if c.Open {
			opened++
		}
	}
	if opened != maxOpen || p.TooMany != 3 {
		t.Errorf("%d are expanded, %d are not", opened, p.TooMany)
	}
}

func TestALeaseIsNearItsEndInItsLastSeconds(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		left, lease time.Duration
		want        string
	}{
		{5 * time.Minute, 5 * time.Minute, ""},
		{30 * time.Second, 5 * time.Minute, ""},
		{30*time.Second - 1, 5 * time.Minute, "near"},
		{time.Second, 5 * time.Minute, "near"},
		{0, 5 * time.Minute, "past"},
		{-time.Minute, 5 * time.Minute, "past"},
		{10 * time.Second, 10 * time.Second, ""}, // a short one is not always near its end
		{5 * time.Second, 10 * time.Second, ""},
		{5*time.Second - 1, 10 * time.Second, "near"},
		{29 * time.Second, 50 * time.Second, ""},
		{24 * time.Second, 50 * time.Second, "near"},
	} {
		if got := nearness(now.Add(test.left), test.lease, now); got != test.want {
			t.Errorf("%s of %s are left: %q, want %q", test.left, test.lease, got, test.want)
		}
	}
	if got := nearness(time.Time{}, time.Minute, now); got != "" {
		t.Errorf("not known: %q", got)
	}
}

func TestTheLeaseOfAClaimLastsAsLongAsTheShortestOfItsPools(t *testing.T) {
	durations := map[string]time.Duration{"a": time.Minute, "b": 10 * time.Second}
	for want, pools := range map[time.Duration]map[string]int{
		10 * time.Second:          {"a": 1, "b": 1},
		time.Minute:               {"a": 1, "gone": 1},
		pool.DefaultLeaseDuration: {"gone": 1},
	} {
		if got := shortestLease(pools, durations); got != want {
			t.Errorf("%v: %s, want %s", pools, got, want)
		}
	}
}

func TestWhatIsLeftOutOfAPoolIsCounted(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var d pool.Detail
	for i := range 7 {
		d.Holders = append(d.Holders, pool.HolderStatus{Claim: fmt.Sprint("h", i), Lease: store.LeaseID(i), Pools: map[string]int{"a": 1}})
		d.Waiters = append(d.Waiters, pool.WaiterStatus{Claim: fmt.Sprint("w", i)})
	}
	ends := map[store.LeaseID]time.Time{0: now.Add(-time.Second), 1: now.Add(time.Second)}
	got := poolDetailOf(d, ends, map[string]time.Duration{"a": time.Minute}, 5, now)
	if len(got.Holders) != 5 || got.HoldersLeftOut != 2 || len(got.Waiters) != 5 || got.WaitersLeftOut != 2 {
		t.Errorf("%+v", got)
	}
	if h := got.Holders; h[0].Near != "past" || h[1].Near != "near" || h[2].Near != "" || !h[2].Ends.IsZero() {
		t.Errorf("%+v", h)
	}
	if got := poolDetailOf(d, nil, nil, 100, now); got.HoldersLeftOut != 0 || len(got.Waiters) != 7 {
		t.Errorf("%+v", got)
	}
}
