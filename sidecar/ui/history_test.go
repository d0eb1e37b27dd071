package ui

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

func TestTheRecentUseOfAPoolIsALineOfItsChanges(t *testing.T) {
	db := func(values ...int) []moment {
		var all []moment
		for _, n := range values {
			if n < 0 {
				all = append(all, moment{"other": 1}) // the pool was not there
				continue
			}
			all = append(all, moment{"db": n})
		}
		return all
	}
	for what, test := range map[string]struct {
		moments []moment
		limit   int
		want    use
	}{
		"nothing yet":   {nil, 3, use{}},
		"one sample":    {db(1), 3, use{}},
		"another pool":  {db(-1, -1, -1), 3, use{}},
		"always empty":  {db(0, 0, 0), 2, use{Lines: []string{"118,23 120,23"}, Limit: "1", Text: "claimed in the last 10 s: 0 slots all the time"}},
		"it rises":      {db(0, 1, 2), 2, use{Lines: []string{"118,23 119,23 119,12 120,12 120,1 120,1"}, Limit: "1", Text: "claimed in the last 10 s: 0 to 2 slots"}},
		"flat is short": {db(1, 1, 1, 1), 2, use{Lines: []string{"117,12 120,12"}, Limit: "1", Text: "claimed in the last 15 s: 1 slot all the time"}},
		"over the limit": {db(4, 4), 2,
			use{Lines: []string{"119,1 120,1"}, Limit: "12", Text: "claimed in the last 5 s: 4 slots all the time"}},
		"no limit": {db(4, 2), -1, use{Lines: []string{"119,1 120,1 120,12 120,12"}, Text: "claimed in the last 5 s: 2 to 4 slots"}},
		"etcd was away": {[]moment{{"db": 1}, {"db": 1}, nil, {"db": 1}}, 2,
			use{Lines: []string{"117,12 119,12", "120,12 120,12"}, Limit: "1", Text: "claimed in the last 15 s: 1 slot all the time"}},
		"it is new": {db(-1, 1, 1), 1, use{Lines: []string{"119,1 120,1"}, Limit: "1", Text: "claimed in the last 10 s: 1 slot all the time"}},
	} {
		got := useOf(test.moments, "db", test.limit)
		if !slices.Equal(got.Lines, test.want.Lines) || got.Limit != test.want.Limit || got.Text != test.want.Text {
			t.Errorf("%s: %+v, want %+v", what, got, test.want)
		}
	}
}

func TestSamplesAreKeptForTenMinutes(t *testing.T) {
	h := newHistory()
	for i := range maxMoments + 5 {
		h.add(moment{"db": i})
	}
	all := h.show()
	if len(all) != 121 || all[0]["db"] != 5 || all[120]["db"] != maxMoments+4 {
		t.Errorf("%d samples, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	u := useOf(all, "db", 1)
	if !strings.HasPrefix(u.Lines[0], "0,") || !strings.Contains(u.Text, "last 10 min") {
		t.Errorf("%+v", u)
	}
}

func TestTwoAnswersAboutOneEndAreOne(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	answered := func(d time.Duration) map[store.LeaseID]time.Duration { return map[store.LeaseID]time.Duration{1: d} }
	for what, test := range map[string]struct {
		known time.Time
		left  map[store.LeaseID]time.Duration
		want  time.Time
	}{
		"new":                            {time.Time{}, answered(10 * time.Second), at.Add(10 * time.Second)},
		"the same":                       {at.Add(9 * time.Second), answered(10 * time.Second), at.Add(9 * time.Second)},
		"the same, a second less":        {at.Add(11 * time.Second), answered(10 * time.Second), at.Add(11 * time.Second)},
		"renewed":                        {at.Add(3 * time.Second), answered(10 * time.Second), at.Add(10 * time.Second)},
		"shorter, as if made again":      {at.Add(60 * time.Second), answered(10 * time.Second), at.Add(10 * time.Second)},
		"gone":                           {at.Add(-5 * time.Second), answered(0), at.Add(-5 * time.Second)},
		"gone before its end":            {at.Add(30 * time.Second), answered(0), at},
		"gone, and never known":          {time.Time{}, answered(0), at},
		"not answered":                   {at.Add(5 * time.Second), nil, at.Add(5 * time.Second)},
		"not answered, and past":         {at.Add(-5 * time.Second), nil, time.Time{}},
		"not answered, and never known":  {time.Time{}, nil, time.Time{}},
		"answered of another lease only": {time.Time{}, map[store.LeaseID]time.Duration{2: time.Minute}, time.Time{}},
	} {
		if got := laterEnd(test.known, at, test.left, 1); !got.Equal(test.want) {
			t.Errorf("%s: %s, want %s", what, got, test.want)
		}
	}
}

func TestEtcdIsAskedAboutLeasesNoMoreThanItHasTo(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	e := newExpiries()
	few := []store.LeaseID{1, 2, 1}
	if got := e.due(few, now); !slices.Equal(got, []store.LeaseID{1, 2}) {
		t.Fatalf("at first: %v", got)
	}
	e.learn([]store.LeaseID{1, 2}, nil, now)
	if got := e.due(few, now.Add(500*time.Millisecond)); got != nil {
		t.Errorf("half a second later: %v", got)
	}
	if got := e.due(few, now.Add(time.Second)); len(got) != 2 {
		t.Errorf("a second later: %v", got)
	}
	var many []store.LeaseID
	for i := range 1000 {
		many = append(many, store.LeaseID(i))
	}
	now = now.Add(time.Minute)
	e.learn(e.due(many, now), nil, now)
	for after, want := range map[time.Duration]int{time.Second: 0, 9 * time.Second: 0, 10 * time.Second: 1000} {
		if got := e.due(many, now.Add(after)); len(got) != want {
			t.Errorf("of 1000 leases %d are asked about after %s, want %d", len(got), after, want)
		}
	}
	e.due(few, now.Add(5*time.Minute))
	if len(e.all) != 2 {
		t.Errorf("%d leases are remembered", len(e.all))
	}
}
