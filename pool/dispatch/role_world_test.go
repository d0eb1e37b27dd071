package dispatch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool/wire"
)

// roleMutant leaves a rule out. Each is nil unless a test sets it.
type roleMutant struct {
	request func(*pb.TxnRequest)             // changes a transaction on its way to etcd
	ready   func(*Succession, time.Duration) // changes a machine before it is called
}

// roleWorld is some instances on one stand-in for etcd, driven by a seed. Time is simulated: requests, answers and events
// are under way for some milliseconds, are late, or are lost.
type roleWorld struct {
	*rand.Rand
	roleMutant
	etcd  *storetest.Etcd
	now   time.Duration
	queue []roleEvent
	hosts []*roleHost
	slow  time.Duration // that each write takes in addition
	stall time.Duration // until which etcd carries nothing out
	errs  []string

	sender  *roleHost           // of the transaction that etcd carries out
	putBy   map[int64]*roleHost // who has put the role, by revision
	signed  time.Duration       // when the role or the mark was last put
	takes   int
	silence []time.Duration // when the role was taken for silence
	leaves  int
	starts  int // instances that may have taken the role from one that lives
	served  time.Duration
	longest time.Duration // for which nobody has dispatched while there were demands
}

type roleEvent struct {
	at time.Duration
	do func()
}

// roleHost is one life of an instance.
type roleHost struct {
	*Succession
	w     *roleWorld
	own   Instance
	life  condition
	deaf  bool // its watches are silent
	until time.Duration
	later []func() // what arrives while it hangs
	wake  time.Duration
	poll  time.Duration // when its demands are polled next

	marked   time.Duration // when it has last put the mark, as dispatcher
	demands  bool          // that the mark shows
	markedAs int64         // the role under which it was put
	marking  bool
	granting bool
	polling  bool
	skew     time.Duration
}

// condition is what hinders an instance.
type condition int

const (
	lives condition = iota
	hangs
	cutOff
	dead
)

const (
	roleTimeout = 2 * sec
	roleTTL     = 10 * sec
)

func newRoleWorld(seed uint64, m roleMutant, kinds ...wire.Kind) *roleWorld {
	w := &roleWorld{Rand: rand.New(rand.NewPCG(seed, 7)), roleMutant: m, etcd: storetest.New(storetest.Options{ExpiryLag: 300 * ms}), now: sec, putBy: map[int64]*roleHost{}}
	w.etcd.OnCommit(w.committed)
	w.etcd.Advance(sec)
	for _, k := range kinds {
		w.start(fmt.Sprint("host-", len(w.hosts)), k)
	}
	return w
}

func (w *roleWorld) start(name string, kind wire.Kind) *roleHost {
	h := &roleHost{w: w, Succession: NewSuccession(roleKeys, name, "i", kind), skew: time.Duration(w.IntN(10_000)-5_000) * ms}
	w.hosts = append(w.hosts, h)
	w.starts++
	h.step()
	h.tick()
	return h
}

func (w *roleWorld) after(d time.Duration, do func()) {
	w.queue = append(w.queue, roleEvent{w.now + d, do})
}

func (w *roleWorld) delay() time.Duration { return time.Duration(500+w.IntN(4_500)) * time.Microsecond }

// run has time pass.
func (w *roleWorld) run(d time.Duration) *roleWorld {
	end := w.now + d
	for len(w.errs) == 0 {
		next := -1
		for i, e := range w.queue {
			if e.at <= end && (next < 0 || e.at < w.queue[next].at) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		e := w.queue[next]
		w.queue = slices.Delete(w.queue, next, next+1)
		w.pass(e.at)
		e.do()
		w.check()
	}
	w.pass(end)
	return w
}

func (w *roleWorld) pass(at time.Duration) {
	w.etcd.Advance(at - w.now)
	w.now = at
	w.expect()
}

func (w *roleWorld) fail(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf("%v: ", w.now)+fmt.Sprintf(format, args...))
}

// check checks that nobody believes in a role that it has not put.
func (w *roleWorld) check() {
	believed := map[int64]bool{}
	for _, h := range w.hosts {
		if h.role == 0 || h.life == dead {
			continue
		}
		if believed[h.role] || w.putBy[h.role] != h {
			w.fail("%s dispatches under the role of revision %d, which it has not put", h.host, h.role)
		}
		believed[h.role] = true
	}
}

// dispatcher returns the instance that lives and holds the role that etcd has.
func (w *roleWorld) dispatcher() *roleHost {
	for kv := range w.etcd.All(roleKeys.Role()) {
		if h := w.putBy[kv.ModRevision]; h != nil && h.role == kv.ModRevision {
			return h
		}
	}
	return nil
}

// waiting reports whether there are demands of an instance that could be served.
func (w *roleWorld) waiting() bool {
	return slices.ContainsFunc(w.hosts, func(h *roleHost) bool { return h.own.Demands && h.life == lives })
}

// expect measures for how long nobody has dispatched.
func (w *roleWorld) expect() {
	if h := w.dispatcher(); !w.waiting() || h != nil && h.life == lives {
		w.served = w.now
	}
	w.longest = max(w.longest, w.now-w.served)
}

// committed checks what has become of the role.
func (w *roleWorld) committed(rev int64, events []*mvccpb.Event, req *pb.TxnRequest) {
	for _, ev := range events {
		switch string(ev.Kv.Key) {
		case roleKeys.Role():
			w.roleChanged(rev, ev, req)
		case roleKeys.Mark():
			if ev.Type == mvccpb.PUT {
				w.signed = w.now
			}
		}
	}
}

func (w *roleWorld) roleChanged(rev int64, ev *mvccpb.Event, req *pb.TxnRequest) {
	kv := ev.Kv
	if ev.Type != mvccpb.PUT {
		kv = nil
	}
	if req != nil && w.sender != nil {
		for range w.etcd.All(roleKeys.OffersAll()) {
			w.fail("an offer of the last dispatcher is left")
		}
		for range w.etcd.All(roleKeys.Mark()) {
			w.fail("the mark of the last dispatcher is left")
		}
		if kv == nil {
			w.left(ev)
		} else {
			w.put(rev, ev)
		}
	}
	for _, h := range w.hosts {
		if (h.own.Demands || h.kind == wire.Coordinator) && !h.deaf && h.life != cutOff {
			w.after(w.delay(), func() { h.arrive(func() { h.SeeRole(w.now, rev, kv) }) })
		}
	}
}

// left checks that an instance has left its own role.
func (w *roleWorld) left(ev *mvccpb.Event) {
	w.leaves++
	if ev.PrevKv == nil || w.putBy[ev.PrevKv.ModRevision] != w.sender {
		w.fail("%s has left a role that it has not put", w.sender.host)
	}
}

// put checks a role that was put.
func (w *roleWorld) put(rev int64, ev *mvccpb.Event) {
	w.putBy[rev] = w.sender
	signed := w.signed
	w.signed = w.now
	role, err := wire.DecodeRole("role", ev.Kv.Value)
	if err != nil {
		w.fail("%v", err)
		return
	}
	if role.Ends {
		w.left(ev)
		return
	}
	w.takes++
	if n := len(role.TakeOvers); n == 0 || !role.TakeOvers[n-1].Equal(role.Since) {
		return
	}
	w.silence = append(w.silence, w.now)
	var last wire.Role
	if ev.PrevKv != nil {
		last, _ = wire.DecodeRole("role", ev.PrevKv.Value)
	}
	least := patienceOf(wire.Coordinator, 0, len(recent(last.TakeOvers, role.Since)))
	if got := w.now - signed; got < least && w.sender.kind != wire.Coordinator || got < least-50*ms {
		w.fail("%s was replaced for silence %v after its last sign of life, before %v", last.Host, got, least)
	}
}

// arrive has something arrive at an instance.
func (h *roleHost) arrive(do func()) {
	switch h.life {
	case dead:
	case hangs:
		h.later = append(h.later, func() { h.arrive(do) })
	default:
		do()
		h.step()
	}
}

// request sends a transaction. Exactly one answer or error arrives.
func (h *roleHost) request(t *pb.TxnRequest, done func(*pb.TxnResponse, error)) {
	w, answered := h.w, false
	once := func(resp *pb.TxnResponse, err error) {
		if !answered {
			answered = true
			h.arrive(func() { done(resp, err) })
		}
	}
	w.after(roleTimeout+10*w.slow, func() { once(nil, store.ErrUnavailable) })
	lost := h.life == cutOff || w.slow > 0 && w.IntN(20) == 0
	if lost && w.IntN(3) > 0 {
		return
	}
	d := w.delay()
	if len(t.Success) > 2 || t.Success[0].GetRequestPut() != nil {
		d += w.slow
	}
	if lost {
		d += time.Duration(w.IntN(8_000)) * ms // it is carried out, and nobody knows
	}
	if w.now+d < w.stall {
		d = w.stall - w.now + w.delay()
	}
	w.after(d, func() {
		resp, err := h.carry(t)
		if lost || h.life == cutOff {
			return
		}
		w.after(w.delay(), func() {
			if h.life != cutOff {
				once(resp, err)
			}
		})
	})
}

func (h *roleHost) carry(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if h.w.request != nil {
		h.w.request(t)
	}
	h.w.sender = h
	resp, err := h.w.etcd.Txn(t)
	h.w.sender = nil
	return resp, err
}

// step calls the machine, as an engine does.
func (h *roleHost) step() {
	w := h.w
	if h.life == dead || h.life == hangs {
		return
	}
	h.Set(w.now, h.own)
	if w.ready != nil {
		w.ready(h.Succession, w.now)
	}
	r := h.Ready(w.now, noon.Add(w.now+h.skew))
	if r.Txn != nil {
		h.request(r.Txn, func(resp *pb.TxnResponse, err error) { h.Answer(w.now, resp, err) })
	}
	if r.Poll && !h.polling {
		h.pollNow()
	}
	if r.Lease && !h.granting {
		h.grant()
	}
	if r.Role != h.markedAs {
		h.marked, h.markedAs, h.demands = 0, r.Role, false
	}
	if r.At <= w.now {
		w.fail("%s is to be called again at %v", h.host, r.At)
	}
	if r.At != never && (h.wake <= w.now || r.At < h.wake) {
		h.wake = r.At
		w.after(r.At-w.now, func() { h.arrive(func() {}) })
	}
}

func (h *roleHost) pollNow() {
	sent := h.w.now
	h.polling = true
	h.request(&pb.TxnRequest{Success: h.Reads()}, func(resp *pb.TxnResponse, err error) {
		h.polling = false
		if err != nil {
			h.Unanswered(h.w.now, sent, err)
			return
		}
		h.Polled(h.w.now, sent, resp.Header.Revision, only(resp.Responses[0]), only(resp.Responses[1]))
	})
}

// grant has etcd grant the lease of the role.
func (h *roleHost) grant() {
	h.granting = true
	h.request(&pb.TxnRequest{Success: []*pb.RequestOp{store.Get("/b/x")}}, func(_ *pb.TxnResponse, err error) {
		if h.granting = false; err == nil {
			h.own.Lease, _, _ = h.w.etcd.Grant(roleTTL)
		}
	})
}

// tick is what else an instance does: it renews its lease, polls its demands, and plans, with the mark.
func (h *roleHost) tick() {
	w := h.w
	if h.life == dead {
		return
	}
	w.after(50*ms, h.tick)
	if h.life != lives {
		return
	}
	if h.own.Lease != 0 {
		if _, err := w.etcd.Renew(h.own.Lease); err != nil {
			h.own.Lease = 0
		}
	}
	if h.own.Demands && w.now >= h.poll {
		h.poll = w.now + sec + time.Duration(w.IntN(500))*ms
		h.pollNow()
	}
	h.plan()
	h.step()
}

// plan puts the mark and an offer, as a dispatcher does.
func (h *roleHost) plan() {
	w := h.w
	h.own.Waiting = h.role != 0 && slices.ContainsFunc(w.hosts, func(o *roleHost) bool { return o.own.Demands && o.life != dead })
	due := h.own.Waiting && (!h.demands || w.now-h.marked >= sec) || !h.own.Waiting && (h.demands || h.marked == 0)
	if h.role == 0 || h.marking || !due {
		return
	}
	h.marking = true
	role, shows := h.role, h.own.Waiting
	h.request(&pb.TxnRequest{
		Compare: []*pb.Compare{store.ModEquals(roleKeys.Role(), role)},
		Success: []*pb.RequestOp{store.Put(roleKeys.Mark(), wire.EncodeMark(wire.Mark{Demands: shows}), h.own.Lease), store.Put(roleKeys.OffersAll()+"x/i/1", nil, 0)},
		Failure: h.Reads(),
	}, func(resp *pb.TxnResponse, err error) {
		h.marking = false
		switch {
		case err == nil && resp.Succeeded && h.role == role:
			h.marked, h.demands = w.now, shows
		case err == nil && !resp.Succeeded:
			h.SeeRole(w.now, resp.Header.Revision, only(resp.Responses[0]))
			h.SeeMark(w.now, resp.Header.Revision, only(resp.Responses[1]))
		}
	})
}

// wait has an instance put a demand: the transaction reads the role.
func (h *roleHost) wait() {
	if h.own.Demands || h.life != lives {
		return
	}
	h.request(&pb.TxnRequest{Success: []*pb.RequestOp{store.Get(roleKeys.Role())}}, func(resp *pb.TxnResponse, err error) {
		if err == nil && !h.ending {
			h.own.Demands, h.poll = true, h.w.now+500*ms
			h.SeeRole(h.w.now, resp.Header.Revision, only(resp.Responses[0]))
		}
	})
}

// end ends an instance: another one with demands shall follow.
func (h *roleHost) end() {
	h.own.Demands, h.own.Leads = false, false
	var follower Follower
	for _, o := range h.w.hosts {
		if o != h && o.own.Demands && o.life == lives {
			follower = Follower{o.host, "i"}
		}
	}
	h.End(follower)
	h.step()
}

// hinder has something happen to an instance for some time.
func (h *roleHost) hinder(c condition, d time.Duration) {
	if h.life == dead {
		return
	}
	h.life, h.until = c, h.w.now+d
	if c == dead {
		return
	}
	h.w.after(d, func() {
		if h.life == dead || h.w.now < h.until {
			return
		}
		h.life = lives
		later := h.later
		h.later = nil
		for _, f := range later {
			f()
		}
		h.step()
	})
}

func (w *roleWorld) pick() *roleHost { return w.hosts[w.IntN(len(w.hosts))] }

var roleKinds = []wire.Kind{wire.Command, wire.Service, wire.Server, wire.Coordinator}

// lead makes one of the coordinators that live the leader.
func (w *roleWorld) lead() {
	var all []*roleHost
	for _, h := range w.hosts {
		h.own.Leads = false
		if h.kind == wire.Coordinator && h.life == lives && !h.ending {
			all = append(all, h)
		}
	}
	if w.starts++; len(all) > 0 {
		all[w.IntN(len(all))].own.Leads = true
	}
}

// chaos has anything happen.
func (w *roleWorld) chaos() {
	h := w.pick()
	d := time.Duration(w.IntN(15_000)) * ms
	switch x := w.IntN(20); {
	case x < 6:
		h.wait()
	case x < 8:
		h.own.Demands = false
	case x < 10:
		h.hinder(hangs, d)
	case x < 12:
		h.hinder(cutOff, d)
	case x < 13:
		h.deaf = !h.deaf
	case x < 14:
		h.end()
	case x < 15: // a restart with the same name
		if h.life != dead {
			h.hinder(dead, 0)
			w.start(h.host, h.kind)
		}
	case x < 16 && len(w.hosts) < 8:
		w.start(fmt.Sprint("host-", len(w.hosts)), roleKinds[w.IntN(4)])
	case x < 17:
		w.lead()
	case x < 18:
		w.slow = []time.Duration{0, 0, 300 * ms, 3 * sec}[w.IntN(4)]
	case w.IntN(10) == 0:
		_, _ = w.etcd.Txn(&pb.TxnRequest{Success: []*pb.RequestOp{store.Put([]string{roleKeys.Role(), roleKeys.Mark()}[w.IntN(2)], []byte("{"), 0)}})
	}
}

// heal ends all that hinders. A service with demands is there.
func (w *roleWorld) heal() *roleHost {
	w.slow = 0
	for _, h := range w.hosts {
		if h.life == hangs || h.life == cutOff {
			h.hinder(lives, 0)
		}
		h.deaf = false
	}
	h := w.start("last", wire.Service)
	h.wait()
	return h
}

// chaosSchedule has anything happen for two minutes, and checks that a healed world has one dispatcher that stays.
func chaosSchedule(seed uint64, m roleMutant) *roleWorld {
	w := newRoleWorld(seed, m)
	for i := range 2 + w.IntN(3) {
		w.start(fmt.Sprint("host-", i), roleKinds[w.IntN(4)])
	}
	w.lead()
	for end := w.now + 2*time.Minute; w.now < end && len(w.errs) == 0; {
		w.run(time.Duration(w.IntN(3_000)) * ms)
		w.chaos()
	}
	if len(w.errs) > 0 {
		return w
	}
	w.heal()
	w.run(45 * sec)
	w.longest = 0
	takes, silence := w.takes, len(w.silence)
	if len(w.errs) == 0 && w.dispatcher() == nil {
		w.fail("nobody dispatches 45 s after all was healed")
	}
	w.run(time.Minute)
	if len(w.errs) > 0 {
		return w
	}
	if len(w.silence) != silence { // a server, and the leader, take it from others when they have shown that they are well
		w.fail("the role was taken for silence in a healed world: %v", w.silence[silence:])
	}
	if w.takes > takes+2 {
		w.fail("the role was taken %d times in a healed world", w.takes-takes)
	}
	if w.longest > 100*ms {
		w.fail("nobody dispatched for %v in a healed world", w.longest)
	}
	return w
}

// faultSchedule has the dispatcher hindered in a healthy world, and checks that another one follows in time.
func faultSchedule(seed uint64, m roleMutant) *roleWorld {
	w := newRoleWorld(seed, m, roleKinds[w4(seed)])
	standby := seed%2 == 0
	waits := w.start("waits", []wire.Kind{wire.Command, wire.Service, wire.Server}[w.IntN(3)])
	if standby {
		w.start("standby", wire.Coordinator)
	}
	first := w.hosts[0]
	if first.kind == wire.Coordinator {
		first.own.Leads = true
	}
	first.wait()
	w.run(100 * ms)
	if w.IntN(4) > 0 {
		waits.wait()
	}
	w.run(2*sec + time.Duration(w.IntN(3_000))*ms)
	h := w.dispatcher()
	if h == nil {
		w.fail("nobody dispatches")
		return w
	}
	others := func() { // all but the dispatcher wait, or the standby alone does not
		for _, o := range w.hosts {
			if o != h && (o.kind != wire.Coordinator || h == waits) {
				o.wait()
			}
		}
	}
	quiet := w.IntN(4) == 0
	if others(); quiet {
		w.run(100 * ms)
		for _, o := range w.hosts {
			o.own.Demands = false
		}
	}
	waits.deaf = w.IntN(4) == 0
	w.run(sec)
	if w.dispatcher() != h { // which a server has replaced meanwhile
		return w
	}
	w.longest = 0
	c := []condition{hangs, cutOff, dead}[w.IntN(3)]
	d := 9*sec + time.Duration(w.IntN(20_000))*ms
	h.hinder(c, d)
	if quiet {
		w.run(time.Duration(w.IntN(3_000)) * ms)
		others()
	}
	w.run(6 * sec)
	most := 4500 * ms
	if standby && h.host != "standby" && !quiet {
		most = 3500 * ms
	}
	if w.longest > most {
		w.fail("%v passed until another one dispatched, of %v", w.longest, most)
	}
	if w.run(2*time.Minute - 6*sec); len(w.errs) == 0 && len(w.silence) != 1 {
		w.fail("the role was taken %d times for silence: %v", len(w.silence), w.silence)
	}
	return w
}

func w4(seed uint64) uint64 { return seed / 2 % 4 }

// healthySchedule has demands come and go in a healthy world, and checks that the role is taken for a reason only.
func healthySchedule(seed uint64, m roleMutant) *roleWorld {
	w := newRoleWorld(seed, m)
	for i := range 2 + w.IntN(4) {
		w.start(fmt.Sprint("host-", i), roleKinds[w.IntN(4)])
	}
	if w.IntN(2) == 0 {
		w.lead()
	}
	for end := w.now + 10*time.Minute; w.now < end && len(w.errs) == 0; {
		w.run(time.Duration(w.IntN(40_000)) * ms)
		switch h := w.pick(); w.IntN(12) {
		case 0, 1, 2, 3, 4:
			h.wait()
		case 5, 6, 7, 8:
			h.own.Demands = false
		case 9:
			if !h.ending {
				h.end()
				w.start(h.host+"x", h.kind)
			}
		case 10:
			for _, o := range w.hosts {
				o.own.Demands = false
			}
			w.run(70 * sec)
			if h := w.dispatcher(); h != nil && h.kind != wire.Coordinator && !w.waiting() {
				w.fail("%s, a %s, dispatches after a minute without demands", h.host, h.kind)
			}
		case 11:
			w.lead()
		}
	}
	if len(w.silence) > 0 {
		w.fail("the role was taken for silence at %v", w.silence)
	}
	if most := 1 + w.starts + w.leaves; w.takes > most {
		w.fail("the role was taken %d times, with %d reasons", w.takes, most)
	}
	if w.longest > 100*ms {
		w.fail("nobody dispatched for %v", w.longest)
	}
	return w
}

// mostOfSlow bounds the take-overs for silence of slowSchedule.
const mostOfSlow = 7

// slowSchedule has writes take so long for all that no mark is put in time.
func slowSchedule(seed uint64, m roleMutant) *roleWorld {
	w := newRoleWorld(seed, m, roleKinds[w4(seed)], wire.Server, wire.Server, wire.Service)
	for _, h := range w.hosts {
		h.wait()
	}
	w.run(sec)
	w.slow = 3*sec + time.Duration(w.IntN(3_000))*ms
	w.run(5 * time.Minute)
	if len(w.silence) > mostOfSlow {
		w.fail("%d take-overs for silence in 5 minutes", len(w.silence))
	}
	return w
}

// stallSchedule has etcd stand still for some seconds again and again, and checks that no dispatcher is replaced for it.
func stallSchedule(seed uint64, m roleMutant) *roleWorld {
	w := newRoleWorld(seed, m, wire.Server, wire.Service, wire.Coordinator)
	for _, h := range w.hosts {
		h.wait()
	}
	for range 20 {
		w.run(5*sec + time.Duration(w.IntN(5_000))*ms)
		w.stall = w.now + time.Duration(w.IntN(5_000))*ms
	}
	if len(w.silence) > 1 { // as requests are carried out in any order after that, a poll may be before the mark
		w.fail("the role was taken for silence at %v", w.silence)
	}
	return w
}

type roleSchedule func(uint64, roleMutant) *roleWorld

func TestTheRoleInRandomSchedules(t *testing.T) {
	long(t)
	for name, tc := range map[string]struct {
		run       roleSchedule
		schedules uint64
		least     int // take-overs, and those for silence
		silent    int
	}{
		"chaos":        {chaosSchedule, 200, 900, 250},
		"one fault":    {faultSchedule, 300, 600, 250},
		"healthy":      {healthySchedule, 80, 150, 0},
		"slow for all": {slowSchedule, 30, 100, 50},
		"stalls":       {stallSchedule, 60, 60, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var takes, silence, most int
			var longest time.Duration
			for seed := range tc.schedules {
				w := tc.run(seed, roleMutant{})
				if len(w.errs) > 0 {
					t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
				}
				takes, silence, longest = takes+w.takes, silence+len(w.silence), max(longest, w.longest)
				most = max(most, len(w.silence))
			}
			t.Logf("%d take-overs, %d for silence, at most %d in one schedule, nobody dispatched for %v at most", takes, silence, most, longest)
			if takes < tc.least || silence < tc.silent {
				t.Errorf("fewer than %d and %d", tc.least, tc.silent)
			}
		})
	}
}

// compares drops compares of a key.
func compares(key string) func(*pb.TxnRequest) {
	return func(t *pb.TxnRequest) {
		t.Compare = slices.DeleteFunc(t.Compare, func(c *pb.Compare) bool { return string(c.Key) == key })
	}
}

// deletions drops deletions of a key, or of all below it.
func deletions(key string) func(*pb.TxnRequest) {
	return func(t *pb.TxnRequest) {
		t.Success = slices.DeleteFunc(t.Success, func(op *pb.RequestOp) bool {
			return op.GetRequestDeleteRange() != nil && string(op.GetRequestDeleteRange().Key) == key
		})
	}
}

func TestEveryRuleOfTheRoleIsNeeded(t *testing.T) {
	long(t)
	ready := func(f func(*Succession, time.Duration)) roleMutant { return roleMutant{ready: f} }
	for name, tc := range map[string]struct {
		run roleSchedule
		roleMutant
	}{
		"the compare of the role":  {chaosSchedule, roleMutant{request: compares(roleKeys.Role())}},
		"the compare of the mark":  {chaosSchedule, roleMutant{request: compares(roleKeys.Mark())}},
		"the deletion of offers":   {faultSchedule, roleMutant{request: deletions(roleKeys.OffersAll())}},
		"the deletion of the mark": {faultSchedule, roleMutant{request: deletions(roleKeys.Mark())}},
		"a role of this life alone": {chaosSchedule, ready(func(s *Succession, _ time.Duration) {
			if s.stage == stageFollowing && s.sight.is(s.host, s.instance) {
				s.stage, s.role = stageDispatching, s.sight.revision
			}
		})},
		"the patience": {slowSchedule, ready(func(s *Succession, now time.Duration) {
			if len(s.sight.role.TakeOvers) > 0 && now-s.sight.same > markPatience {
				s.sight.same = 0
			}
		})},
		"the probation":                {slowSchedule, ready(func(s *Succession, _ time.Duration) { s.probation.serving = false })},
		"the end after a minute":       {healthySchedule, ready(func(s *Succession, now time.Duration) { s.idle = now })},
		"that a mark shows no demands": {healthySchedule, ready(func(s *Succession, _ time.Duration) { s.sight.demands = true })},
		"the time of one's own demand": {healthySchedule, ready(func(s *Succession, _ time.Duration) { s.since = 0 })},
		"silence":                      {faultSchedule, ready(func(s *Succession, now time.Duration) { s.sight.same = now })},
		"the poll before a take-over":  {stallSchedule, ready(func(s *Succession, now time.Duration) { s.sight.polled = now })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(600) {
				if w := tc.run(seed, tc.roleMutant); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}
