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
		r.submit("r7", Spec{Name: "of another user"})
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

// What was given up while it waited for its turn never happens; what was sent may.
func TestAChangeThatIsGivenUpIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		away := make(chan struct{})
		r.b.Inject(func(c storetest.Call) storetest.Fault {
			if c.Op != storetest.OpTxn {
				return storetest.Fault{}
			}
			return storetest.Fault{Hold: away}
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, _, err := r.Submit(t.Context(), fmt.Sprint("r", i), Spec{}); problem.CodeOf(err) != problem.EtcdUnavailable {
					t.Errorf("r%d: %v", i, err)
				}
			})
		}
		wg.Wait()
		r.b.Inject(nil)
		close(away)
		synctest.Wait()
		r.submit("later", Spec{})
		all, err := r.All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// Each that was sent before was in one of a few transactions.
		for _, run := range all.Runs {
			if run.Status != Queued {
				t.Errorf("%+v", run)
			}
		}
	})
}

// Many who submit the same id do no harm to others.
func TestOneIDManyTimesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.b.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 5 * time.Millisecond} })
		var wg sync.WaitGroup
		made := make(chan string, 100)
		for i := range 60 {
			wg.Go(func() {
				id := "same"
				if i%3 == 0 {
					id = fmt.Sprint("own", i)
				}
				_, created, err := r.Submit(t.Context(), id, Spec{})
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
				if created {
					made <- id
				}
			})
		}
		wg.Wait()
		if len(made) != 21 {
			t.Errorf("%d were created, want 21", len(made))
		}
	})
}
