package pool

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAClaimIsBlockedByItsPools(t *testing.T) {
	pools := map[string]Status{
		"db":     {Spec: Spec{Limit: 4}, Claimed: 1},
		"full":   {Spec: Spec{Limit: 1}, Claimed: 1},
		"over":   {Spec: Spec{Limit: 1}, Claimed: 3},
		"closed": {},
		"paused": {Spec: Spec{Limit: 5, Paused: true}},
		"many":   {Spec: Spec{Limit: Unlimited}, Claimed: 9},
		"broken": {Spec: Spec{Limit: 5}, Problem: "its spec"},
		"gone":   {Deleted: true, Claimed: 1},
	}
	for want, slots := range map[string]map[string]int{
		"":                             {"db": 3, "many": 1000},
		"pool 'full' full (1/1 slots)": {"full": 1, "db": 1},
		"pool 'over' full (3/1 slots)": {"over": 1},
		"pool 'db' has too few free slots (1/4 slots, 4 wanted)": {"db": 4},
		"pool 'db' has a limit of 4, this claim needs 5":         {"db": 5},
		"pools full: 'db' (1/4 slots), 'full' (1/1 slots)":       {"db": 4, "full": 1},
		"pool 'closed' is closed":                                {"closed": 1, "full": 1},
		"pool 'paused' is paused":                                {"paused": 1, "many": 1},
		"pool 'broken' has a value that can't be read":           {"broken": 1, "full": 1},
		"pool 'gone' does not exist":                             {"gone": 1},
	} {
		shorts, text := Blocked(slots, func(name string) Status { return pools[name] })
		if text != want || (text == "") != (len(shorts) == 0) {
			t.Errorf("%v: %q, %+v; want %q", slots, text, shorts, want)
		}
	}
	got, _ := Blocked(map[string]int{"db": 4, "paused": 2, "many": 1}, func(name string) Status { return pools[name] })
	want := []Shortage{{Pool: "db", Wanted: 4, Limit: 4, Claimed: 1, Short: 1}, {Pool: "paused", Wanted: 2, Limit: 5, Paused: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
