package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// Coordinators that begin and end to lead at any moment, both at times, whose etcd answers late, not at all, or loses answers,
// leave no claim behind, and never grant more than there is.
func TestLeadersComeAndGo(t *testing.T) {
	for seed := range uint64(6) {
		withEngines(t, 0, 2, func(w *bubble) {
			r := rand.New(rand.NewPCG(seed, 2))
			const coordinators, hosts = 2, 3
			for i := range coordinators {
				w.startOn(fmt.Sprint("coordinator-", i), wire.Coordinator, nil)
			}
			for i := range hosts {
				w.startOn(fmt.Sprint("host-", i), wire.Service, nil)
			}
			var held, most, done atomic.Int64
			var all sync.WaitGroup
			stop := make(chan struct{})
			for i, e := range w.engines[coordinators:] {
				for k := range 3 {
					random := rand.New(rand.NewPCG(seed, uint64(100+10*i+k)))
					all.Go(func() {
						for n := 0; ; n++ {
							select {
							case <-stop:
								return
							default:
							}
							req := request(fmt.Sprintf("c-%d-%d-%d", i, k, n))
							req.Wait = time.Hour
							c, err := e.Claim(w.Context(), req)
							if err != nil {
								w.Errorf("seed %d: %v", seed, err)
								return
							}
							now := held.Add(1)
							for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
							}
							time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
							held.Add(-1)
							if err := e.Release(w.Context(), c); err != nil {
								w.Errorf("seed %d: %v", seed, err)
								return
							}
							done.Add(1)
						}
					})
				}
			}
			for i, by := range w.by {
				var mu sync.Mutex // of random: an engine has several transactions under way
				random := rand.New(rand.NewPCG(seed, uint64(200+i)))
				by.Inject(func(c storetest.Call) (f storetest.Fault) {
					if c.Op != storetest.OpTxn {
						return f
					}
					mu.Lock()
					defer mu.Unlock()
					f.Delay = time.Duration(1+random.IntN(5)) * time.Millisecond
					f.LoseAnswer = random.IntN(50) == 0
					return f
				})
			}
			for range 60 {
				i := r.IntN(coordinators)
				switch r.IntN(6) {
				case 0:
					w.by[i].Freeze()
				case 1:
					w.by[i].Down()
				default:
					w.by[i].Thaw()
					w.by[i].Up()
					w.engines[i].Lead(r.IntN(2) == 0)
				}
				w.pass(time.Duration(r.IntN(3000)) * time.Millisecond)
			}
			for i := range coordinators {
				w.by[i].Thaw()
				w.by[i].Up()
				w.engines[i].Lead(i == 0)
			}
			was := done.Load()
			w.pass(30 * time.Second)
			if n := done.Load() - was; n < 100 {
				w.Errorf("seed %d: %d claims are granted within 30 s", seed, n)
			}
			for _, by := range w.by {
				by.Inject(nil)
			}
			close(stop)
			w.pass(20 * time.Second)
			all.Wait()
			if n := most.Load(); n > 2 {
				w.Errorf("seed %d: %d claims at a time hold two slots", seed, n)
			}
			w.empty()
			w.pass(10 * time.Second)
			if n := w.under(w.keys.Pending("")) + w.under(w.keys.OffersAll()); n > 0 {
				w.Errorf("seed %d: %d keys are left", seed, n)
			}
		})
		if t.Failed() {
			return
		}
	}
}
