package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/owner"
	"github.com/berthhq/berth/pool/wire"
)

// refusal asks for a claim that is refused, and returns why.
func refusal(t *testing.T, e *Engine, code problem.Code, r *pool.Request) *problem.Error {
	t.Helper()
	_, err := e.Claim(t.Context(), r)
	if err == nil || problem.CodeOf(err) != code {
		t.Fatalf("%s: %v, want %s", r.ID, err, code)
	}
	return problem.Of(err)
}

// A wait that has timed out says what it waited for: its position among the claims of all hosts, the holders, and who dispatches.
func TestATimeoutSaysWhatTheClaimWaitedFor(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 3)
	a := request("a")
	a.Slots, a.Holder = map[string]int{"db": 2}, pool.Holder{Run: "nightly", Step: "load"}
	claim(t, engines[0], a)
	claim(t, engines[1], request("b"))
	waits(t, engines[1], request("first"))
	engines[0].Changed(1)
	late := request("late")
	late.Slots, late.Wait = map[string]int{"db": 2}, 300*time.Millisecond
	p := refusal(t, engines[0], problem.ClaimTimeout, late)
	got, ok := p.Detail.(pool.Reason)
	if !ok || p.Message != "timed out after 300ms: "+got.Text {
		t.Fatalf("%q with %+v", p.Message, p.Detail)
	}
	want := pool.Reason{
		Text: "pool 'db' full (3/3 slots)", Position: 2, Waiting: 2,
		Pools: []pool.Shortage{{
			Pool: "db", Wanted: 2, Limit: 3, Claimed: 3, Short: 2,
			Holders: []pool.HolderRef{
				{Claim: "a", Host: "host-0", Run: "nightly", Step: "load", Slots: 2},
				{Claim: "b", Host: "host-1", Slots: 1},
			},
		}},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(pool.Reason{}, "Since", "Dispatcher")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !strings.HasSuffix(got.Dispatcher, "/i") || time.Since(got.Since) > time.Minute {
		t.Errorf("dispatcher %q, since %s", got.Dispatcher, got.Since)
	}
}

// A claim that does not wait is refused with one sentence about what is in its way.
func TestRefusalsSayWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 2)
	e := engines[0]
	for name, limit := range map[string]int{"full": 2, "tight": 3, "closed": pool.Closed, "free": 1} {
		spec(t, b, keys, name, limit)
	}
	s := pool.DefaultSpec()
	s.Limit, s.Paused = 2, true
	if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Spec("paused"), wire.EncodeSpec(s, 0), 0)); err != nil {
		t.Fatal(err)
	}
	a := request("a")
	a.Slots = map[string]int{"full": 2, "tight": 2}
	claim(t, e, a)
	for _, tc := range []struct {
		slots map[string]int
		text  string
		pools int
	}{
		{map[string]int{"full": 1}, "pool 'full' full (2/2 slots)", 1},
		{map[string]int{"tight": 2}, "pool 'tight' has too few free slots (2/3 slots, 2 wanted)", 1},
		{map[string]int{"full": 1, "tight": 3, "free": 1}, "pools full: 'full' (2/2 slots), 'tight' (2/3 slots)", 2},
		{map[string]int{"closed": 1}, "pool 'closed' is closed", 1},
		{map[string]int{"paused": 1}, "pool 'paused' is paused", 1},
	} {
		p := refusal(t, e, problem.NoCapacity, &pool.Request{ID: "b", Slots: tc.slots})
		r, ok := p.Detail.(pool.Reason)
		if !ok || r.Text != tc.text || len(r.Pools) != tc.pools || p.Message != r.Text {
			t.Errorf("%v: %q with %q of %d pools, want %q", tc.slots, p.Message, r.Text, len(r.Pools), tc.text)
		}
	}
	if p := refusal(t, e, problem.ExceedsLimit, &pool.Request{ID: "b", Slots: map[string]int{"full": 3}}); p.Field != "pools.full" || p.Message != "pool 'full' can never grant 3 slots: its limit is 2" {
		t.Errorf("%q of field %q", p.Message, p.Field)
	}
	if p := refusal(t, e, problem.PoolNotFound, &pool.Request{ID: "b", Slots: map[string]int{"full": 1, "none": 1}}); p.Message != pool.NoSuchPool("none").Message {
		t.Error(p.Message)
	}
}

// What an owner knows is a reason without numbers.
func TestKnownReasons(t *testing.T) {
	for _, tc := range []struct {
		why   owner.Why
		short []string
		want  string
	}{
		{owner.Full, []string{"a"}, "pool 'a' full"},
		{owner.Full, []string{"a", "b"}, "pools full: 'a', 'b'"},
		{owner.Closed, []string{"a"}, "pool 'a' is closed"},
		{owner.Paused, []string{"a"}, "pool 'a' is paused"},
		{owner.Pending, []string{"a"}, "waiting its turn"},
		{owner.Full, nil, "waiting its turn"},
	} {
		if got := knownReason(tc.short, tc.why); got != tc.want {
			t.Errorf("%s of %v: %q, want %q", tc.why, tc.short, got, tc.want)
		}
	}
}

// A refusal because of a spec is never of an older spec than the one in etcd: a pool that another host has just created is
// there, and so is a limit that it has just raised or lowered.
func TestSpecsAreReadBeforeTheyRefuse(t *testing.T) {
	t.Parallel()
	engines, b, keys := hosts(t, 1, 1)
	e := engines[0]
	for i := range 20 {
		name := fmt.Sprint("new-", i)
		one, two := request(fmt.Sprint("one-", i)), request(fmt.Sprint("two-", i))
		one.Slots, two.Slots = map[string]int{name: 1}, map[string]int{name: 2}
		refusal(t, e, problem.PoolNotFound, one)
		spec(t, b, keys, name, 1)
		release(t, e, claim(t, e, one))
		refusal(t, e, problem.ExceedsLimit, two)
		spec(t, b, keys, name, 2)
		release(t, e, claim(t, e, two))
		spec(t, b, keys, name, 1)
		refusal(t, e, problem.ExceedsLimit, two)
		if _, err := store.Commit(t.Context(), b, nil, store.Delete(keys.Spec(name))); err != nil {
			t.Fatal(err)
		}
		refusal(t, e, problem.PoolNotFound, one)
	}
}

// observer records what it is notified of.
type observer struct {
	mu      sync.Mutex
	waits   int
	written []pool.Write
}

func (o *observer) Waits(time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits++
}

func (o *observer) waited() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waits > 0
}

func (o *observer) Written(w pool.Write) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written = append(o.written, w)
}

func TestObserversSeeTheWriteOfTheirClaim(t *testing.T) {
	t.Parallel()
	engines, _, _ := hosts(t, 2, 1)
	e := engines[0]
	check := func(o *observer, c *pool.Claim, waits bool) {
		t.Helper()
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.written) != 1 || (o.waits > 0) != waits {
			t.Fatalf("%+v was written, it waited %d times", o.written, o.waits)
		}
		w := o.written[0]
		if w.Revision != c.Fence.Revision() || w.Grants != 1 || len(w.Observers) != 1 || w.Observers[0] != o || w.Answered.Before(w.Sent) {
			t.Errorf("%+v", w)
		}
	}
	first, second := request("first"), request("second")
	a, b := &observer{}, &observer{}
	first.Observer, second.Observer = a, b
	c := claim(t, e, first)
	check(a, c, false)
	got := make(chan *pool.Claim, 1)
	go func() {
		c, err := e.Claim(t.Context(), second)
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	for !b.waited() {
		runtime.Gosched()
	}
	release(t, e, c)
	check(b, <-got, true)
}
