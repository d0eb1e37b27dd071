package lease

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/store"
)

// bookModel drives a book with random calls and answers, and knows by itself
// what is reserved where, and when each lease was last known to be restarted.
type bookModel struct {
	*book
	now    time.Duration
	nextID store.LeaseID

	keys     map[store.LeaseID][]int         // reserved sets
	ends     map[store.LeaseID]time.Duration // of their validity
	adopted  map[store.LeaseID]bool          // not renewed since
	suspect  map[store.LeaseID]bool
	reported map[store.LeaseID]bool // lost
	tries    []renewal              // under way
	grants   []grant                // under way
	pending  map[time.Duration]bool // an ordinary set was refused, and not called back
}

func newBookModel() *bookModel {
	return &bookModel{
		book: newBook(), now: time.Hour,
		keys: map[store.LeaseID][]int{}, ends: map[store.LeaseID]time.Duration{},
		adopted: map[store.LeaseID]bool{}, suspect: map[store.LeaseID]bool{},
		reported: map[store.LeaseID]bool{}, pending: map[time.Duration]bool{},
	}
}

var modelTTLs = rapid.SampledFrom([]time.Duration{5 * time.Second, 30 * time.Second, 5 * time.Minute})

func (m *bookModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"acquire": m.acquireSome,
		"release": m.releaseSome,
		"suspect": func(t *rapid.T) {
			id := m.any(t, m.keys)
			m.book.suspect(m.now, []store.LeaseID{id})
			m.suspect[id] = true
		},
		"adopt": func(t *rapid.T) {
			m.nextID++
			d := modelTTLs.Draw(t, "duration")
			age := time.Duration(rapid.Int64Range(0, int64(d/2)).Draw(t, "age"))
			w := NewWindow(m.now-age, d)
			m.book.adopt(m.now, Resumable{ID: m.nextID, Duration: d, Window: w}, 5)
			m.keys[m.nextID], m.ends[m.nextID], m.adopted[m.nextID] = []int{5}, w.Until(), true
		},
		"tick": func(t *rapid.T) {
			m.now += time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond
			m.carryOut(t)
		},
		"healthy for a while": func(t *rapid.T) {
			for range rapid.IntRange(1, 200).Draw(t, "ticks") {
				m.now += tickEvery
				m.carryOut(t)
				for len(m.grants) > 0 {
					m.answerGrant(t)
				}
				for len(m.tries) > 0 {
					m.succeed(m.tries[0])
					m.tries = m.tries[1:]
				}
			}
		},
		"suspend": func(t *rapid.T) {
			m.now += time.Duration(rapid.IntRange(0, 900).Draw(t, "s")) * time.Second
		},
		"grant":  m.answerGrant,
		"renew":  m.answerRenewal,
		"forget": m.forget,
		"": func(t *rapid.T) {
			for id, l := range m.leases {
				m.checkLease(t, id, l)
			}
		},
	}
}

func (m *bookModel) any(t *rapid.T, from map[store.LeaseID][]int) store.LeaseID {
	if len(from) == 0 {
		t.Skip("no lease")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(from))).Draw(t, "lease")
}

func (m *bookModel) acquireSome(t *rapid.T) {
	d := modelTTLs.Draw(t, "duration")
	n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1, 1600)).Draw(t, "keys")
	id, ok, more := m.book.acquire(m.now, d, n)
	if !ok {
		g := m.groups[d]
		if n > KeysPerLease {
			if !more && !g.grantingWide {
				t.Fatal("a large set was refused and no lease is made for it")
			}
			return
		}
		m.pending[d] = true
		if !more && !g.granting {
			t.Fatal("a set was refused and no lease is made for it")
		}
		return
	}
	switch e := m.leases[id]; {
	case e.duration != d:
		t.Fatalf("asked for %s, got %s", d, e.duration)
	case m.adopted[id] || m.suspect[id] || m.reported[id]:
		t.Fatalf("lease %s: adopted %v, suspect %v, lost %v", name(id), m.adopted[id], m.suspect[id], m.reported[id])
	case m.now >= m.ends[id]-StopGrace(d):
		t.Fatal("keys on a lease whose holders are to stop")
	}
	m.keys[id] = append(m.keys[id], n)
}

func (m *bookModel) releaseSome(t *rapid.T) {
	id := m.any(t, m.keys)
	sets := m.keys[id]
	if len(sets) == 0 {
		t.Skip("no keys")
	}
	i := rapid.IntRange(0, len(sets)-1).Draw(t, "set")
	if _, bad := m.book.release(m.now, id, sets[i]); bad {
		t.Fatal("a right release was called bad")
	}
	m.keys[id] = slices.Delete(slices.Clone(sets), i, i+1)
}

// carryOut does what is due, and checks what the book wants done.
func (m *bookModel) carryOut(t *rapid.T) {
	w := m.due(m.now)
	for _, l := range w.lost {
		if m.reported[l.id] {
			t.Fatalf("lease %s was lost twice", name(l.id))
		}
		if errors.Is(l.cause, ErrValidityEnded) && m.now < m.ends[l.id] {
			t.Fatalf("lease %s was lost early", name(l.id))
		}
		m.reported[l.id] = true
		delete(m.keys, l.id)
	}
	for _, id := range w.revoke {
		if len(m.keys[id]) > 0 {
			t.Fatalf("lease %s is given back with keys %v", name(id), m.keys[id])
		}
		delete(m.keys, id)
	}
	m.tries = append(m.tries, w.renew...)
	m.grants = append(m.grants, w.grant...)
	if w.ready {
		clear(m.pending)
	}
	m.checkProgress(t)
}

// checkProgress: a refused caller is called back now, or a lease is on its
// way; and every lease that should be renewed is.
func (m *bookModel) checkProgress(t *rapid.T) {
	for d := range m.pending {
		if !slices.Contains(m.grants, grant{duration: d}) {
			t.Fatalf("a set for %s was refused and is forgotten", d)
		}
	}
	for id, e := range m.leases {
		if m.now >= e.window.Sent+e.window.TTL/renewals && e.failure == nil && !e.renewing {
			t.Fatalf("lease %s is not renewed", name(id))
		}
	}
}

func (m *bookModel) answerGrant(t *rapid.T) {
	if len(m.grants) == 0 {
		t.Skip("no grant")
	}
	job := m.grants[0]
	m.grants = m.grants[1:]
	m.nextID++
	w := NewWindow(m.now-time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms"))*time.Millisecond, job.duration)
	m.granted(m.now, job, m.nextID, w)
	m.keys[m.nextID], m.ends[m.nextID] = nil, w.Until()
}

func (m *bookModel) answerRenewal(t *rapid.T) {
	if len(m.tries) == 0 {
		t.Skip("no renewal")
	}
	i := rapid.IntRange(0, len(m.tries)-1).Draw(t, "try")
	try := m.tries[i]
	m.tries = slices.Delete(m.tries, i, i+1)
	switch rapid.IntRange(0, 4).Draw(t, "answer") {
	case 0:
		m.unrenewed(m.now, try, store.ErrUnavailable)
	case 1:
		m.gone(try.id, store.ErrLeaseNotFound)
	default:
		m.succeed(try)
	}
}

func (m *bookModel) succeed(try renewal) {
	m.renewed(m.now, try, try.ttl)
	e := m.leases[try.id]
	if e == nil {
		return
	}
	m.ends[try.id] = try.sent + try.ttl - Margin(try.ttl)
	delete(m.adopted, try.id)
	if e.suspected == try.suspected {
		delete(m.suspect, try.id)
	}
}

// forget makes holders of a lost lease release what is gone.
func (m *bookModel) forget(t *rapid.T) {
	for id := range m.reported {
		if awaited, bad := m.book.release(m.now, id, 1); awaited || bad {
			t.Fatal("a release of a lost lease did something")
		}
	}
}

func (m *bookModel) checkLease(t *rapid.T, id store.LeaseID, e *entry) {
	sum := 0
	for _, n := range m.keys[id] {
		sum += n
	}
	if e.keys != sum {
		t.Fatalf("lease %s: %d keys reserved, the book says %d", name(id), sum, e.keys)
	}
	if sum > KeysPerLease && len(m.keys[id]) > 1 {
		t.Fatalf("lease %s: sets %v share it", name(id), m.keys[id])
	}
	w, ok := m.validity(m.now, id)
	if ok && (m.now >= m.ends[id] || w.Until() != m.ends[id]) {
		t.Fatalf("lease %s: valid until %s, should be %s, adopted %v", name(id), w.Until(), m.ends[id], m.adopted[id])
	}
	if !ok && m.now < m.ends[id] {
		t.Fatalf("lease %s is not trusted", name(id))
	}
}

func TestTheBookKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newBookModel()
		for range 8 { // one repetition is some 30 steps
			t.Repeat(m.actions())
		}
	})
}

func TestABookForgetsDurationsNobodyUses(t *testing.T) {
	b := newBook()
	for i := range 100 {
		d := time.Duration(5+i) * time.Second
		b.acquire(0, d, 1)
		for _, job := range b.due(0).grant {
			b.granted(0, job, store.LeaseID(i+1), NewWindow(0, d))
		}
		b.due(0) // calls back
	}
	b.due(time.Hour) // all are lost
	b.due(time.Hour)
	if len(b.groups) > 0 || len(b.leases) > 0 {
		t.Errorf("%d durations and %d leases are remembered", len(b.groups), len(b.leases))
	}
}
