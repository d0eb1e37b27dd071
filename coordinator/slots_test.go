package coordinator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/revoke"
)

func TestARunIsAdmittedWithItsSlots(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 3)
		fl.pool("gpu", 1)
		fl.candidate("one")
		fl.submit("a", needs("db", 2), needs("gpu", 1))
		fl.submit("b", needs("db", 2))
		fl.submit("c", needs("gpu", 1), needs("db", 1))
		fl.submit("d", needs("db", 1))
		fl.submit("e")
		fl.is(map[string]string{
			"a": "not_started", "d": "not_started", "e": "not_started",
			"b": "queued: pool 'db' full (3/3 slots)", "c": "queued: pools full: 'db' (3/3 slots), 'gpu' (1/1 slots)",
		})
		fl.holds(map[string]string{"a": "one", "d": "one"})

		x := fl.starter("x")
		a, err := x.start("a")
		if err != nil {
			t.Fatal(err)
		}
		fl.holds(map[string]string{"a": "x", "d": "one"})
		if held := fl.claims()["a"]; held.Fence != a.Fence() || held.Lease != x.lease {
			t.Errorf("the fence is %d on lease %d, want %d and %d", held.Fence, held.Lease, a.Revision, x.lease)
		}
		if err := x.finish(a); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"a": "succeeded", "b": "not_started", "c": "queued: pool 'db' full (3/3 slots)"})
		fl.holds(map[string]string{"b": "one", "d": "one"})

		// A pool that grows lets the next one go.
		fl.pool("db", 4)
		fl.is(map[string]string{"c": "not_started"})
	})
}

func TestSlotsOfARunThatNobodyStarts(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 2)
		fl.candidate("one", func(c *Config) { c.StartTimeout = time.Minute })
		for _, id := range []string{"late", "canceled", "waits"} {
			fl.submit(id, needs("db", 1))
		}
		fl.is(map[string]string{"late": "not_started", "canceled": "not_started", "waits": "queued: pool 'db' full (2/2 slots)"})
		if _, err := fl.Cancel(t.Context(), "canceled", "no need", false); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"waits": "not_started"})
		fl.holds(map[string]string{"late": "one", "waits": "one"})
		time.Sleep(time.Minute)
		fl.is(map[string]string{"late": "failed", "waits": "failed"})
		fl.proceed()
		fl.holds(nil)
	})
}

// A run whose slots are taken from it before it starts goes back to its place.
func TestARunWhoseSlotsAreGoneGoesBack(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 1)
		fl.candidate("one")
		x := fl.starter("x")
		fl.submit("a", needs("db", 1))
		fl.submit("b", needs("db", 1))
		fl.is(map[string]string{"a": "not_started", "b": "queued: pool 'db' full (1/1 slots)"})
		before, err := fl.Get(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (revoke.Revoker{Backend: fl.root, Keys: fl.keys}).Revoke(t.Context(), fl.claims()["a"].Claim, true); err != nil {
			t.Fatal(err)
		}
		// Who has seen it admitted comes too late.
		if _, err := x.TakeOver(t.Context(), before, store.Extra{}); problem.CodeOf(err) != problem.Precondition {
			t.Errorf("a claim that is gone: %v", err)
		}
		fl.is(map[string]string{"a": "not_started", "b": "queued: pool 'db' full (1/1 slots)"})
		if n := fl.referee.admits["a"]; n != 2 {
			t.Errorf("it was admitted %d times", n)
		}
		if _, err := x.start("a"); err != nil {
			t.Error(err)
		}
	})
}

// Users choose ids of claims, and which run they name: a claim like that of a run does not keep its slots.
func TestSlotsOfARunAreKeptOnlyByItsClaim(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 1)
		fl.pool("other", 2)
		fl.candidate("one")
		fl.submit("a", needs("db", 1))
		fl.is(map[string]string{"a": "not_started"})
		is := fl.claims()["a"]
		for host, h := range map[string]pool.Holder{"x": {Run: "a", Bind: "user"}, "y": {Run: "b", Bind: run.BindExecutor}} {
			if _, err := fl.starter(host).engine.Claim(t.Context(), &pool.Request{ID: is.Claim, Slots: map[string]int{"other": 1}, Holder: h}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := (revoke.Revoker{Backend: fl.root, Keys: fl.keys}).Revoke(t.Context(), is.Host+"/"+is.Instance+"/"+is.Claim, true); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"a": "not_started"})
		if n := fl.referee.admits["a"]; n != 2 {
			t.Errorf("it was admitted %d times", n)
		}
	})
}

// What a leader keeps for runs stays theirs when another one leads.
func TestSlotsOutliveTheLeader(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 1)
		one := fl.candidate("one")
		fl.candidate("two")
		x := fl.starter("x")
		fl.submit("a", needs("db", 1))
		fl.submit("b", needs("db", 1))
		fl.is(map[string]string{"a": "not_started"})
		one.stop()
		time.Sleep(15 * time.Second)
		fl.holds(map[string]string{"a": "one"})
		a, err := x.start("a")
		if err != nil {
			t.Fatal(err)
		}
		if err := x.finish(a); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"b": "not_started"})
		fl.holds(map[string]string{"b": "two"})
	})
}

// A claim that waits on behalf of a run that has ended is removed from the wait queue.
func TestWaitersOfRunsThatHaveEndedLeaveTheLine(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 1)
		fl.candidate("one")
		x := fl.starter("x")
		fl.submit("r")
		fl.is(map[string]string{"r": "not_started"})
		claim := func(id, run string, wait time.Duration) (*pool.Claim, error) {
			return x.engine.Claim(t.Context(), &pool.Request{ID: id, Slots: map[string]int{"db": 1}, Holder: pool.Holder{Run: run}, Wait: wait})
		}
		if _, err := claim("holds", "", 0); err != nil {
			t.Fatal(err)
		}
		outcome := make(chan error, 1)
		go func() {
			_, err := claim("waits", "r", time.Hour)
			outcome <- err
		}()
		fl.proceed()
		if _, err := fl.Cancel(t.Context(), "r", "no need", false); err != nil {
			t.Fatal(err)
		}
		if err := <-outcome; problem.CodeOf(err) != problem.ClaimRevoked {
			t.Errorf("the claim that waits: %v", err)
		}
		fl.proceed()
		fl.root.Do(func(e *storetest.Etcd) {
			for kv := range e.All(fl.keys.Revocations("x")) {
				t.Errorf("%s is left", kv.Key)
			}
		})
	})
}

// The slots of a run are not granted while claims wait for the pool. Other runs do not wait for that.
func TestARunWhosePoolHasAQueueHoldsUpNoOther(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 3, func(ch *pool.Change) { ch.ReserveAfter = new(time.Duration) })
		fl.candidate("one")
		x := fl.starter("x")
		claim := func(ctx context.Context, id string, slots int, wait time.Duration) error {
			_, err := x.engine.Claim(ctx, &pool.Request{ID: id, Slots: map[string]int{"db": slots}, Wait: wait})
			return err
		}
		if err := claim(t.Context(), "holds", 1, 0); err != nil {
			t.Fatal(err)
		}
		waiting, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- claim(waiting, "waits", 3, time.Hour) }()
		fl.proceed()
		fl.submit("small", needs("db", 1))
		time.Sleep(100 * time.Millisecond)
		for i := range 5 {
			id := fmt.Sprintf("plain%d", i)
			fl.submit(id)
			time.Sleep(500 * time.Millisecond)
			if r, err := fl.Get(t.Context(), id); err != nil || r.Status != run.NotStarted {
				t.Errorf("%s is not admitted within 500 ms: %v, %v", id, r.Status, err)
			}
		}
		if r, err := fl.Get(t.Context(), "small"); err != nil || r.Block == nil || r.Block.Text != "others wait for pool 'db' before it" {
			t.Errorf("the reason of the run that needs the pool is %+v, %v", r.Block, err)
		}
		leave()
		<-left
		fl.proceed()
		fl.is(map[string]string{"small": "not_started"})
	})
}

// The one that needs most is not passed for ever.
func TestAWideRunComesToReserve(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 2, reserveAfter(30*time.Second))
		fl.candidate("one")
		x := fl.starter("x")
		fl.submit("first", needs("db", 1))
		fl.submit("wide", needs("db", 2))
		fl.submit("slim0", needs("db", 1))
		running, slim := []string{"first", "slim0"}, 1
		admitted := false
		for range 20 { // there is always one that runs, so never capacity for two
			fl.proceed()
			r, err := x.start(running[0])
			if err != nil {
				break // none was let in
			}
			running = running[1:]
			id := fmt.Sprintf("slim%d", slim)
			slim++
			fl.submit(id, needs("db", 1))
			running = append(running, id)
			time.Sleep(5 * time.Second)
			if err := x.finish(r); err != nil {
				t.Fatal(err)
			}
			fl.proceed()
			if wide, err := fl.Get(t.Context(), "wide"); err == nil && wide.Status == run.NotStarted {
				admitted = true
				break
			}
		}
		if !admitted || slim < 6 {
			t.Errorf("admitted: %v, after %d others", admitted, slim)
		}
	})
}

func TestWhatCanNeverFitIsRefused(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 2)
		submit := func(id string, change func(*run.Spec)) error {
			var s run.Spec
			change(&s)
			_, _, err := fl.Submit(t.Context(), id, s)
			return err
		}
		for want, err := range map[problem.Code]error{
			problem.PoolNotFound: submit("a", needs("nowhere", 1)),
			problem.ExceedsLimit: submit("b", needs("db", 3)),
			problem.Invalid:      submit("c", needs("db", 0)),
		} {
			if problem.CodeOf(err) != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		// What was submitted waits while its pool is gone, and says so.
		fl.submit("d", needs("db", 2))
		if _, err := fl.pools().Delete(t.Context(), "db", nil); err != nil {
			t.Fatal(err)
		}
		fl.candidate("one")
		fl.is(map[string]string{"d": "queued: pool 'db' does not exist"})
		fl.submit("d", needs("db", 2)) // again
		fl.pool("db", 1)
		fl.is(map[string]string{"d": "queued: pool 'db' has a limit of 1, this claim needs 2"})
		fl.pool("db", 2)
		fl.is(map[string]string{"d": "not_started"})
	})
}

// An admission whose write comes late must not happen any more: another run may have
// been admitted meanwhile.
func TestAnAdmissionThatComesLateIsNone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.watchSlots()
		fl.limit(1)
		fl.pool("db", 1)
		one := fl.candidate("one")
		late := make(chan struct{}, 1)
		fl.submit("first")
		fl.submit("a", needs("db", 1))
		fl.is(map[string]string{"first": "not_started", "a": "queued: global run limit (1/1)"})
		first := fl.start("first", fl.executor())
		begun := time.Now()
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			switch {
			case call.Op != storetest.OpTxn || time.Since(begun) > 15*time.Second:
			case puts(call.Txn, fl.keys.Slots("db")):
				select {
				case late <- struct{}{}:
					return storetest.Fault{Delay: 10 * time.Second}
				default:
				}
			case len(late) > 0 && puts(call.Txn, fl.keys.Guard("one", Instance)):
				return storetest.Fault{Drop: true} // so that the engine can't resolve it
			}
			return storetest.Fault{}
		})
		fl.finish(first)
		fl.proceed()
		fl.submit("b", priority(1)) // what is noted of a stays as it is
		time.Sleep(3 * time.Second)
		fl.is(map[string]string{"a": "queued: global run limit (1/1)", "b": "not_started"})
		time.Sleep(20 * time.Second)
		fl.is(map[string]string{"a": "queued: global run limit (1/1)", "b": "not_started"})
		fl.holds(nil)
		if len(late) == 0 {
			t.Error("nothing was late")
		}
	})
}

// puts reports whether a transaction may put a key with a prefix.
func puts(t *pb.TxnRequest, prefix string) bool {
	for _, op := range t.Success {
		if nested := op.GetRequestTxn(); nested != nil && puts(nested, prefix) {
			return true
		}
		if strings.HasPrefix(string(op.GetRequestPut().GetKey()), prefix) {
			return true
		}
	}
	return false
}
