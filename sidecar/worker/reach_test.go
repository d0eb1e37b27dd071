package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// crowd makes the peers of some hosts, as the first of them sees them.
func crowd(names ...string) *peers {
	var seen store.Snapshot
	for _, name := range names {
		p := lease.PresenceRecord{Role: Role, Queues: []string{"q"}}
		seen.KVs = append(seen.KVs, &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(name, Role)), Value: presence(p)})
	}
	p := newPeers(pickKeys, names[0], Role, hclog.NewNullLogger())
	p.message(store.FeedMessage{Snapshot: &seen})
	return p
}

func manyOffers(n int, seen time.Time) (all []*offer) {
	for i := range n {
		r := step.Ready{Run: "r", Step: "s", Index: i}
		o := step.OrderOf(0, 1, 0, i, r.Run)
		all = append(all, &offer{Published: &step.Published{Ready: r, Queue: "q", Order: o, Revision: 1}, number: number(o), seen: seen})
	}
	slices.SortFunc(all, func(a, b *offer) int { return strings.Compare(a.Order, b.Order) })
	return all
}

// Another worker is full for long. All has been published an hour ago, half of it is the
// worker's own, and the worker has capacity: it waits for the other for a turn at most, and goes
// on with its own, or with what is late.
func TestAWorkerWithCapacityAndItsOwnDoesNotStandStill(t *testing.T) {
	now := time.Unix(10_000, 0)
	all := manyOffers(400, now.Add(-time.Hour))
	peers, help := crowd("a", "b"), newHelp()
	still := 0
	for len(all) > 0 {
		now = now.Add(time.Millisecond) // the time of an instance
		c := choice{
			now: now, turn: shortTurn, peers: peers, help: help, capacity: 4, free: 4,
			queues: []*queue{{name: "q", requirements: map[string]*requirement{"": {all: all}}}},
			skip:   func(*offer) bool { return false },
			slots:  func(*requirement) map[string]int { return nil },
		}
		p := pick(c)
		help.note(p.short, now, shortTurn)
		if len(p.plain) == 0 {
			still++
		}
		all = slices.DeleteFunc(all, func(o *offer) bool { return slices.Contains(p.plain, o) })
	}
	if most := int(shortTurn/time.Millisecond) + 1; still > most {
		t.Errorf("it stood still for %d ms, and %d are a turn", still, most)
	}
}

// One urgent instance, published an hour ago, comes first for a worker that is full. The
// other worker has one place free at a time, and plenty of its own: it takes the urgent one
// or one of its own, and does not leave the place empty.
func TestAPlaceIsNotKeptForWhatIsLate(t *testing.T) {
	now := time.Unix(10_000, 0)
	peers := crowd("a", "b")
	all := manyOffers(200, now.Add(-time.Hour))
	for i := range 100 {
		r := step.Ready{Run: "urgent", Step: "s", Index: i, Priority: 5}
		o := step.OrderOf(5, 1, 0, i, r.Run)
		u := &offer{Published: &step.Published{Ready: r, Queue: "q", Order: o, Revision: 1}, number: number(o), seen: now.Add(-time.Hour)}
		if !peers.mine(u) {
			all = append(all, u)
			break
		}
	}
	slices.SortFunc(all, func(a, b *offer) int { return strings.Compare(a.Order, b.Order) })
	p := pick(choice{
		now: now, turn: longTurn, peers: peers, help: newHelp(), capacity: 4, free: 1,
		queues: []*queue{{name: "q", requirements: map[string]*requirement{"": {all: all}}}},
		skip:   func(*offer) bool { return false },
		slots:  func(*requirement) map[string]int { return nil },
	})
	if len(p.plain) == 0 {
		t.Errorf("nothing is taken with a place free: the first of %d is urgent: %v, and has been there for an hour", len(all), all[0].Priority == 5)
	}
}
