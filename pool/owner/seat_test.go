package owner

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// workers are the places that the hosts of a world have, which some of their claims need.
type workers struct {
	*rand.Rand
	places map[*host]*pool.Places
	total  map[*host]int
	other  map[*host]*pool.Place // of what needs no slots
	of     map[*Claim]*pool.Place
	since  map[string]int64 // by claim
	held   map[*host]int    // claims with places that have slots, as far as the host knows
	mutant string
	workersStats
}

type workersStats struct{ granted, passed int }

func newWorkers(seed uint64) *workers {
	return &workers{
		Rand: rand.New(rand.NewPCG(seed, 7)), places: map[*host]*pool.Places{}, total: map[*host]int{}, other: map[*host]*pool.Place{},
		of: map[*Claim]*pool.Place{}, since: map[string]int64{}, held: map[*host]int{},
	}
}

// seat has some claims need a place.
func (w *world) seat(h *host, r *pool.Request) *pool.Place {
	k := w.workers
	if k.places[h] == nil {
		k.total[h] = 1 + k.IntN(4)
		k.places[h] = pool.NewPlaces(k.total[h])
		k.other[h] = k.places[h].New()
	}
	if k.IntN(3) > 0 || r.Bridge {
		return nil
	}
	p := k.places[h].New()
	if r.Place = p; k.IntN(4) == 0 {
		p.Take() // its worker has a place for it already
	}
	if r.Since = 1 + k.Int64N(w.etcd.Revision()); r.Wait > 0 {
		k.since[asked(r)] = r.Since
	}
	switch k.mutant {
	case "a place is taken":
		r.Place = nil
	case "the stamp of a step":
		r.Since = 0
	}
	return p
}

// work takes a place for something that needs no slots, or gives it back.
func (w *world) work(h *host) {
	if p := w.workers.other[h]; p != nil && !p.Taken() {
		p.Take()
	} else if p != nil {
		p.Give()
	}
}

// spoil is what the mutants do to a host that has sent something.
func (w *world) spoil(h *host) {
	if w.workers.mutant == "a full worker leaves" {
		h.queue.seats.list = nil
	}
	if h.commits.flight == nil {
		return
	}
	for _, it := range h.commits.flight.items {
		switch p := w.workers.of[it.claim]; {
		case it.kind != takes || p == nil:
		case w.workers.mutant == "a place is given back":
			it.claim.request.Place = w.workers.places[h].New()
		case w.workers.mutant == "a place is returned" && it.from != nil && it.from.combined != nil:
			it.from.combined.place = nil
		}
	}
}

// full reports whether a claim can't be granted since its worker has no place for it.
func (w *world) full(c *Claim) bool {
	p := w.workers.of[c]
	return p != nil && !p.Available()
}

// seated takes what has become of a claim that needs a place.
func (w *world) seated(h *host, r Result) {
	k, p := w.workers, w.workers.of[r.Claim]
	if p == nil {
		return
	}
	id := r.Claim.request.ID
	switch r.Outcome {
	case Waits, Refused, Withdrawn:
		w.check(!p.Taken(), "claim %s has no slots, and its place is taken", id)
	case Granted:
		k.granted++
		w.check(p.Taken(), "claim %s has slots and no place", id)
		k.held[h]++
	case Lost, Released:
		k.held[h]--
		p.Give()
	}
	w.check(k.held[h] <= k.total[h], "%d claims have slots on %d places", k.held[h], k.total[h])
}

// checkSeat checks that a claim takes slots with a place, and does not wait without one.
func (w *world) checkSeat(id string) {
	for _, h := range w.hosts {
		for c := range h.asked {
			if p := w.workers.of[c]; p != nil && c.request.ID == id && c.state == taking {
				w.check(p.Taken(), "claim %s takes slots without a place", id)
			}
		}
	}
}

// checkSince checks that a step waits in the place of its publication.
func (w *world) checkSince(name string, revision int64) {
	if since := w.workers.since[name]; since > 0 {
		w.check(revision == since, "claim %s waits since %d, its step was published at %d", name, revision, since)
	}
}

// passes counts places that were passed on.
func (w *world) passes(events []*mvccpb.Event) {
	for _, h := range w.hosts {
		if h.commits.flight == nil {
			continue
		}
		for _, it := range h.commits.flight.items {
			if it.kind == takes && it.from != nil && it.from.combined != nil && w.workers.of[it.claim] != nil && !w.workers.of[it.from].Taken() && len(events) > 0 {
				w.workers.passed++
			}
		}
	}
}

// A worker never has more claims with slots than places, gives each place back that no claim uses, and has no claim wait in
// etcd while it is full. The mutants are those of the world.
func TestPlacesOfWorkers(t *testing.T) {
	long(t)
	t.Parallel()
	var all workersStats
	for seed := range uint64(150) {
		w := newWorld(seed, nil)
		w.seldom = 1000
		w.run(600)
		if len(w.errs) > 0 {
			t.Fatalf("schedule %d: %s", seed, strings.Join(w.errs, "\n"))
		}
		all.granted, all.passed = all.granted+w.workers.granted, all.passed+w.workers.passed
	}
	if t.Logf("%+v", all); all.granted < 500 || all.passed < 10 {
		t.Errorf("too little has happened: %+v", all)
	}
	for _, name := range []string{"a place is taken", "a full worker leaves", "a place is given back", "a place is returned", "the stamp of a step"} {
		t.Run(name, func(t *testing.T) {
			for seed := range schedules(name) {
				w := newWorld(seed, nil)
				w.workers.mutant = name
				if w.run(600); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", seed+1, w.errs[0])
					return
				}
			}
			t.Error("nothing noticed that it is missing")
		})
	}
}

// A claim that does not wait is refused while its worker is full, and others wait out of the queue.
func TestClaimsWithoutAPlace(t *testing.T) {
	r := newRig(t)
	places := pool.NewPlaces(1)
	running := places.New()
	running.Take()
	with := func(id string, wait time.Duration) *Claim {
		c := NewClaim(&pool.Request{ID: id, Slots: map[string]int{"db": 1}, Wait: wait, Place: places.New(), Holder: pool.Holder{Host: r.h.name, Instance: "i"}})
		r.h.Claim(c, r.now(), time.Unix(1, 0))
		return c
	}
	with("hasty", 0)
	waits := with("waits", time.Hour)
	all := r.pass(time.Second)
	if p := problem.Of(all["hasty"].Err); p == nil || p.Code != problem.NoCapacity {
		t.Errorf("%+v", all)
	}
	if _, there := all["waits"]; there || r.h.Waiting() > 0 {
		t.Errorf("%+v", all)
	}
	running.Give()
	if all := r.pass(time.Second); all["waits"].Outcome != Granted || places.Free() != 0 {
		t.Errorf("%+v", all)
	}
	next := with("next", time.Hour)
	if err := r.h.ReleaseWith(waits, store.Extra{}, waits.request.Place); err != nil {
		t.Fatal(err)
	}
	sent := r.sent
	if all := r.pass(time.Second); all["next"].Outcome != Granted || all["waits"].Revision != next.fence || r.sent-sent != 1 || places.Free() != 0 {
		t.Errorf("%+v, %d transactions", all, r.sent-sent)
	}
	if next.request.Place.Give(); !slices.Equal([]int{places.Free()}, []int{1}) {
		t.Error("its place is not free")
	}
}
