package run

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/storetest"
)

// Changes that come together share transactions, and each fails alone.
func TestChangesThatComeTogetherShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.submit("r7", Spec{Name: "of somebody else"})
		calls := 0
		var mu sync.Mutex
		r.b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op != storetest.OpTxn {
				return storetest.Fault{}
			}
			mu.Lock()
			defer mu.Unlock()
			calls++
			return storetest.Fault{Delay: 10 * time.Millisecond}
		})
		var wg sync.WaitGroup
		for i := range 250 {
			wg.Go(func() {
				_, created, err := r.Submit(t.Context(), fmt.Sprint("r", i), Spec{})
				if i == 7 {
					if problem.CodeOf(err) != problem.IDInUse {
						t.Errorf("an id twice: %v", err)
					}
				} else if err != nil || !created {
					t.Errorf("r%d: %v, %v", i, created, err)
				}
			})
		}
		wg.Wait()
		if all, err := r.All(t.Context()); err != nil || len(all.Runs) != 250 {
			t.Errorf("%d runs, %v", len(all.Runs), err)
		}
		if calls > 6 {
			t.Errorf("%d transactions for 250 runs", calls)
		}
	})
}
