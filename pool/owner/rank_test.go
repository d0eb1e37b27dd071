package owner

import (
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// A demand whose key is to be put again, as its lease has ended, is passed by none behind it.
func TestADemandThatIsPutAgainIsNotPassed(t *testing.T) {
	key := &demandKey{name: 1, pools: []string{"db"}, created: 20}
	var r rank
	var all []*demand
	for i, id := range []string{"early", "late"} {
		c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute})
		d := &demand{claim: c}
		d.placeAt(int64(10 + i))
		d.placeIn(key, i)
		c.wait(d)
		r.add(d)
		all = append(all, d)
	}
	if r.first() != all[0] {
		t.Error("the first one is not first")
	}
	all[0].unplace()
	if d := r.first(); d != nil {
		t.Errorf("%s passes one that is put again", d.claim.request.ID)
	}
	r.remove(all[0])
	if r.first() != all[1] {
		t.Error("the next one is not first when the first has ended")
	}
}
