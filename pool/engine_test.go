package pool_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

func TestManyClientsOfTwoHostsNeverExceedALimit(t *testing.T) {
	c := newCluster(t)
	c.pool("db", 3)
	engines := []*pool.Engine{c.engine("one"), c.engine("two")}
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			e := engines[i%len(engines)]
			for j := range 5 {
				id := fmt.Sprintf("c%d-%d", i, j)
				claim, err := e.Claim(c.ctx(), pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: time.Minute})
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				n := running.Add(1)
				for {
					m := most.Load()
					if n <= m || most.CompareAndSwap(m, n) {
						break
					}
				}
				running.Add(-1)
				if err := e.Release(c.ctx(), claim); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 {
		t.Errorf("%d claims of a pool of 3 were held at once", most.Load())
	}
	for _, e := range engines {
		d, err := e.Pool(c.ctx(), "db")
		if err != nil {
			t.Fatal(err)
		}
		if err := e.WaitRevision(c.ctx(), d.Revision); err != nil {
			t.Fatal(err)
		}
	}
}
