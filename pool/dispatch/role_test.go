package dispatch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

var (
	roleKeys = wire.Keys{Keys: store.NewKeys("/b/")}
	noon     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

// bench is one instance, whose etcd is a table of two keys.
type bench struct {
	*Succession
	t    *testing.T
	etcd *storetest.Etcd
	now  time.Duration
	// mutate, if it is not nil, changes the machine before each call.
	mutate func(*Succession)
}

const testHash = 5_000 // half of each spread

func newBench(t *testing.T, kind wire.Kind) *bench {
	b := &bench{NewSuccession(roleKeys, "a", "i", kind), t, storetest.New(storetest.Options{}), 100 * sec, nil}
	b.hash = testHash
	lease, _, _ := b.etcd.Grant(time.Hour)
	b.own.Lease = lease
	return b
}

func (b *bench) set(change func(*Instance)) *bench {
	own := b.own
	change(&own)
	b.Set(b.now, own)
	return b
}

func (b *bench) waits() *bench { return b.set(func(i *Instance) { i.Demands = true }) }

func (b *bench) carry(t *pb.TxnRequest) *pb.TxnResponse {
	b.t.Helper()
	resp, err := b.etcd.Txn(t)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

// put has another process put a key.
func (b *bench) put(key string, value []byte) *bench {
	b.carry(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, value, 0)}})
	return b
}

func (b *bench) other(kind wire.Kind, change func(*wire.Role)) *bench {
	r := wire.Role{Host: "z", Instance: "i", Kind: kind, Since: noon}
	if change != nil {
		change(&r)
	}
	return b.put(roleKeys.Role(), wire.EncodeRole(r))
}

func (b *bench) mark(demands bool) *bench {
	return b.put(roleKeys.Mark(), wire.EncodeMark(wire.Mark{Demands: demands}))
}

func (b *bench) key(key string) *mvccpb.KeyValue {
	for kv := range b.etcd.All(key) {
		return kv
	}
	return nil
}

// poll shows both keys, with an answer that took a time.
func (b *bench) poll(took time.Duration) *bench {
	sent := b.now
	b.now += took
	b.Polled(b.now, sent, b.etcd.Revision(), b.key(roleKeys.Role()), b.key(roleKeys.Mark()))
	return b
}

func (b *bench) wall() time.Time { return noon.Add(b.now) }

func (b *bench) ready() Ready {
	if b.mutate != nil {
		b.mutate(b.Succession)
	}
	return b.Ready(b.now, b.wall())
}

// takes has time pass, with a poll whenever one is asked for, until the role is taken; never if it takes longer than a time.
func (b *bench) takes(most time.Duration) time.Duration {
	b.t.Helper()
	from := b.now
	for b.now-from <= most {
		r := b.ready()
		switch {
		case r.Txn != nil:
			b.answer(r.Txn)
			return b.now - from
		case r.Poll:
			b.poll(0)
		case r.At <= b.now:
			b.t.Fatalf("the next call is due at %v, now is %v", r.At, b.now)
		case r.At == never:
			return never
		default:
			b.now = r.At
		}
	}
	return never
}

func (b *bench) answer(t *pb.TxnRequest) { b.Answer(b.now, b.carry(t), nil) }

// dispatches has the instance take the role.
func (b *bench) dispatches() *bench {
	b.t.Helper()
	b.poll(0)
	b.takes(sec)
	if b.ready().Role == 0 {
		b.t.Fatal("it does not dispatch")
	}
	return b
}

// roleRow is a situation, and after which time the role is taken in it.
type roleRow struct {
	kind    wire.Kind
	prepare func(*bench)
	want    time.Duration
}

func roleRows() map[string]roleRow {
	silent := func(n int) func(*wire.Role) {
		return func(r *wire.Role) {
			for i := range n {
				r.TakeOvers = append(r.TakeOvers, noon.Add(time.Duration(70+i)*sec))
			}
		}
	}
	leads := func(i *Instance) { i.Leads = true }
	ends := func(host string) func(*wire.Role) {
		return func(r *wire.Role) {
			r.Ends = true
			if host != "" {
				r.NextHost, r.NextInstance = host, "i"
			}
		}
	}
	return map[string]roleRow{
		"no role: a command":                    {wire.Command, func(b *bench) { b.waits() }, 30 * ms},
		"no role: a service":                    {wire.Service, func(b *bench) { b.waits() }, 15 * ms},
		"no role: a server":                     {wire.Server, func(b *bench) { b.waits() }, 0},
		"no role: a standby coordinator":        {wire.Coordinator, func(b *bench) { b.waits() }, 0},
		"no role, no demands":                   {wire.Server, func(b *bench) {}, never},
		"no role, no demands: a standby":        {wire.Coordinator, func(b *bench) {}, never},
		"no role, no demands: a leader":         {wire.Coordinator, func(b *bench) { b.set(leads) }, 0},
		"the leader takes it from a leader":     {wire.Coordinator, func(b *bench) { b.set(leads).other(wire.Coordinator, nil) }, 0},
		"the leader takes it from a server":     {wire.Coordinator, func(b *bench) { b.set(leads).other(wire.Server, nil) }, 0},
		"the leader takes one it can't read":    {wire.Coordinator, func(b *bench) { b.set(leads).put(roleKeys.Role(), []byte("{")) }, 0},
		"a standby takes it from a service":     {wire.Coordinator, func(b *bench) { b.other(wire.Service, nil) }, 0},
		"a server takes it from a service":      {wire.Server, func(b *bench) { b.waits().other(wire.Service, nil).mark(true) }, 0},
		"a server leaves it to a server":        {wire.Server, func(b *bench) { b.waits().other(wire.Server, nil).mark(true) }, 2250 * ms},
		"a server leaves it to a coordinator":   {wire.Server, func(b *bench) { b.waits().other(wire.Coordinator, nil).mark(true) }, 2250 * ms},
		"a service takes it from a command":     {wire.Service, func(b *bench) { b.waits().other(wire.Command, nil).mark(true) }, 0},
		"a service without demands does not":    {wire.Service, func(b *bench) { b.other(wire.Command, nil).mark(true) }, never},
		"a command leaves it to a command":      {wire.Command, func(b *bench) { b.waits().other(wire.Command, nil).mark(true) }, 2250 * ms},
		"silent: a standby":                     {wire.Coordinator, func(b *bench) { b.other(wire.Coordinator, nil).mark(true) }, 2 * sec},
		"silent after a take-over":              {wire.Service, func(b *bench) { b.waits().other(wire.Server, silent(1)).mark(true) }, 4250 * ms},
		"silent after two take-overs":           {wire.Service, func(b *bench) { b.waits().other(wire.Server, silent(2)).mark(true) }, 8250 * ms},
		"silent after three take-overs":         {wire.Service, func(b *bench) { b.waits().other(wire.Server, silent(3)).mark(true) }, 16250 * ms},
		"silent after ten take-overs":           {wire.Service, func(b *bench) { b.waits().other(wire.Server, silent(10)).mark(true) }, 24250 * ms},
		"without a mark: one who waits":         {wire.Service, func(b *bench) { b.waits().other(wire.Server, nil) }, 2250 * ms},
		"without a mark: a standby":             {wire.Coordinator, func(b *bench) { b.other(wire.Server, nil) }, never},
		"a mark without demands: one who waits": {wire.Service, func(b *bench) { b.waits().other(wire.Server, nil).mark(false) }, 2250 * ms},
		"a mark without demands: a standby":     {wire.Coordinator, func(b *bench) { b.other(wire.Server, nil).mark(false) }, never},
		"an unreadable mark":                    {wire.Coordinator, func(b *bench) { b.other(wire.Server, nil).put(roleKeys.Mark(), []byte("{")) }, 2 * sec},
		"an unreadable role":                    {wire.Server, func(b *bench) { b.waits().put(roleKeys.Role(), []byte("{")).mark(true) }, 2250 * ms},
		"an unreadable role without a mark":     {wire.Service, func(b *bench) { b.waits().put(roleKeys.Role(), nil) }, 2250 * ms},
		"its name, but not its put":             {wire.Command, func(b *bench) { b.waits().other(wire.Server, func(r *wire.Role) { r.Host = "a" }) }, 0},
		"it is named by one that ends":          {wire.Command, func(b *bench) { b.waits().other(wire.Server, ends("a")) }, 0},
		"it is named, and has no demands":       {wire.Command, func(b *bench) { b.other(wire.Server, ends("a")) }, never},
		"another one is named":                  {wire.Command, func(b *bench) { b.waits().other(wire.Server, ends("c")) }, 30 * ms},
		"nobody is named by one that ends":      {wire.Service, func(b *bench) { b.waits().other(wire.Server, ends("")) }, 15 * ms},
	}
}

func TestWhenTheRoleIsTaken(t *testing.T) {
	for name, tc := range roleRows() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.kind)
			b.put("/b/offers/c/i/1", nil)
			tc.prepare(b)
			b.poll(0)
			before := b.key(roleKeys.Role())
			if got := b.takes(100 * sec); got != tc.want {
				t.Fatalf("it takes the role after %v, want %v", got, tc.want)
			}
			if tc.want == never {
				return
			}
			r := b.ready()
			kv := b.key(roleKeys.Role())
			role, err := wire.DecodeRole("k", kv.Value)
			if r.Role != kv.ModRevision || err != nil || role.Host != "a" || kv.Lease != int64(b.own.Lease) {
				t.Errorf("it dispatches under %d, the key is %v, %v", r.Role, kv, err)
			}
			if before != nil && !r.Changed {
				t.Error("a change is not shown")
			}
			if b.key("/b/offers/") != nil || b.key(roleKeys.Mark()) != nil {
				t.Error("offers or the mark of the last dispatcher are there")
			}
			if forSilence := tc.want >= 2*sec; forSilence != (len(role.TakeOvers) > 0 && role.TakeOvers[len(role.TakeOvers)-1].Equal(role.Since)) {
				t.Errorf("taken for silence: %v, the key says %v since %v", forSilence, role.TakeOvers, role.Since)
			}
		})
	}
}

func TestEveryRuleOfTheTableIsNeeded(t *testing.T) {
	for row, mutate := range map[string]func(*Succession){
		"no role: a service":                    func(s *Succession) { s.kind = wire.Server },
		"no role: a command":                    func(s *Succession) { s.hash = 0 },
		"no role, no demands: a leader":         func(s *Succession) { s.own.Leads = false },
		"the leader takes it from a leader":     func(s *Succession) { s.own.Leads = false },
		"a server takes it from a service":      func(s *Succession) { s.sight.role.Kind = wire.Server },
		"a server leaves it to a coordinator":   func(s *Succession) { s.own.Leads = true },
		"a service without demands does not":    func(s *Succession) { s.kind = wire.Server },
		"silent: a standby":                     func(s *Succession) { s.kind = wire.Server },
		"silent after a take-over":              func(s *Succession) { s.sight.role.TakeOvers = nil },
		"a mark without demands: a standby":     func(s *Succession) { s.sight.demands = true },
		"an unreadable mark":                    func(s *Succession) { s.sight.demands = false },
		"an unreadable role":                    func(s *Succession) { s.sight.state = min(s.sight.state, absent) },
		"its name, but not its put":             func(s *Succession) { s.sight.role.Host = "b" },
		"it is named by one that ends":          func(s *Succession) { s.sight.role.NextHost = "" },
		"another one is named":                  func(s *Succession) { s.sight.role.Ends = false },
		"without a mark: one who waits":         func(s *Succession) { s.own.Demands = false },
		"a mark without demands: one who waits": func(s *Succession) { s.since = 101 * sec },
	} {
		tc := roleRows()[row]
		b := newBench(t, tc.kind)
		tc.prepare(b)
		b.poll(0)
		if b.mutate = mutate; b.takes(100*sec) == tc.want {
			t.Errorf("%s: nothing noticed that a rule is missing", row)
		}
	}
}

func TestAMarkIsASignOfLife(t *testing.T) {
	b := newBench(t, wire.Service).waits().other(wire.Server, nil)
	for range 20 {
		b.mark(true).poll(0)
		if got := b.takes(sec); got != never {
			t.Fatalf("the role was taken after %v", got)
		}
		b.now += sec - 1
	}
	b.carry(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(roleKeys.Mark())}})
	b.poll(0)
	if got := b.takes(5 * sec); got > 2*sec {
		t.Errorf("taken %v after the mark was deleted: that is no sign of life", got)
	}
}

// The dispatcher dies just after it has put the mark, at any time between two polls of the one that follows.
func TestASilentDispatcherIsReplacedInTime(t *testing.T) {
	for _, tc := range []struct {
		kind           wire.Kind
		interval, most time.Duration
	}{
		{wire.Service, 1500 * ms, 4 * sec}, // the longest that the defaults allow
		{wire.Coordinator, standbyPoll, 3 * sec},
	} {
		for phase := time.Duration(0); phase < tc.interval; phase += 50 * ms {
			b := newBench(t, tc.kind)
			b.hash = 9_999
			b.other(wire.Coordinator, nil).mark(true)
			if tc.kind == wire.Service {
				b.waits()
			}
			b.poll(0).mark(true)
			from := b.now
			b.now += phase
			poll := b.now
			for b.now-from < 10*sec {
				r := b.ready()
				if r.Txn != nil {
					break
				}
				if r.Poll || b.now >= poll {
					poll = b.now + tc.interval
					b.poll(0)
				} else {
					b.now = min(poll, r.At)
				}
			}
			if got := b.now - from; got > tc.most {
				t.Errorf("%s, %v after a poll: %v", tc.kind, tc.interval-phase, got)
			}
		}
	}
}

func TestSilenceIsTakenFromAPollAtItsEnd(t *testing.T) {
	b := newBench(t, wire.Service).waits().other(wire.Server, nil).mark(true).poll(0)
	b.now += 2200 * ms
	b.poll(0)
	b.now += 50 * ms
	if r := b.ready(); r.Txn != nil || !r.Poll {
		t.Errorf("before the poll: %+v", r)
	}
	if b.poll(0).ready().Txn == nil {
		t.Error("after the poll the role is not taken")
	}
}

func TestTheRoleIsTakenUnderTheRevisionThatWasSeen(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"another role": func(b *bench) { b.other(wire.Coordinator, nil) },
		"another mark": func(b *bench) { b.mark(true) },
	} {
		b := newBench(t, wire.Service).waits().other(wire.Server, nil).mark(true).poll(0)
		b.now += 2250 * ms
		b.poll(0)
		txn := b.ready().Txn
		if change(b); txn == nil {
			t.Fatal("the role is not taken")
		}
		b.answer(txn)
		if r := b.ready(); r.Role != 0 || r.Txn != nil {
			t.Errorf("%s: it dispatches, or tries again immediately: %+v", name, r)
		}
		if b.sight.revision != b.key(roleKeys.Role()).ModRevision || b.sight.mark != b.key(roleKeys.Mark()).ModRevision {
			t.Errorf("%s: what was read instead is not known", name)
		}
	}
}

func TestAnUnknownOutcomeNeverMakesADispatcher(t *testing.T) {
	lost := fmt.Errorf("txn: %w", store.ErrUnavailable)
	for _, carried := range []bool{true, false} {
		b := newBench(t, wire.Server).waits().poll(0)
		txn := b.ready().Txn
		if carried {
			b.carry(txn)
		}
		b.Answer(b.now, nil, lost)
		r := b.ready()
		if r.Role != 0 || r.Txn != nil || !r.Poll {
			t.Fatalf("after an unknown outcome: %+v", r)
		}
		if b.poll(0); b.ready().Role != 0 {
			t.Fatal("it dispatches under a role that it does not know")
		}
		first := b.key(roleKeys.Role())
		if got := b.takes(2 * sec); got != takeAgain {
			t.Fatalf("it takes the role again after %v", got)
		}
		last := b.key(roleKeys.Role())
		if b.ready().Role != last.ModRevision || carried == (first == nil) || first != nil && first.ModRevision == last.ModRevision {
			t.Errorf("it dispatches under %d; the keys were %v and %v", b.role, first, last)
		}
		if b.carry(txn).Succeeded {
			t.Error("the late transaction takes the role")
		}
	}
}

func TestADispatcherThatWasReplacedStops(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"by another one":  func(b *bench) { b.other(wire.Coordinator, nil) },
		"by the same one": func(b *bench) { b.put(roleKeys.Role(), b.key(roleKeys.Role()).Value) },
		"by nothing":      func(b *bench) { b.carry(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(roleKeys.Role())}}) },
		"unreadable":      func(b *bench) { b.put(roleKeys.Role(), nil) },
	} {
		b := newBench(t, wire.Server).waits().dispatches()
		change(b)
		at, kv := b.etcd.Revision(), b.key(roleKeys.Role())
		b.SeeRole(b.now, at-2, nil)
		if b.role == 0 {
			t.Errorf("%s: what was true earlier ends it", name)
		}
		b.SeeRole(b.now, at, kv)
		if b.role != 0 {
			t.Errorf("%s: it still dispatches", name)
		}
	}
	b := newBench(t, wire.Server).waits().dispatches().set(func(i *Instance) { i.Lease++ })
	if b.role != 0 {
		t.Error("its lease is gone, and it still dispatches")
	}
	b = newBench(t, wire.Server).waits().dispatches()
	if b.Forget(); b.ready().Role != 0 || b.sight.state != unseen {
		t.Error("etcd was restored, and it still dispatches")
	}
}

// The answer to the transaction that took the role comes after what has happened since.
func TestARoleThatWasReplacedBeforeItsAnswerIsNotHeld(t *testing.T) {
	b := newBench(t, wire.Server).waits().poll(0)
	resp := b.carry(b.ready().Txn)
	b.SeeRole(b.now, resp.Header.Revision, b.key(roleKeys.Role()))
	b.other(wire.Coordinator, nil)
	b.SeeRole(b.now, b.etcd.Revision(), b.key(roleKeys.Role()))
	if b.Answer(b.now, resp, nil); b.ready().Role != 0 {
		t.Error("it dispatches")
	}
}

// A role whose lease was lost before the answer came is taken once more, on another lease: mark and role are on the same one.
func TestARoleOnALostLeaseIsNotHeld(t *testing.T) {
	b := newBench(t, wire.Server).waits().poll(0)
	resp := b.carry(b.ready().Txn)
	b.set(func(i *Instance) { i.Lease = 0 })
	if b.Answer(b.now, resp, nil); b.ready().Role != 0 {
		t.Error("it dispatches")
	}
	b.set(func(i *Instance) { i.Lease, _, _ = b.etcd.Grant(time.Hour) }).poll(0)
	if took := b.takes(2 * sec); took > sec || b.ready().Role == 0 || b.key(roleKeys.Role()).Lease != int64(b.own.Lease) {
		t.Errorf("it is taken after %v", took)
	}
}

func TestTheRoleIsGivenUpAfterAMinuteWithoutDemands(t *testing.T) {
	for _, kind := range []wire.Kind{wire.Command, wire.Service, wire.Server, wire.Coordinator} {
		b := newBench(t, kind).waits().dispatches().put("/b/offers/c/i/1", nil).mark(true)
		b.now += 2 * time.Minute
		if r := b.ready(); r.Txn != nil {
			t.Fatalf("%s gives up with demands", kind)
		}
		b.set(func(i *Instance) { i.Waiting = true }).set(func(i *Instance) { i.Demands = false })
		b.now += 2 * time.Minute
		if r := b.ready(); r.Txn != nil {
			t.Fatalf("%s gives up while others have demands", kind)
		}
		b.set(func(i *Instance) { i.Waiting = false })
		if b.now += idleTime - 1; b.ready().Txn != nil {
			t.Fatalf("%s gives up early", kind)
		}
		b.now++
		txn := b.ready().Txn
		if kind == wire.Coordinator {
			if txn != nil {
				t.Error("a coordinator gives up")
			}
			continue
		}
		if txn == nil || b.ready().Role != 0 {
			t.Fatalf("%s does not give up", kind)
		}
		if b.answer(txn); b.key("/b/offers/") != nil || b.key("/b/dispatcher/") != nil {
			t.Errorf("%s leaves keys", kind)
		}
	}
}

func TestTheRoleThatIsGivenUpIsOnesOwn(t *testing.T) {
	b := newBench(t, wire.Server).waits().dispatches().set(func(i *Instance) { i.Demands = false })
	b.now += idleTime
	txn := b.ready().Txn
	b.other(wire.Coordinator, nil)
	if b.answer(txn); b.key(roleKeys.Role()) == nil {
		t.Error("it has deleted the role of another one")
	}
}

func TestOneThatEndsSaysWhoFollows(t *testing.T) {
	next := Follower{"c", "i"}
	b := newBench(t, wire.Server).waits().dispatches().put("/b/offers/c/i/1", nil)
	b.End(next)
	r := b.ready()
	if r.Done || r.Role != 0 {
		t.Fatalf("before it is announced: %+v", r)
	}
	b.answer(r.Txn)
	role, err := wire.DecodeRole("k", b.key(roleKeys.Role()).Value)
	if err != nil || !role.Ends || role.NextHost != "c" || role.NextInstance != "i" || b.key("/b/offers/") != nil {
		t.Errorf("%+v, %v", role, err)
	}
	if r := b.ready(); !r.Done || r.Txn != nil || r.Changed {
		t.Errorf("after it is announced: %+v", r)
	}
	b = newBench(t, wire.Server).waits().dispatches()
	b.End(Follower{})
	if b.answer(b.ready().Txn); b.key(roleKeys.Role()) != nil || !b.ready().Done {
		t.Error("nobody follows, and the role is not given up")
	}
	b = newBench(t, wire.Server).waits()
	if b.End(next); !b.ready().Done {
		t.Error("it does not dispatch, and does not end")
	}
	b = newBench(t, wire.Server).waits().poll(0)
	txn := b.ready().Txn
	b.End(next)
	if b.ready().Done {
		t.Error("it ends while it takes the role")
	}
	if b.answer(txn); b.ready().Txn == nil {
		t.Error("it keeps the role that it took last")
	}
	if b.Answer(b.now, nil, store.ErrUnavailable); !b.ready().Done {
		t.Error("it waits for an outcome that its lease decides")
	}
}

func TestOneThatWasReplacedForSilenceShowsThatItIsWell(t *testing.T) {
	b := newBench(t, wire.Server).waits().dispatches()
	for i, want := range []time.Duration{10 * sec, 20 * sec, 40 * sec, 80 * sec, 160 * sec, 300 * sec, 300 * sec} {
		b.other(wire.Service, func(r *wire.Role) { r.TakeOvers = []time.Time{b.wall()} }).poll(0)
		from := b.now
		for b.now-from < time.Hour && b.ready().Txn == nil {
			b.now += sec
			b.mark(true).poll(100 * ms)
			b.now -= 100 * ms
		}
		if got := b.now - from; got < want || got > want+2*sec {
			t.Errorf("replacement %d: it takes the role after %v, want %v", i, got, want)
		}
		b.Answer(b.now, nil, store.ErrInvalid)
		b.now += takeAgain
		if txn := b.ready().Txn; txn == nil {
			t.Fatal("it does not try again")
		} else {
			b.answer(txn)
		}
	}
	b.now += maxProbation
	b.other(wire.Service, func(r *wire.Role) { r.TakeOvers = []time.Time{b.wall()} }).poll(0)
	if b.probation.length != minProbation {
		t.Errorf("after it had dispatched for %v: %v", maxProbation, b.probation.length)
	}
	b.carry(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(roleKeys.Role())}})
	if b.poll(0).ready().Txn == nil {
		t.Error("it does not take the role if there is none")
	}
}

func TestAProbationNeedsAnswers(t *testing.T) {
	for name, hinder := range map[string]func(*probation, time.Duration){
		"a late answer":   func(p *probation, now time.Duration) { p.poll(now, now-wellAnswered-1, true) },
		"no answer":       func(p *probation, now time.Duration) { p.poll(now, now, false) },
		"no poll":         func(p *probation, now time.Duration) { p.poll(now+pollGap, now+pollGap, true) },
		"nothing hinders": func(p *probation, now time.Duration) { p.poll(now, now-wellAnswered, true) },
	} {
		var p probation
		p.begin(0, sec)
		for now := time.Duration(0); now < 9*sec; now += sec {
			p.poll(now, now, true)
		}
		hinder(&p, 9*sec)
		if p.poll(10*sec, 10*sec, true); p.serving == (name == "nothing hinders") {
			t.Errorf("%s: serving is %v", name, p.serving)
		}
	}
}

func TestReplacedByAHigherKindIsNoSilence(t *testing.T) {
	b := newBench(t, wire.Server).waits().dispatches().other(wire.Coordinator, nil).poll(0)
	if b.role != 0 || b.probation.serving {
		t.Error("it has to show that it is well")
	}
}

func TestTwoThatLeadTakeTheRoleOnceASecond(t *testing.T) {
	for host, rare := range map[string]bool{"z": true, "a": true, "b": false} {
		b := newBench(t, wire.Coordinator).set(func(i *Instance) { i.Leads = true }).dispatches()
		if !rare { // the rule is left out
			b.mutate = func(s *Succession) { s.seized = 0 }
		}
		taken := 0
		for end := b.now + 10*sec; b.now < end; b.now += ms {
			b.other(wire.Coordinator, func(r *wire.Role) { r.Host = host }).poll(0)
			if b.takes(sec) != never {
				taken++
			}
		}
		if rare != (taken >= 9 && taken <= 11) {
			t.Errorf("taken %d times in 10 s from %s", taken, host)
		}
	}
}

func TestNobodyDispatches(t *testing.T) {
	denied := func(b *bench) {
		if txn := b.ready().Txn; txn != nil {
			b.Answer(b.now, nil, store.ErrDenied)
		}
	}
	noLease := func(i *Instance) { i.Lease = 0 }
	for name, tc := range map[string]struct {
		prepare func(*bench)
		want    time.Duration
	}{
		"no role for 5 s":         {func(b *bench) { b.set(noLease).waits().poll(0) }, 5 * sec},
		"no demands":              {func(b *bench) { b.set(noLease).poll(0) }, never},
		"a role that lives":       {func(b *bench) { b.waits().other(wire.Coordinator, nil).mark(true).poll(0) }, 2250*ms + 5*sec},
		"unseen":                  {func(b *bench) { b.waits() }, never},
		"no role, and refused":    {func(b *bench) { b.waits().poll(0); denied(b) }, 0},
		"polls are refused":       {func(b *bench) { b.waits(); b.Unanswered(b.now, b.now, store.ErrDenied) }, 0},
		"polls without an answer": {func(b *bench) { b.waits(); b.Unanswered(b.now, b.now, store.ErrUnavailable) }, never},
		"it dispatches":           {func(b *bench) { b.waits().dispatches() }, never},
	} {
		b := newBench(t, wire.Server)
		tc.prepare(b)
		from := b.now
		got := never
		for range 100 {
			r := b.Succession.Ready(b.now, b.wall())
			if r.Nobody {
				got = b.now - from
				break
			}
			if r.At == never {
				break
			}
			b.now = max(b.now, r.At)
		}
		if got != tc.want {
			t.Errorf("%s: after %v, want %v", name, got, tc.want)
		}
	}
	b := newBench(t, wire.Server).waits().poll(0)
	denied(b)
	b.now += deniedAgain - 1
	if r := b.ready(); r.Txn != nil || !r.Nobody {
		t.Errorf("before it tries again: %+v", r)
	}
	b.now++
	if b.answer(b.ready().Txn); b.ready().Nobody || b.role == 0 {
		t.Error("etcd no longer refuses it, and it does not dispatch")
	}
}

func TestALeaseIsAskedForOnlyWhereTheRoleIsTaken(t *testing.T) {
	noLease := func(i *Instance) { i.Lease = 0 }
	b := newBench(t, wire.Server).set(noLease).poll(0)
	if b.ready().Lease {
		t.Error("it needs none without demands")
	}
	if r := b.waits().ready(); !r.Lease || r.Txn != nil {
		t.Errorf("%+v", r)
	}
	if b.set(func(i *Instance) { i.Lease = 1 }).ready().Txn == nil {
		t.Error("it has a lease, and does not take the role")
	}
}

func TestPollsOfAStandby(t *testing.T) {
	b := newBench(t, wire.Coordinator).other(wire.Coordinator, nil)
	if !b.ready().Poll {
		t.Fatal("no first poll")
	}
	if b.poll(0).mark(true); b.ready().Poll {
		t.Fatal("the next poll is sent immediately")
	}
	if b.now += standbyPoll; !b.ready().Poll {
		t.Fatal("no poll after a second")
	}
	b.Unanswered(b.now, b.now, errors.New("no answer"))
	if r := b.ready(); r.Poll || r.At != b.now+pollAgain {
		t.Errorf("after one without an answer: %+v", r)
	}
	if b.now += pollAgain; !b.ready().Poll {
		t.Error("no poll after the pause")
	}
	b = newBench(t, wire.Server).waits().dispatches()
	if b.now += holderPoll; !b.ready().Poll {
		t.Error("the dispatcher does not poll its role")
	}
	b = newBench(t, wire.Server).other(wire.Server, nil)
	if b.ready().Poll {
		t.Error("an instance without demands polls")
	}
}

func TestChangesAreShownOnce(t *testing.T) {
	b := newBench(t, wire.Service).waits().other(wire.Coordinator, nil).poll(0)
	if b.ready().Changed {
		t.Error("the first sight is no change")
	}
	for name, tc := range map[string]struct {
		change func()
		want   bool
	}{
		"the same":     {func() {}, false},
		"another role": {func() { b.other(wire.Server, nil) }, true},
		"one that ends": {func() {
			b.other(wire.Server, func(r *wire.Role) { r.Ends, r.NextHost, r.NextInstance = true, "c", "i" })
		}, false},
		"none": {func() { b.carry(&pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(roleKeys.Role())}}) }, false},
	} {
		tc.change()
		if b.poll(0); b.ready().Changed != tc.want || b.ready().Changed {
			t.Errorf("%s is shown as a change, twice, or not at all", name)
		}
	}
}

func TestTakeOversOfTheLastMinuteCount(t *testing.T) {
	at := func(s ...int) (all []time.Time) {
		for _, x := range s {
			all = append(all, noon.Add(time.Duration(x)*sec))
		}
		return all
	}
	if got := recent(at(-61, -60, -59, 0, 59, 60), noon); len(got) != 3 {
		t.Errorf("%v", got)
	}
	if got := recent(make([]time.Time, 40), time.Time{}); len(got) != keptTakeOvers {
		t.Errorf("%d", len(got))
	}
	if isNew(at(1), at(1, 2)) || !isNew(at(1, 3), at(1, 2)) || isNew(nil, nil) {
		t.Error("which take-overs are new")
	}
}

func TestTheHashSpreadsInstances(t *testing.T) {
	low, high := patienceSpread, time.Duration(0)
	for i := range 200 {
		h := slots.Hash(fmt.Sprint("host-", i), "node")
		d := patienceOf(wire.Service, h, 0) - markPatience
		low, high = min(low, d), max(high, d)
		if p, c := pauseOf(wire.Service, h), pauseOf(wire.Command, h); p < 10*ms || p >= 20*ms || c < 20*ms || c >= 40*ms {
			t.Fatalf("pauses %v and %v", p, c)
		}
	}
	if low < 0 || low > 20*ms || high < 480*ms || high >= patienceSpread {
		t.Errorf("from %v to %v", low, high)
	}
}
