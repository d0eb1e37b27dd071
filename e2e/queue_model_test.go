package e2e

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// queueModel is a small world with a dispatcher that sees what happens late: it shows that the
// referee finds what is wrong, and only that.
type queueModel struct {
	*queueTape
	r       *rand.Rand
	fault   queueFault
	etcd    modelState
	log     [][]modelOp // of each revision
	first   int64       // the revision of the first of them
	limits  map[string]int
	by      string // the dispatcher
	view    modelState
	seen    int64      // the view shows others' writes up to here
	next    modelState // the view of the next dispatcher
	nextAt  int64
	skipped map[string]bool // waiters whose lease was missing, by id and revision
	n       int
	granted int
}

// queueFault is what a broken dispatcher does.
type queueFault string

// modelState is what etcd has, or a dispatcher's view of it.
type modelState struct {
	waiters map[string]modelWaiter
	slots   map[string]modelSlot // by pool/index
	notices map[string]modelNotice
	leases  map[string]bool  // by instance
	touched map[string]int64 // when each of them was last written
}

type modelWaiter struct {
	id, instance string
	need         need
	reserve      bool
	rev          int64
}

type modelSlot struct {
	claim, instance string
	n               int
}

type modelNotice struct {
	instance string
	at       time.Time
}

// modelOp writes or deletes one thing.
type modelOp struct {
	what, key string
	value     any // nil deletes it
}

func newModelState() modelState {
	return modelState{map[string]modelWaiter{}, map[string]modelSlot{}, map[string]modelNotice{}, map[string]bool{}, map[string]int64{}}
}

func (s modelState) clone() modelState {
	return modelState{maps.Clone(s.waiters), maps.Clone(s.slots), maps.Clone(s.notices), maps.Clone(s.leases), maps.Clone(s.touched)}
}

// apply takes the writes of a revision, unless it knows later ones.
func (s modelState) apply(ops []modelOp, rev int64) {
	for _, op := range ops {
		name := op.what + op.key
		if s.touched[name] >= rev {
			continue
		}
		s.touched[name] = rev
		switch v := op.value.(type) {
		case modelWaiter:
			v.rev = rev
			s.waiters[op.key] = v
		case modelSlot:
			s.slots[op.key] = v
		case modelNotice:
			s.notices[op.key] = v
		case bool:
			s.leases[op.key] = true
		default:
			delete(s.waiters, onlyIf(op.what == "waiter", op.key))
			delete(s.slots, onlyIf(op.what == "slot", op.key))
			delete(s.notices, onlyIf(op.what == "notice", op.key))
			delete(s.leases, onlyIf(op.what == "lease", op.key))
		}
	}
}

func onlyIf(yes bool, key string) string {
	if yes {
		return key
	}
	return ""
}

func (s modelState) used(pool string) (n int) {
	for key, x := range s.slots {
		if strings.HasPrefix(key, pool+"/") {
			n += x.n
		}
	}
	return n
}

// line is the wait queue in order.
func (m *queueModel) line(s modelState) []modelWaiter {
	return slices.SortedFunc(maps.Values(s.waiters), func(a, b modelWaiter) int { return strings.Compare(m.order(a.id), m.order(b.id)) })
}

func newQueueModel(seed uint64, fault queueFault) *queueModel {
	m := &queueModel{
		queueTape: &queueTape{tape: newTape(), clock: time.Unix(1000, 0), since: map[string]int{}},
		r:         rand.New(rand.NewPCG(seed, 1)), fault: fault, etcd: newModelState(),
		limits: map[string]int{"a": 6, "b": 3}, skipped: map[string]bool{},
	}
	m.queue.now = func() time.Time { return m.clock }
	m.at(limit("a", 6), limit("b", 3))
	m.first = m.rev + 1
	for _, name := range slices.Sorted(maps.Keys(instanceLease)) {
		m.write(modelOp{"lease", name, true})
	}
	m.view, m.seen = m.etcd.clone(), m.rev
	m.next, m.nextAt = m.etcd.clone(), m.rev
	m.takeRole("d")
	return m
}

// takeRole has another instance dispatch, with the view that it has. The one before has
// another view until it is the next.
func (m *queueModel) takeRole(instance string) {
	m.log = append(m.log, nil, nil)
	m.dispatcher("a", instance)
	m.dispatcher("b", instance)
	m.by = instance
	m.view, m.seen, m.next, m.nextAt = m.next, m.nextAt, m.view, m.seen
}

// write commits a revision, and has the referee see it.
func (m *queueModel) write(ops ...modelOp) {
	if len(ops) == 0 {
		return
	}
	var events []*mvccpb.Event
	for _, op := range ops {
		events = append(events, m.events(op)...)
	}
	m.log = append(m.log, ops)
	m.at(events...)
	m.etcd.apply(ops, m.rev)
}

// events spells a write.
func (m *queueModel) events(op modelOp) (all []*mvccpb.Event) {
	switch v := op.value.(type) {
	case modelWaiter:
		for pool := range v.need {
			all = append(all, put(oldWaiterOf(keys, pool, m.order(v.id)), 9, `{"v":1,"pools":%s,"holder":{"host":"h","instance":%q},"lease":%d,"reserve":%t}`,
				v.need.json(), v.instance, instanceLease[v.instance], v.reserve))
		}
	case modelSlot: // spelled with all of its claim, by grant
	case modelNotice:
		all = append(all, put(m.notice(op.key, v.instance), instanceLease[v.instance], `{"v":1}`))
	case bool:
		all = append(all, put(keys.Lease("h", store.LeaseID(instanceLease[op.key])), instanceLease[op.key], `{"v":1}`))
	default:
		switch op.what {
		case "waiter":
			for pool := range m.etcd.waiters[op.key].need {
				all = append(all, del(oldWaiterOf(keys, pool, m.order(op.key))))
			}
		case "slot":
			all = append(all, del(m.slotKey(op.key)))
		case "notice":
			all = append(all, del(m.notice(op.key, m.etcd.notices[op.key].instance)))
		case "lease":
			all = append(all, del(keys.Lease("h", store.LeaseID(instanceLease[op.key]))))
		}
	}
	return all
}

func (m *queueModel) slotKey(place string) string {
	var pool string
	var index int
	if _, err := fmt.Sscanf(strings.Replace(place, "/", " ", 1), "%s %d", &pool, &index); err != nil {
		panic(err)
	}
	return oldSlotOf(keys, pool, 0, index)
}

// admitted is what a dispatcher grants by its view.
func (m *queueModel) admitted() (all []modelWaiter) {
	line := m.line(m.view)
	switch m.fault {
	case "last first":
		slices.Reverse(line)
	case "own first":
		slices.SortStableFunc(line, func(a, b modelWaiter) int {
			return strings.Compare(onlyIf(a.instance != m.by, "other"), onlyIf(b.instance != m.by, "other"))
		})
	}
	free, reserved := map[string]int{}, map[string]bool{}
	for pool, n := range m.limits {
		free[pool] = n - m.view.used(pool)
	}
	for _, w := range line {
		if m.yields(w) || m.skipped[fmt.Sprint(w.id, w.rev)] || m.fault == "forgets an instance" && w.instance == "k" {
			continue
		}
		fits, anyReserved := true, false
		for pool, n := range w.need {
			fits, anyReserved = fits && free[pool] >= n, anyReserved || reserved[pool]
		}
		switch {
		case fits:
			all = append(all, w)
		case w.reserve && !anyReserved:
			for pool := range w.need {
				reserved[pool] = true
			}
		default:
			continue
		}
		for pool, n := range w.need {
			free[pool] -= n
		}
	}
	return all
}

// yields reports whether the dispatcher passes the waiters of an instance.
func (m *queueModel) yields(w modelWaiter) bool {
	n := 0
	for _, x := range m.view.notices {
		if x.instance == w.instance {
			n++
			if m.clock.Sub(x.at) >= 2*time.Second {
				return true
			}
		}
	}
	return n >= 4 && m.fault == ""
}

// dispatch grants what the view has to be granted, if etcd agrees.
func (m *queueModel) dispatch() {
	batch, free := m.admitted(), m.view.clone()
	if len(batch) == 0 {
		return
	}
	batch = batch[:1+m.r.IntN(len(batch))]
	var ops []modelOp
	var events []*mvccpb.Event
	for _, w := range batch {
		now, ok := m.etcd.waiters[w.id]
		if !m.etcd.leases[w.instance] {
			m.skipped[fmt.Sprint(w.id, w.rev)] = true
			return
		}
		if !ok || now.rev != w.rev {
			return
		}
		index := 0
		taken := func() bool {
			for pool := range w.need {
				if _, there := free.slots[fmt.Sprintf("%s/%d", pool, index)]; there {
					return true
				}
			}
			return false
		}
		for taken() {
			index++
		}
		for pool, n := range w.need {
			key := fmt.Sprintf("%s/%d", pool, index)
			if _, there := m.etcd.slots[key]; there {
				return
			}
			free.slots[key] = modelSlot{w.id, w.instance, n}
			ops = append(ops, modelOp{"slot", key, free.slots[key]})
		}
		ops = append(ops, modelOp{"waiter", w.id, nil})
		if w.instance != m.by {
			ops = append(ops, modelOp{"notice", w.id, modelNotice{w.instance, m.clock}})
		}
		events = append(events, m.queueTape.grant(w.id, w.instance, w.need, index, w.instance != m.by)...)
	}
	after := m.etcd.clone()
	after.apply(ops, m.rev+1)
	for pool, n := range m.limits {
		if after.used(pool) > n {
			return // it has not seen what the dispatcher before it has granted
		}
	}
	m.log = append(m.log, ops)
	m.at(events...)
	m.etcd = after
	m.view.apply(ops, m.rev)
	m.granted += len(batch)
}

// follow has the dispatcher see some more of what was written.
func (m *queueModel) follow(n int) {
	for ; n > 0 && m.seen < m.rev; n-- {
		m.seen++
		m.view.apply(m.log[m.seen-m.first], m.seen)
	}
	for n := m.r.IntN(12); n > 0 && m.nextAt < m.rev; n-- {
		m.nextAt++
		m.next.apply(m.log[m.nextAt-m.first], m.nextAt)
	}
}

// one of the keys of a map, "" if there is none.
func one[V any](r *rand.Rand, of map[string]V) string {
	all := slices.Sorted(maps.Keys(of))
	if len(all) == 0 {
		return ""
	}
	return all[r.IntN(len(all))]
}

// free gives back all slots of a claim.
func (m *queueModel) freed(claim string) (ops []modelOp) {
	for key, x := range m.etcd.slots {
		if x.claim == claim {
			ops = append(ops, modelOp{"slot", key, nil})
		}
	}
	return ops
}

// step has anything happen.
func (m *queueModel) step() {
	switch n := m.r.IntN(100); {
	case n < 25:
		m.n++
		id := fmt.Sprintf("%s%d", []string{"high", "low"}[m.r.IntN(2)], m.n)
		m.since[id] = int(m.rev) - m.r.IntN(3)
		needs := []need{{"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1}, {"a": 3}}
		m.write(modelOp{"waiter", id, modelWaiter{id: id, instance: []string{"d", "i", "j", "k"}[m.r.IntN(4)], need: needs[m.r.IntN(len(needs))]}})
	case n < 28:
		if id := one(m.r, m.etcd.waiters); id != "" {
			m.write(modelOp{"waiter", id, nil})
		}
	case n < 31:
		if id := one(m.r, m.etcd.waiters); id != "" {
			w := m.etcd.waiters[id]
			w.reserve = true
			m.write(modelOp{"waiter", id, w})
		}
	case n < 46:
		if key := one(m.r, m.etcd.slots); key != "" {
			x := m.etcd.slots[key]
			ops := m.freed(x.claim)
			if m.etcd.notices[x.claim].instance != "" {
				ops = append(ops, modelOp{"notice", x.claim, nil})
			}
			m.write(ops...)
			if x.instance == m.by {
				m.view.apply(ops, m.rev) // it has done that itself
			}
		}
	case n < 48:
		if id := one(m.r, m.view.notices); id != "" && m.etcd.notices[id].instance != "" { // a grant that was not confirmed
			ops := append(m.freed(id), modelOp{"notice", id, nil})
			m.write(ops...)
			m.view.apply(ops, m.rev)
		}
	case n < 60:
		if id := one(m.r, m.etcd.notices); id != "" {
			m.write(modelOp{"notice", id, nil})
		}
	case n < 61:
		name := one(m.r, m.etcd.leases)
		if name == "" {
			return
		}
		ops := []modelOp{{"lease", name, nil}}
		for key, x := range m.etcd.slots {
			if x.instance == name {
				ops = append(ops, modelOp{"slot", key, nil})
			}
		}
		for id, x := range m.etcd.notices {
			if x.instance == name {
				ops = append(ops, modelOp{"notice", id, nil})
			}
		}
		m.write(ops...)
	case n < 63:
		for _, name := range slices.Sorted(maps.Keys(instanceLease)) {
			if !m.etcd.leases[name] {
				m.write(modelOp{"lease", name, true})
				for id, w := range m.etcd.waiters {
					if w.instance == name {
						m.write(modelOp{"waiter", id, w})
					}
				}
				return
			}
		}
	case n < 64:
		m.takeRole(map[string]string{"d": "i", "i": "d"}[m.by])
	case n < 68:
		m.pass(time.Duration(m.r.IntN(2500)) * time.Millisecond)
	case n < 84:
		m.follow(m.r.IntN(12))
	default:
		m.dispatch()
	}
}

func runQueueModel(seed uint64, fault queueFault) *queueModel {
	m := newQueueModel(seed, fault)
	for range 250 {
		m.step()
	}
	return m
}

func TestADispatcherThatKeepsTheOrderIsFoundToDoSo(t *testing.T) {
	granted, seeds := 0, uint64(800)
	if testing.Short() {
		seeds = 80
	}
	for seed := range seeds {
		m := runQueueModel(seed, "")
		granted += m.granted
		if all := m.Violations(); len(all) > 0 {
			t.Fatalf("seed %d: %v", seed, all)
		}
	}
	if granted < 12*int(seeds) {
		t.Errorf("only %d claims were granted", granted)
	}
}

func TestADispatcherThatBreaksTheOrderIsFound(t *testing.T) {
	for _, fault := range []queueFault{"last first", "own first", "forgets an instance"} {
		t.Run(string(fault), func(t *testing.T) {
			found := 0
			for seed := range uint64(50) {
				all := runQueueModel(seed, fault).Violations()
				if slices.ContainsFunc(all, func(v Violation) bool { return v.Rule != Order }) {
					t.Fatalf("seed %d: %v", seed, all)
				}
				if len(all) > 0 {
					found++
				}
			}
			if found < 10 {
				t.Errorf("it was found in %d of 50 histories", found)
			}
		})
	}
}
