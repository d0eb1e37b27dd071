package owner

import (
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/wire"
)

// A claim is among those that wait from the moment on in which it is known that it has to wait, in the order in which they came,
// until it has ended; also while its key is put elsewhere, with its stamp.
func TestWaitersAreThoseThatHaveNotEnded(t *testing.T) {
	o := New(Config{Keys: store.NewKeys("/b/"), Host: "one", Instance: "i"})
	var claims []*Claim
	for i, id := range []string{"b", "a", "c"} {
		c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute})
		c.arrive(time.Duration(i), time.Unix(1, 0), 0)
		if _, waits := c.Waits(); waits {
			t.Errorf("%s waits before it has to", id)
		}
		o.queue.add(c, []string{"db"})
		claims = append(claims, c)
	}
	want := func(what string, ids ...string) []list.OwnDemand {
		t.Helper()
		var got []string
		all := o.Waiters()
		for _, w := range all {
			got = append(got, w.Claim)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: %q wait, want %q", what, got, ids)
		}
		return all
	}
	for _, w := range want("not put yet", "b", "a", "c") {
		if w.Created != 0 || w.Stamp != nil {
			t.Errorf("%s has a stamp", w.Claim)
		}
	}
	o.queue.place()
	want("in a key that is not put yet", "b", "a", "c")
	k := claims[0].demand.key
	k.put(k.list, 7)
	all := want("in etcd", "b", "a", "c")
	if w := all[1]; w.Created != 7 || w.Stamped(w.Created) != (wire.Stamp{Revision: 7, Index: 1}) {
		t.Errorf("it is %+v", w)
	}
	o.queue.renew(claims[0].demand)
	if w := want("one is put elsewhere", "b", "a", "c")[0]; w.Created != 0 || w.Stamp == nil || *w.Stamp != (wire.Stamp{Revision: 7}) {
		t.Errorf("it is %+v", w)
	}
	o.queue.end(claims[1].demand, false)
	want("one has ended", "b", "c")
	if _, waits := claims[1].Waits(); waits {
		t.Error("it waits still")
	}
	if w, waits := claims[2].Waits(); !waits || w.Claim != "c" || w.Created != 7 {
		t.Errorf("%+v, %t", w, waits)
	}
}
