package owner

import (
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// A claim that is lost because of something else than its numbers takes them with its next transaction: what was read when it was
// lost shows that they are free.
func TestNumbersThatAreFreeAreTriedAgain(t *testing.T) {
	r := newRig(t)
	first := r.ask("first", 4, store.Extra{})
	r.pass(time.Second)
	r.h.Release(first)
	r.pass(time.Second)
	s := pool.DefaultSpec()
	s.Limit, s.ReserveAfter = 4, time.Hour
	r.putSpec("db", s)
	c := r.ask("again", 4, store.Extra{})
	commits := r.h.halves[0]
	for range 3 { // together, by itself, and again
		txn, ok := commits.Next(r.now(), time.Unix(1, 0))
		if !ok {
			t.Fatal("it is not tried")
		}
		commits.Answer(r.must(txn), nil)
	}
	if all := r.h.Results(); len(all) != 1 || all[0].Claim != c || all[0].Outcome != Granted {
		t.Errorf("%+v", all)
	}
}
