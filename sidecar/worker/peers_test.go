package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// looking is a worker that reads a queue.
type looking struct {
	choice
	skipped map[string]bool // orders
}

// lookers draws workers that see each other and one queue, each with its own clock.
func lookers(t *rapid.T) (all []looking, offers []*offer) {
	n := rapid.IntRange(1, 5).Draw(t, "workers")
	var seen store.Snapshot
	for i := range n {
		p := lease.PresenceRecord{Role: Role, Queues: []string{"q"}}
		seen.KVs = append(seen.KVs, &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(host(i), Role)), Value: presence(p)})
	}
	for i := range rapid.IntRange(0, 60).Draw(t, "instances") {
		r := step.Ready{Run: "r", Step: "s", Index: i, Priority: rapid.IntRange(0, 2).Draw(t, "priority")}
		offers = append(offers, &offer{Published: &step.Published{
			Ready: r, Queue: "q", Order: step.OrderOf(r.Priority, 1, 0, i, r.Run), Revision: 1,
		}})
	}
	slices.SortFunc(offers, func(a, b *offer) int { return strings.Compare(a.Order, b.Order) })
	for i := range n {
		l := looking{skipped: map[string]bool{}}
		own := make([]*offer, len(offers))
		for k, o := range offers {
			own[k] = &offer{Published: o.Published, number: number(o.Order), seen: time.UnixMilli(int64(rapid.SampledFrom([]int{-5000, 0, 900, 1000}).Draw(t, "seen")))}
			l.skipped[o.Order] = rapid.IntRange(0, 5).Draw(t, "skip") == 0
		}
		peers := newPeers(pickKeys, host(i), Role, hclog.NewNullLogger())
		peers.message(store.FeedMessage{Snapshot: &seen})
		l.choice = choice{
			now: time.UnixMilli(1000), turn: 100 * time.Millisecond, peers: peers,
			help:   newHelp(),
			queues: []*queue{{name: "q", requirements: map[string]*requirement{"": {all: own}}}},
			free:   rapid.IntRange(0, 12).Draw(t, "free"),
			skip:   func(o *offer) bool { return l.skipped[o.Order] },
			slots:  func(*requirement) map[string]int { return nil },
		}
		l.capacity = l.free + rapid.IntRange(0, 3).Draw(t, "has")
		if rapid.Bool().Draw(t, "helps") {
			l.help.until[""] = l.now.Add(1)
		}
		all = append(all, l)
	}
	return all, offers
}

func host(i int) string { return fmt.Sprintf("h%d", i) }

func presence(r lease.PresenceRecord) []byte {
	type value struct {
		store.V
		lease.PresenceRecord
	}
	return store.Encode(value{store.Now, r})
}

func TestWhatAWorkerPicksIsItsToTake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, _ := lookers(t)
		for _, l := range all {
			p := pick(l.choice)
			taken := map[string]*offer{}
			for _, o := range p.plain {
				if l.skipped[o.Order] || taken[o.Order] != nil {
					t.Fatalf("%s is taken, which is skipped or taken twice", o.Order)
				}
				taken[o.Order] = o
			}
			if len(taken) > l.free {
				t.Fatalf("%d are taken where there are %d free slots", len(taken), l.free)
			}
			left := 0
			var first *offer // of its own
			for _, o := range l.queues[0].requirements[""].all {
				if first == nil && l.peers.mine(o) && !l.skipped[o.Order] {
					first = o
				}
			}
			for _, o := range l.queues[0].requirements[""].all {
				helps := l.help.gives("", l.now, l.turn) || first != nil && o.Priority > first.Priority
				may := l.peers.mine(o) || helps && l.now.Sub(o.seen) >= l.turn || first != nil && first.seen.Sub(o.seen) > longTurn
				if taken[o.Order] != nil && !may {
					t.Fatalf("%s is taken before its turn", o.Order)
				}
				if taken[o.Order] != nil || l.skipped[o.Order] {
					continue
				}
				if !may {
					left++
					continue
				}
				for _, lower := range taken {
					if lower.Priority < o.Priority {
						t.Fatalf("%s is taken, and %s of a higher priority is not", lower.Order, o.Order)
					}
				}
				if len(all) == 1 && len(taken) < l.free {
					t.Fatalf("%s is left, though there is capacity", o.Order)
				}
			}
			if left > 0 && l.free > 0 && len(taken) == 0 && !p.again {
				t.Fatalf("nothing is taken of %d, and no worker will check again", left)
			}
		}
	})
}

// Who has enough of its own leaves theirs to others, unless it is much older.
func TestAWorkerLeavesOthersTheirsWhileItHasItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, _ := lookers(t)
		l := all[0]
		l.capacity = 60 // it sees all of them
		own := 0
		for _, o := range l.queues[0].requirements[""].all {
			o.seen = time.UnixMilli(900)
			if o.Priority = 0; l.peers.mine(o) && !l.skipped[o.Order] {
				own++
			}
		}
		for _, o := range pick(l.choice).plain {
			if !l.peers.mine(o) && own >= l.free {
				t.Fatalf("%s is taken of others, and %d are its own for %d places", o.Order, own, l.free)
			}
		}
	})
}

func TestAWorkerThatIsAloneKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, offers := lookers(t)
		l := all[0]
		l.peers = newPeers(pickKeys, host(0), Role, hclog.NewNullLogger())
		var want []string
		for _, o := range offers {
			if !l.skipped[o.Order] && len(want) < l.free {
				want = append(want, o.Order)
			}
		}
		var got []string
		for _, o := range pick(l.choice).plain {
			got = append(got, o.Order)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("it takes %v, not %v", got, want)
		}
	})
}

// Of what was published just now, no two workers try the same: each instance is one
// worker's, and some worker's.
func TestWorkersDoNotMeetAtWhatIsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, offers := lookers(t)
		by := map[string]int{}
		for i, l := range all {
			clear(l.skipped)
			for _, o := range l.queues[0].requirements[""].all {
				o.seen = l.now
			}
			l.turn, l.free = time.Hour, len(offers)
			for _, o := range pick(l.choice).plain {
				if other, twice := by[o.Order]; twice {
					t.Fatalf("%s is taken by %d and by %d", o.Order, other, i)
				}
				by[o.Order] = i
			}
		}
		if len(by) != len(offers) {
			t.Fatalf("%d of %d belong to no worker", len(offers)-len(by), len(offers))
		}
	})
}

func TestAWorkerThatIsGoneLeavesItsInstancesToTheOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, _ := lookers(t)
		p := all[0].peers
		before := map[string]bool{}
		list := all[0].queues[0].requirements[""].all
		for _, o := range list {
			before[o.Order] = p.mine(o)
		}
		for i := 1; i < len(all); i++ {
			p.message(store.FeedMessage{Events: []*mvccpb.Event{{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(host(i), Role))}}}})
			for _, o := range list {
				if before[o.Order] && !p.mine(o) {
					t.Fatalf("%s was the worker's, and is another worker's when others go", o.Order)
				}
			}
		}
		if p.count("q") != 1 || slices.ContainsFunc(list, func(o *offer) bool { return !p.mine(o) }) {
			t.Fatal("not all is the worker's that is left")
		}
	})
}

func TestOnlyThoseWhoTakeFromAQueueArePeersThere(t *testing.T) {
	p := newPeers(pickKeys, "a", Role, hclog.NewNullLogger())
	put := func(host string, value []byte) {
		p.message(store.FeedMessage{Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(host, Role)), Value: value}}}})
	}
	put("a", presence(lease.PresenceRecord{Queues: []string{"q"}}))
	put("b", presence(lease.PresenceRecord{Queues: []string{"q", "q", "other"}}))
	put("c", presence(lease.PresenceRecord{}))
	put("d", []byte("{"))
	if got, want := map[string]int{"q": p.count("q"), "other": p.count("other"), "none": p.count("none")}, map[string]int{"q": 2, "other": 2, "none": 1}; !maps.Equal(got, want) {
		t.Errorf("so many take from queues: %v, want %v", got, want)
	}
	put("b", []byte("{"))
	if p.count("q") != 1 {
		t.Error("whose entry can't be read any more is a peer still")
	}
}
