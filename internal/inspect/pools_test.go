package inspect

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

func TestAPoolSaysWhatItLeavesOut(t *testing.T) {
	p := pool.Detail{Holders: make([]pool.HolderStatus, MaxListed+3), Waiters: make([]pool.WaiterStatus, MaxListed+2)}
	ends := LeaseEnds{}
	for i := range p.Holders {
		p.Holders[i].Lease = store.LeaseID(i)
		if i%2 == 0 {
			ends[store.LeaseID(i)] = time.Minute
		}
	}
	ends[0] = 0 // it is gone
	d := PoolDetailOf(p, ends)
	if len(d.Holders) != MaxListed || d.HoldersLeftOut != 3 || len(d.Waiters) != MaxListed || d.WaitersLeftOut != 2 {
		t.Errorf("%d holders and %d more, %d waiters and %d more", len(d.Holders), d.HoldersLeftOut, len(d.Waiters), d.WaitersLeftOut)
	}
	if d.ExpiriesUnknown != MaxListed/2 || d.Holders[2].ExpiresIn != Duration(time.Minute) || d.Holders[1].ExpiresIn != 0 {
		t.Errorf("%d are not known; %+v", d.ExpiriesUnknown, d.Holders[:3])
	}
	small := PoolDetailOf(pool.Detail{}, nil)
	if small.Holders == nil || small.Waiters == nil || small.HoldersLeftOut != 0 || small.WaitersLeftOut != 0 || small.ExpiriesUnknown != 0 {
		t.Errorf("an empty one: %+v", small)
	}
}
