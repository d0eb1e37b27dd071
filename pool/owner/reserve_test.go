package owner

import (
	"testing"
	"time"

	"github.com/berthhq/berth/pool"
)

// A claim that waits reserves from the age on that the shortest setting of its pools says, by the clock of its owner, and a
// change of the setting counts from the next poll on.
func TestADemandReservesWhenItIsOld(t *testing.T) {
	for name, tc := range map[string]struct {
		db, gpu, then time.Duration // reserve_after of the pools, and of db later
		age           time.Duration
		reserves      bool
	}{
		"not yet":            {time.Minute, time.Hour, time.Minute, 59 * time.Second, false},
		"it is old enough":   {time.Minute, time.Hour, time.Minute, time.Minute, true},
		"the shortest":       {time.Hour, time.Minute, time.Hour, time.Minute, true},
		"never":              {pool.NeverReserve, pool.NeverReserve, pool.NeverReserve, time.Hour, false},
		"never in one":       {pool.NeverReserve, time.Minute, pool.NeverReserve, time.Minute, true},
		"from the beginning": {0, time.Hour, 0, 0, true},
		"it is shortened":    {time.Hour, time.Hour, time.Second, 2 * time.Second, true},
		"it is prolonged":    {time.Minute, time.Hour, time.Hour, 2 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(1, nil)
			spec := func(name string, after time.Duration) {
				s := pool.DefaultSpec()
				s.Limit, s.ReserveAfter = 1, after
				w.putSpec(name, s)
			}
			spec("db", tc.db)
			spec("gpu", tc.gpu)
			h := w.hosts[0]
			pass := func() {
				for range 20 {
					w.clock++
					w.send(h)
					for h.busy() {
						w.deliver(h)
					}
				}
			}
			needs := map[string]int{"db": 1, "gpu": 1}
			w.claim(h, needs)
			pass()
			c := NewClaim(&pool.Request{ID: "waits", Slots: needs, Wait: time.Hour, Holder: pool.Holder{Host: h.name, Instance: "i"}})
			h.asked[c] = true
			h.Claim(c, w.now(), time.Unix(1, 0))
			for ; c.state != waiting || c.demand.key == nil || c.demand.key.created == 0; w.clock += localWait {
				pass()
			}
			if tc.then != tc.db {
				spec("db", tc.then)
			}
			w.clock = max(w.clock, c.came+tc.age)
			w.poll(h)
			pass()
			all := w.waiters()
			if len(all) != 1 || all[0].Reserve != tc.reserves {
				t.Errorf("%+v, want reserve %v", all, tc.reserves)
			}
			if d := c.demand; tc.reserves && h.queue.reserving.next != 0 || d.over {
				t.Errorf("looked through again at %v", h.queue.reserving.next)
			}
		})
	}
}
