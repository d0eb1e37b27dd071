package claims

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/revoke"
)

// The claims of a desk are made by the owner.
var (
	owner       = Caller{Name: "unauthenticated", May: func(map[string]int) error { return errNeighbor }}
	operator    = Caller{Name: "user:op", May: func(map[string]int) error { return nil }}
	neighbor    = Caller{Name: "user:other", May: owner.May}
	errNeighbor = problem.New(problem.Forbidden, "it is another's")
)

// bound makes a claim that is bound to a process. It has no holder yet.
func (d *desk) bound(id string, ttl time.Duration) (*instance.Claim, Binding, *orphan) {
	d.t.Helper()
	x := newOrphan(d.t)
	bind, err := BindingOf(Life{PID: x.cmd.Process.Pid, TTL: &ttl})
	if err != nil {
		d.t.Fatal(err)
	}
	bind = bind.To(d.open(x))
	claim, err := d.client.Claim(d.t.Context(), instance.Slots{"db": 1}, instance.WithID(id), instance.WithBind(bind.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	return claim, bind, x
}

// open watches a process.
func (d *desk) open(x *orphan) *proc.Process {
	d.t.Helper()
	p, err := d.procs.Open(x.cmd.Process.Pid)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(p.Close)
	return p
}

// blind returns a watcher that can't watch any more.
func blind(t *testing.T) *proc.Watcher {
	t.Helper()
	w, err := proc.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w
}

// holds wants the slots of so many claims to be taken.
func (d *desk) holds(want int) {
	d.t.Helper()
	d.tasks.Wait()
	p, err := d.client.Pool(d.t.Context(), "db")
	if err != nil {
		d.t.Fatal(err)
	}
	if p.Claimed != want {
		d.t.Errorf("%d slots are taken, want %d", p.Claimed, want)
	}
}

func TestAReleaseStopsTheProcessUnlessItIsTheOwners(t *testing.T) {
	d := newDesk(t, "")
	for _, id := range []string{"own", "others"} {
		claim, bind, x := d.bound(id, 0)
		d.Add(claim, bind, d.open(x))
		release := func() (bool, error) { return d.Release(t.Context(), owner, id, 0) }
		if id == "others" {
			release = func() (bool, error) { return d.Release(t.Context(), operator, id, 0) }
		}
		if found, err := release(); !found || err != nil {
			t.Errorf("%s: %t, %v", id, found, err)
		}
		d.holds(0)
		if id == "own" {
			x.unharmed()
		} else {
			x.endedBy(syscall.SIGTERM)
		}
	}
	if found, err := d.Release(t.Context(), operator, "others", 0); found || err != nil {
		t.Errorf("released again: %t, %v", found, err)
	}
	_, _, err := d.Find(owner, "others")
	if problem.CodeOf(err) != problem.ClaimRevoked {
		t.Errorf("its owner learns %v", err)
	}
	d.ask("free", time.Hour, true)
	if found, err := d.Release(t.Context(), operator, "free", 0); !found || err != nil {
		t.Errorf("without a process: %t, %v", found, err)
	}
	d.holds(0)
}

func TestAClaimIsItsOwnersAlone(t *testing.T) {
	d := newDesk(t, t.TempDir())
	claim, bind, x := d.bound("mine", 0)
	d.Add(claim, bind, d.open(x))
	other := newOrphan(t)
	asks := map[string]func(c Caller) error{
		"a read": func(c Caller) error {
			_, refused, err := d.Find(c, "mine")
			if refused {
				return err
			}
			return nil
		},
		"a renewal": func(c Caller) error { _, err := d.Renew(c, "mine", 0, Life{}, nil); return err },
		"a binding": func(c Caller) error {
			_, err := d.Renew(c, "mine", 0, Life{PID: other.cmd.Process.Pid, UID: uint32(os.Geteuid())}, d.open(other))
			return err
		},
		"a release": func(c Caller) error { _, err := d.Release(t.Context(), c, "mine", 0); return err },
	}
	for what, ask := range asks {
		if err := ask(neighbor); problem.CodeOf(err) != errNeighbor.Code || !strings.HasSuffix(err.Error(), errNeighbor.Message) {
			t.Errorf("%s by another: %v", what, err)
		}
	}
	if err := asks["a binding"](operator); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an operator has bound it to another process: %v", err)
	}
	d.holds(1)
	for _, what := range []string{"a read", "a renewal", "a binding"} {
		if err := asks[what](owner); err != nil {
			t.Errorf("%s by its owner: %v", what, err)
		}
	}
	if _, err := d.Release(t.Context(), operator, "mine", 0); err != nil {
		t.Error(err)
	}
	other.endedBy(syscall.SIGTERM)
	x.unharmed() // its owner has bound the claim to the other
	if err := asks["a read"](neighbor); problem.CodeOf(err) != errNeighbor.Code || !strings.HasSuffix(err.Error(), errNeighbor.Message) {
		t.Errorf("after its end: %v", err)
	}
	if err := asks["a read"](owner); err != nil {
		t.Errorf("its owner, after its end: %v", err)
	}
}

func TestAClientTokenProvesAClaimOfNobody(t *testing.T) {
	of := func(by, token string) pool.Holder {
		b, err := BindingOf(Life{ClientToken: token})
		if err != nil {
			t.Fatal(err)
		}
		return pool.Holder{ClaimedBy: by, Bind: b.Encode()}
	}
	for what, test := range map[string]struct {
		caller Caller
		of     pool.Holder
		owns   bool
	}{
		"the token":             {Caller{Name: "anonymous", ClientToken: "a"}, of("anonymous", "a"), true},
		"another token":         {Caller{Name: "anonymous", ClientToken: "b"}, of("anonymous", "a"), false},
		"the hash":              {Caller{Name: "anonymous", ClientToken: hashOf("a")}, of("anonymous", "a"), false},
		"no token":              {Caller{Name: "anonymous"}, of("anonymous", "a"), false},
		"no token, as recorded": {Caller{Name: "anonymous"}, of("anonymous", ""), false},
		"of a user":             {Caller{Name: "anonymous", ClientToken: "a"}, of("user:a", "a"), false},
		"by a user":             {Caller{Name: "user:a", ClientToken: "a"}, of("anonymous", "a"), false},
		"the user":              {Caller{Name: "user:a"}, of("user:a", "a"), true},
		"another user":          {Caller{Name: "user:b", ClientToken: "a"}, of("user:a", "a"), false},
		"not recorded":          {Caller{}, of("", ""), false},
		"a binding of another":  {Caller{Name: "anonymous", ClientToken: "a"}, pool.Holder{ClaimedBy: "anonymous", Bind: "executor"}, false},
	} {
		if got := test.caller.Owns(test.of); got != test.owns {
			t.Errorf("%s: %t", what, got)
		}
	}
}

// Other hosts may write to the records of claims in etcd: they could name any process there.
func TestAProcessThatEtcdAloneNamesIsNotSignaled(t *testing.T) {
	d := newDesk(t, t.TempDir())
	for _, saved := range []bool{false, true} {
		id := fmt.Sprintf("saved-%t", saved)
		claim, bind, x := d.bound(id, time.Minute)
		if saved {
			if err := d.files.save(id, claim.Fence(), bind, validity{}); err != nil {
				t.Fatal(err)
			}
		}
		d.Resume([]*instance.Claim{claim})
		if _, err := d.Renew(owner, id, 0, Life{TTL: new(2 * time.Minute)}, nil); err != nil { // it is recorded, now
			t.Error(err)
		}
		d.Leave()
		d.closed = false
		d.Resume([]*instance.Claim{claim})
		d.time.now += 3 * time.Minute // no one renews
		d.check()
		if saved {
			x.endedBy(syscall.SIGTERM)
			continue
		}
		d.time.now += time.Minute
		d.check()
		d.holds(1)
		x.unharmed()
	}
}

func TestAProcessThatItsClientNamesAgainIsSignaled(t *testing.T) {
	d := newDesk(t, t.TempDir())
	claim, bind, x := d.bound("job", time.Minute)
	d.Resume([]*instance.Claim{claim})
	h := d.Add(claim, bind, d.open(x)) // a repeated request, since the answer was lost
	if err := d.Record(h); err != nil {
		t.Fatal(err)
	}
	d.time.now += 2 * time.Minute // no one renews
	d.check()
	x.endedBy(syscall.SIGTERM)
}

// TestAProcessThatCannotBeSeenKeepsItsSlots takes claims over whose processes may live.
func TestAProcessThatCannotBeSeenKeepsItsSlots(t *testing.T) {
	d := newDesk(t, t.TempDir())
	procs := d.procs
	resume := func(id string, by *proc.Watcher, change func(*Binding)) *orphan {
		t.Helper()
		claim, bind, x := d.bound(id, time.Minute)
		change(&bind)
		if err := d.files.save(id, claim.Fence(), bind, validity{}); err != nil {
			t.Fatal(err)
		}
		d.procs = by
		d.Resume([]*instance.Claim{claim})
		d.procs = procs
		return x
	}
	elsewhere := func(b *Binding) { b.proc.Namespace++ }
	hidden := resume("hidden", procs, elsewhere)
	forced := resume("forced", procs, elsewhere)
	rebound := resume("rebound", procs, elsewhere)
	seen := resume("seen", blind(t), func(*Binding) {})
	if _, err := d.Renew(owner, "rebound", 0, Life{PID: rebound.cmd.Process.Pid}, d.open(rebound)); err != nil {
		t.Error(err)
	}
	d.time.now += 2 * time.Minute // no one renews
	d.procs = blind(t)
	for range 3 {
		d.check()
	}
	d.holds(4)
	for _, id := range []string{"hidden", "forced", "seen"} {
		if _, err := d.Renew(owner, id, 0, Life{}, nil); problem.CodeOf(err) != problem.ClaimLost {
			t.Errorf("%s: %v", id, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.Release(ctx, operator, "hidden", 0); err == nil {
		t.Error("it was released by another than its owner")
	}
	d.procs = procs
	d.check()
	seen.endedBy(syscall.SIGTERM)
	for d.Count() > 3 {
		<-time.After(time.Millisecond)
	}
	d.holds(3)
	if found, err := d.Release(t.Context(), owner, "hidden", 0); !found || err != nil { // its owner knows
		t.Errorf("%t, %v", found, err)
	}
	d.holds(2)
	h, err := d.client.Lookup(t.Context(), "forced")
	if err != nil {
		t.Fatal(err)
	}
	admin := revoke.Revoker{}
	admin.Backend, admin.Keys = d.client.Store()
	if _, err := admin.Revoke(t.Context(), "forced", true); err != nil {
		t.Fatal(err)
	}
	for !h.Freed() {
		<-time.After(time.Millisecond)
	}
	d.check()
	d.holds(1)
	if n := d.Count(); n != 1 {
		t.Errorf("%d claims have holders", n)
	}
	hidden.unharmed()
	forced.unharmed()
}
