package engine

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// Slots that were freed by force, and that another claim has by now, are granted to no claim of the instance that had them, although
// it was not notified.
func TestSlotsThatAnotherHasAreNotHandedOn(t *testing.T) {
	withEngines(t, 2, 1, func(w *bubble) {
		e := w.engines[0]
		held := w.ask(e, request("held")).got()
		next := w.ask(e, request("next"))
		w.pass(5 * time.Second) // it hands on what is released
		all, err := store.ReadAll(w.Context(), w.b, w.keys.Slots("db"))
		w.must(err)
		for _, kv := range all.KVs { // put again, by another one
			_, err = store.Commit(w.Context(), w.b, nil, store.Put(string(kv.Key), kv.Value, 0))
			w.must(err)
		}
		w.release(e, held)
		w.pass(20 * time.Second)
		next.waits()
		if n := w.under(w.keys.Slots("db")); n != len(all.KVs) {
			t.Errorf("%d slots are held", n)
		}
	})
}

// Commands that claim the same slot at the same moment, and end afterwards, have it in use for most of the time, without any
// process that stays.
func TestCommandsUseASlotMostOfTheTime(t *testing.T) {
	withEngines(t, 0, 1, func(w *bubble) {
		const jobs, holds = 40, 50 * time.Millisecond
		for i := range jobs {
			w.startOn(fmt.Sprint("host-", i), wire.Command, nil)
			w.by[i].Inject(func(c storetest.Call) storetest.Fault { return storetest.Fault{Delay: 2 * time.Millisecond} })
		}
		begun := time.Now()
		var all sync.WaitGroup
		for i, e := range w.engines {
			all.Go(func() {
				c, err := e.Claim(w.Context(), request(fmt.Sprint("job-", i)))
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(holds)
				if err := e.Release(w.Context(), c); err != nil {
					t.Error(err)
				}
				_ = e.Stop(w.Context())
				w.kill[i]()
			})
		}
		all.Wait()
		if took := time.Since(begun); took*6/10 > jobs*holds {
			t.Errorf("%d jobs of %v for one slot took %v", jobs, holds, took)
		}
	})
}
