package enginetest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// specifying has what changes of pools do to claims.
var specifying = []behavior{
	{"a pool that was created a moment ago on another host is not refused", newPool, standIn},
	{"a limit that was raised a moment ago on another host counts", raisedLimit, standIn},
	{"an unknown pool is refused immediately", unknownPool, standIn},
	{"a paused pool keeps its holders and its waiters", paused, everywhere},
	{"a closed pool keeps its waiters", closed, everywhere},
	{"a pool without a limit grants all and counts them", unlimited, everywhere},
	{"a lowered limit grants nothing until enough was released", lowered, everywhere},
	{"a raised limit grants those that wait", raised, everywhere},
	{"a limit takes effect where there was none", limited, everywhere},
	{"limits change under load and no claim is granted above them", limitsUnderLoad, everywhere},
	{"a new claim above the limit is refused and says so", impossible, everywhere},
	{"a claim that waits keeps waiting when the limit is lowered below it and others pass it", keepsWaiting, everywhere},
	{"a client that comes back within 10 s keeps waiting above a lowered limit and is refused later", comesBackAbove, standIn},
	{"a deleted pool refuses its waiters and keeps its holders", deleted, everywhere},
	{"a change keeps what it does not name", changeKeeps, everywhere},
	{"two operators do not undo each other's changes", conditions, everywhere},
	{"a declared pool is created with what declares it or compared", declared, everywhere},
	{"slots that can't be granted are refused when they are checked", checked, everywhere},
	{"a slot that can't be read closes its pool and no other and is named", damaged(slotValue), everywhere},
	{"a spec that can't be read closes its pool and no other and is named", damaged(specValue), everywhere},
	{"a spec that can't be read is not overwritten", damagedSpec, everywhere},
	{"a waiting claim that can't be read blocks nobody", damagedWaiter, everywhere},
	{"names of pools that are not in use are forgotten", forgetsNames, alone},
	{"HasPool is at most a second old and true while nothing is known", hasPool, standIn},
}

func newPool(w world) {
	one := w.host("one")
	one.by.Freeze()
	limit := 1
	if _, err := w.Set(w.ctx(), "db", pool.Change{Limit: &limit}); err != nil {
		w.Fatal(err)
	}
	a := one.ask("a", slots(1), wait(0))
	w.pass(100 * time.Millisecond)
	one.by.Thaw()
	one.release(a.got())
}

func raisedLimit(w world) {
	w.pool("db", 1)
	one := w.host("one")
	one.release(one.take("a", slots(1)))
	one.by.Freeze()
	limit := 5
	if _, err := w.Set(w.ctx(), "db", pool.Change{Limit: &limit}); err != nil {
		w.Fatal(err)
	}
	a := one.ask("b", slots(5), wait(0))
	w.pass(100 * time.Millisecond)
	one.by.Thaw()
	one.release(a.got())
	one.refuses(problem.ExceedsLimit, "c", slots(6))
}

func unknownPool(w world) {
	one := w.host("one")
	one.by.Freeze()
	a := one.ask("a", slots(1), wait(time.Minute))
	a.refused(problem.PoolNotFound)
	if a.took > time.Second {
		w.Errorf("it was refused after %s", a.took)
	}
	one.by.Thaw()
}

func paused(w world) {
	w.pool("db", 2)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	w.pause("db", true)
	if p := two.refuses(problem.NoCapacity, "hasty", slots(1)); !strings.Contains(p.Message, "pool 'db' is paused") {
		w.Errorf("the refusal says %q", p.Message)
	}
	a := two.queued("a", slots(1))
	b := one.queued("b", slots(1), priority(5))
	one.release(held)
	w.rest(3 * time.Second)
	a.still()
	b.still()
	w.pause("db", false)
	two.release(a.got())
	one.release(b.got())
	w.empty()
}

func closed(w world) {
	w.pool("db", pool.Closed)
	one := w.host("one")
	if p := one.refuses(problem.NoCapacity, "hasty", slots(1)); !strings.Contains(p.Message, "pool 'db' is closed") {
		w.Errorf("the refusal says %q", p.Message)
	}
	a := one.queued("a", slots(2))
	w.rest(3 * time.Second)
	a.still()
	w.pool("db", 2)
	one.release(a.got())
	w.empty()
}

func unlimited(w world) {
	w.pool("db", pool.Unlimited)
	one, two := w.host("one"), w.host("two")
	var all []*pool.Claim
	for i := range 20 {
		h := []*host{one, two}[i%2]
		all = append(all, h.take(fmt.Sprint("c", i), slots(1+100*i)))
	}
	w.wantUsed("db", 20+100*190)
	for i, c := range all {
		[]*host{one, two}[i%2].release(c)
	}
	w.empty()
}

func lowered(w world) {
	w.pool("db", 5)
	one, two := w.host("one"), w.host("two")
	var all []*pool.Claim
	for i := range 5 {
		all = append(all, one.take(fmt.Sprint("c", i), slots(1)))
	}
	w.pool("db", 2)
	if d, err := two.Pool(w.ctx(), "db"); err != nil || d.Claimed != 5 || d.Limit != 2 {
		w.Errorf("the pool is %+v, %v", d.Status, err)
	}
	a := two.queued("a", slots(1))
	for _, c := range all[:3] {
		one.release(c)
		w.rest(time.Second)
		a.still()
		two.refuses(problem.NoCapacity, "hasty", slots(1))
	}
	one.release(all[3])
	c := a.got()
	w.wantUsed("db", 2)
	one.release(all[4])
	two.release(c)
	w.empty()
}

func raised(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	a, b := one.queued("a", slots(1)), two.queued("b", slots(1))
	w.pool("db", 3)
	one.release(held, a.got())
	two.release(b.got())
	w.empty()
}

func limited(w world) {
	w.pool("db", pool.Unlimited)
	one, two := w.host("one"), w.host("two")
	big, small := one.take("big", slots(90)), two.take("small", slots(3))
	w.pool("db", 5)
	two.refuses(problem.NoCapacity, "hasty", slots(1))
	a := two.queued("a", slots(2))
	two.release(small)
	w.rest(time.Second)
	a.still()
	one.release(big)
	two.release(a.got())
	w.pool("db", pool.Unlimited)
	one.release(one.take("big", slots(90)))
	w.empty()
}

func limitsUnderLoad(w world) {
	w.pool("db", 4)
	var done []chan struct{}
	stop := make(chan struct{})
	for i := range 2 {
		h := w.host(fmt.Sprint("h", i))
		for n := range 4 {
			end := make(chan struct{})
			done = append(done, end)
			go func() {
				defer close(end)
				for r := 0; ; r++ {
					select {
					case <-stop:
						return
					default:
					}
					c, err := h.Claim(w.ctx(), request(fmt.Sprintf("%d-%d-%d", i, n, r), slots(1)))
					if err == nil {
						<-time.After(2 * time.Millisecond)
						err = h.Release(w.ctx(), c)
					}
					if err != nil {
						w.Error(err)
						return
					}
				}
			}()
		}
	}
	for _, limit := range []int{2, 6, 1, pool.Unlimited, 3, 4} {
		if _, err := w.Set(w.ctx(), "db", pool.Change{Limit: &limit}); err != nil {
			w.Fatal(err)
		}
		for range 5 {
			<-time.After(10 * time.Millisecond)
			w.sound()
		}
	}
	close(stop)
	for _, end := range done {
		<-end
	}
	w.empty()
}

func impossible(w world) {
	w.pool("db", 2)
	w.pool("api", 2)
	one := w.host("one")
	p := one.refuses(problem.ExceedsLimit, "a", slots(3))
	if p.Field != "pools.db" || !strings.Contains(p.Message, "limit is 2") {
		w.Errorf("%q of field %q", p.Message, p.Field)
	}
	if a := one.ask("b", map[string]int{"db": 1, "api": 3}); a.refused(problem.ExceedsLimit).Field != "pools.api" {
		w.Error("the field is not that of the pool")
	}
	w.becomesQueue()
}

func keepsWaiting(w world) {
	w.pool("db", 3, reserveAfter(0))
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(3))
	wide := two.queued("wide", slots(3))
	w.pool("db", 2, reserveAfter(0))
	one.refuses(problem.ExceedsLimit, "new", slots(3))
	narrow := one.queued("narrow", slots(2))
	one.release(held)
	one.release(narrow.got())
	wide.still()
	w.pool("db", 3, reserveAfter(0))
	two.release(wide.got())
	w.empty()
}

func comesBackAbove(w world) {
	w.pool("db", 3)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(3))
	wide := two.queued("wide", slots(3))
	w.pool("db", 2)
	wide.hangUp()
	w.pass(2 * time.Second)
	wide = two.queued("wide", slots(3))
	wide.hangUp()
	w.pass(11 * time.Second)
	two.ask("wide", slots(3)).refused(problem.ExceedsLimit)
	one.release(held)
	w.empty()
}

func deleted(w world) {
	w.pool("db", 1)
	one, two := w.host("one"), w.host("two")
	held := one.take("held", slots(1))
	a := two.queued("a", slots(1))
	if _, err := w.Delete(w.ctx(), "db", nil); err != nil {
		w.Fatal(err)
	}
	a.refused(problem.PoolNotFound)
	w.held(held)
	if d, err := w.read().Pool("db"); err != nil || !d.Deleted || d.Claimed != 1 {
		w.Errorf("the pool is %+v, %v", d.Status, err)
	}
	w.caughtUp()
	one.refuses(problem.PoolNotFound, "b", slots(1))
	one.release(held)
	w.empty()
	if _, err := w.read().Pool("db"); problem.CodeOf(err) != problem.PoolNotFound {
		w.Errorf("the pool is there: %v", err)
	}
	_, err := w.Delete(w.ctx(), "db", nil)
	w.problem(err, problem.PoolNotFound)
}

func changeKeeps(w world) {
	w.pool("db", 3, leaseFor(time.Minute), reserveAfter(7*time.Second))
	put, err := w.Change(w.ctx(), "db", pool.Change{Limit: new(4)})
	w.must(err)
	w.same("it is changed to", put, pool.Put{
		Spec: pool.Spec{Limit: 4, LeaseDuration: time.Minute, ReserveAfter: 7 * time.Second}, Revision: put.Revision,
	})
	put, err = w.Change(w.ctx(), "db", pool.Change{Limit: new(4), Replace: true})
	w.must(err)
	w.same("it is replaced by", put.Spec.LeaseDuration, pool.DefaultLeaseDuration)
	_, err = w.Change(w.ctx(), "no", pool.Change{Limit: new(4)})
	w.problem(err, problem.PoolNotFound)
	_, err = w.Set(w.ctx(), "new", pool.Change{})
	w.problem(err, problem.Invalid)
	_, err = w.Set(w.ctx(), "db", pool.Change{Limit: new(pool.MaxLimit + 1)})
	w.problem(err, problem.Invalid)
}

func conditions(w world) {
	w.pool("db", 1)
	at := w.read().Pools()[0].SpecRevision
	changed := errors.New("it has changed")
	only := func(revision int64) store.Condition {
		return func(now int64) error {
			if now != revision {
				return changed
			}
			return nil
		}
	}
	if _, err := w.Set(w.ctx(), "db", pool.Change{Limit: new(2), If: only(at)}); err != nil {
		w.Fatal(err)
	}
	_, err := w.Set(w.ctx(), "db", pool.Change{Limit: new(3), If: only(at)})
	w.errIs(err, changed)
	_, err = w.Delete(w.ctx(), "db", only(at))
	w.errIs(err, changed)
	if got := w.read().Pools()[0]; got.Limit != 2 {
		w.Errorf("the limit is %d", got.Limit)
	}
}

func declared(w world) {
	compare, create, err := w.Declare(w.ctx(), "db", 3)
	if err != nil || create == nil {
		w.Fatalf("%v, %v", create, err)
	}
	if _, err := store.Commit(w.ctx(), w.etcd.any, append([]*pb.Compare{}, compare), create); err != nil {
		w.Fatal(err)
	}
	w.host("one").take("a", slots(3))
	if _, create, err = w.Declare(w.ctx(), "db", 3); err != nil || create != nil {
		w.Errorf("%v, %v", create, err)
	}
	_, _, err = w.Declare(w.ctx(), "db", 4)
	var other *pool.OtherLimitError
	if !errors.As(err, &other) || other.Pool != "db" || other.Declared != 4 || other.Limit != 3 {
		w.Errorf("another limit: %v", err)
	}
}

func checked(w world) {
	w.pool("db", 2)
	if err := w.Check(w.ctx(), slots(2)); err != nil {
		w.Error(err)
	}
	w.problem(w.Check(w.ctx(), slots(3)), problem.ExceedsLimit)
	w.problem(w.Check(w.ctx(), map[string]int{"no": 1}), problem.PoolNotFound)
}

// damaged returns a behavior in which a value of a pool can't be read.
func damaged(what value) func(w world) {
	return func(w world) {
		w.pool("db", 2)
		w.pool("api", 1)
		one, two := w.host("one"), w.host("two")
		held := one.take("held", slots(1))
		wide := two.queued("wide", slots(2))
		key := w.damage("db", what)
		for _, h := range []*host{one, two} {
			w.eventually(h.name+" refuses and names the key", func() bool { return refusesNaming(h, key) })
		}
		d, err := w.read().Pool("db")
		w.must(err)
		if !strings.Contains(d.Problem, key) {
			w.Errorf("the pool says %q", d.Problem)
		}
		two.release(two.take("other", map[string]int{"api": 1}))
		w.held(held)
		one.release(held)
		w.rest(3 * time.Second)
		if wide.answered() && (wide.claim != nil || !strings.Contains(wide.err.Error(), key)) { // it may be refused
			w.Errorf("a waiting claim was granted, or refused with %v", wide.err)
		}
		w.txn(store.Delete(key))
		if what == specValue {
			w.pool("db", 2)
		}
		if <-time.After(10 * time.Millisecond); !wide.answered() {
			wide.cancel()
		}
		if <-wide.done; wide.err == nil {
			two.release(wide.claim)
		}
		w.eventually("the pool grants again", func() bool {
			c, err := two.Claim(w.ctx(), request("again", slots(2), wait(0)))
			if err == nil {
				two.release(c)
			}
			return err == nil
		})
		w.empty()
	}
}

// refusesNaming reports whether a host refuses a claim and names a key.
func refusesNaming(h *host, key string) bool {
	h.w.Helper()
	c, err := h.Claim(h.w.ctx(), request("refused", slots(1), wait(0)))
	if c != nil {
		h.release(c)
		return false
	}
	return problem.CodeOf(err) == problem.CorruptValue && strings.Contains(err.Error(), key)
}

func damagedSpec(w world) {
	w.pool("db", 2)
	key := w.damage("db", specValue)
	for _, ch := range []pool.Change{{Limit: new(3)}, {Paused: new(true)}, {Limit: new(3), Replace: true}} {
		_, err := w.Set(w.ctx(), "db", ch)
		if p := w.problem(err, problem.CorruptValue); !strings.Contains(p.Error(), key) {
			w.Errorf("the refusal is %q", p.Error())
		}
	}
	_, err := w.Delete(w.ctx(), "db", nil)
	w.must(err)
	w.pool("db", 2)
	w.host("one").take("a", slots(2))
}

func damagedWaiter(w world) {
	w.pool("db", 1)
	one := w.host("one")
	a := one.take("a", slots(1))
	key := w.damage("db", waiterValue)
	b := one.ask("b", slots(1))
	w.rest(time.Second)
	one.release(a)
	one.release(b.got())
	if all := w.read().Verify(); len(all) == 0 || all[0].Key != key {
		w.Errorf("it is not found: %v", all)
	}
	w.txn(store.Delete(key))
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what has finalizers takes two
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func forgetsNames(w world) {
	const names, perName = 2000, 100
	w.pool("db", 2)
	one := w.host("one")
	unknown := func(i int) map[string]int {
		return map[string]int{fmt.Sprintf("a-pool-that-nobody-has-created-%06d", i): 1}
	}
	one.refuses(problem.PoolNotFound, "a", unknown(0))
	w.pass(3 * time.Minute)
	before := heap()
	ctx := w.ctx() // one for all: those of a test are kept until its end
	for i := range names {
		one.HasPool("task." + fmt.Sprint(i))
		_, err := one.Claim(ctx, request("a", unknown(i), wait(0)))
		w.problem(err, problem.PoolNotFound)
	}
	w.pass(3 * time.Minute)
	one.release(one.take("a", slots(1)))
	if more := heap() - before; more > names*perName {
		w.Errorf("%d bytes are kept of %d names", more, names)
	}
}

func hasPool(w world) {
	w.pool("db", 1)
	cut := w.host("cut", down)
	if !cut.HasPool("db") || !cut.HasPool("no") {
		w.Error("a pool is said not to be there though etcd has never answered")
	}
	one := w.host("one")
	one.HasPool("db")
	one.HasPool("task")
	w.pass(2 * time.Second)
	if one.HasPool("task") {
		w.Error("an unknown pool is said to be there")
	}
	w.pool("task", 1)
	w.pass(1100 * time.Millisecond)
	one.HasPool("task")
	w.pass(1100 * time.Millisecond)
	if !one.HasPool("task") {
		w.Error("a pool that is a second old is said not to be there")
	}
	one.by.Down()
	w.pass(5 * time.Second)
	if !one.HasPool("task") {
		w.Error("a known pool is said not to be there while etcd is away")
	}
}
