//go:build linux

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
)

// outageLease is long enough for half of it to be much less than what is
// survived (⅔, less the margin), also where everything is slow.
const outageLease = 15 * time.Second

// scene is what an outage meets: two hosts that hold all of a pool, and a line.
type scene struct {
	t     *testing.T
	w     *witness
	hosts []*instance.Client
	held  []*instance.Claim
	line  []*pending
	order []string // the line, as it was
}

func newScene(t *testing.T, w *witness, endpoints []string) *scene {
	s := &scene{t: t, w: w}
	for i := range 2 {
		s.hosts = append(s.hosts, open(t, endpoints, fmt.Sprintf("host%d", i)))
	}
	spec(t, s.hosts, "db", 4, leaseOf(outageLease))
	for i := range 4 {
		s.held = append(s.held, claim(t, s.hosts[i%2], fmt.Sprintf("held%d", i), instance.Slots{"db": 1}))
	}
	for i := range 6 {
		id := fmt.Sprintf("wait%d", i)
		s.line = append(s.line, begin(t, t.Context(), s.hosts[i%2], id, instance.Slots{"db": 1}))
		for _, c := range s.hosts {
			eventuallySees(t, c, id, func(bool) bool { return true })
		}
		w.until(id+" waits", func(h *History) bool { return h.Wait(id) != nil })
	}
	w.look(func(h *History) { s.order = h.Waiting() })
	return s
}

// undisturbed checks that the outage had no effect on any claim.
func (s *scene) undisturbed() {
	s.t.Helper()
	for _, cl := range s.held {
		if cl.Context().Err() != nil {
			s.t.Errorf("%s has ended: %v", cl, cl.Err())
		}
	}
	for _, p := range s.line {
		if !p.waiting() {
			s.t.Errorf("%s no longer waits: %v", p.id, p.err)
		}
	}
}

// servedInOrder shows that all goes on: each that is released lets in the
// next of the line as it was before.
func (s *scene) servedInOrder() {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.w.glance(func(h *History) {
				s.t.Logf("line %v want %v\nholds %+v\nwaits %+v", h.Waiting(), s.order, h.Holds(), h.Waits())
			})
		}
	}()
	s.w.until("the line stands again", func(h *History) bool { return slices.Equal(h.Waiting(), s.order) })
	for i, p := range s.line {
		release(s.t, s.held[i])
		s.held = append(s.held, p.granted())
	}
	var answers answers
	for _, cl := range s.held {
		answers.note(cl)
	}
	for _, cl := range s.held[len(s.line):] {
		release(s.t, cl)
	}
	answers.judge(s.w)
}

// lastsHalfALease waits for that long since begin, and skips the rest of the
// test if it has become so long that claims may be lost.
func lastsHalfALease(t *testing.T, begin time.Time, back func()) {
	t.Helper()
	pause(t.Context(), time.Until(begin.Add(outageLease/2)))
	back()
	if took := time.Since(begin); took > lease.Survives(outageLease, 0) {
		t.Skipf("the machine was so slow that the outage took %s", took)
	}
}

func TestAnEtcdThatStoodStillForHalfALeaseCostsNobodyAnything(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	w := watch(t, etcd.backend(t))
	s := newScene(t, w, etcd.endpoints())

	etcd.freeze()
	begun := time.Now()
	late := begin(t, t.Context(), s.hosts[0], "late", instance.Slots{"db": 1})
	gaveBack := make(chan error, 1)
	first := s.held[0]
	go func() { gaveBack <- first.Release(context.Background()) }()
	lastsHalfALease(t, begun, etcd.thaw)

	// What was asked for meanwhile is done: the release, and the claim, whose
	// place is behind those who were there.
	if err := <-gaveBack; err != nil {
		t.Errorf("the release: %v", err)
	}
	s.held = append(s.held[1:], s.line[0].granted())
	s.line, s.order = s.line[1:], append(s.order[1:], "late")
	s.undisturbed()
	s.line = append(s.line, late)
	s.servedInOrder()
}

func TestAnEtcdThatWasKilledForHalfALeaseCostsNobodyAnything(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	w := watch(t, etcd.backend(t))
	s := newScene(t, w, etcd.endpoints())

	etcd.kill()
	begun := time.Now()
	late := begin(t, t.Context(), s.hosts[0], "late", instance.Slots{"db": 1})
	lastsHalfALease(t, begun, etcd.restart)

	s.line, s.order = append(s.line, late), append(s.order, "late")
	s.undisturbed()
	s.servedInOrder()
}

func TestOneMemberKilledAndThenTheLeaderCostsNobodyAnything(t *testing.T) {
	t.Parallel()
	cluster := embedtest.Cluster(t, 3)
	w := watch(t, cluster.Client(t))
	s := newScene(t, w, cluster.Endpoints())

	other := (cluster.Leader() + 1) % 3
	cluster.Kill(other)
	s.oneComesAndGoes("after a member was killed")
	cluster.Restart(other)
	leader := cluster.Leader()
	cluster.Kill(leader)
	s.oneComesAndGoes("after the leader was killed")
	cluster.Restart(leader)
	s.undisturbed()
	s.servedInOrder()
}

// oneComesAndGoes shows that claims are made and given back right now.
func (s *scene) oneComesAndGoes(when string) {
	s.t.Helper()
	s.undisturbed()
	release(s.t, s.held[0])
	s.held = append(s.held[1:], s.line[0].granted())
	s.line, s.order = s.line[1:], s.order[1:]
	s.w.until("the line goes on "+when, func(h *History) bool { return slices.Equal(h.Waiting(), s.order) })
}
