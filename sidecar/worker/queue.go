package worker

import (
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// queue is what is published in one queue. Instances that need the same slots are a
// class: what holds up one of them holds up all.
type queue struct {
	name    string
	keys    store.Keys
	classes map[string]*class
	of      map[string]*class // by order: the class of each instance
	// bad are keys that can't be read.
	bad map[string]error
}

// class is the instances of a queue that need the same slots, in order.
type class struct {
	name  string
	pools map[string]int
	task  string
	all   []*offer
}

// offer is an instance that is published, and when this worker came to see it.
type offer struct {
	*step.Published
	seen   time.Time
	number uint64 // of its order: see [number]
	// mine is what [peers.mine] has said, at the change that asked tells.
	mine  bool
	asked int
}

// classOf names what an instance needs.
func classOf(p *step.Published) string { return p.Task + "/" + run.PoolList(p.Pools) }

func newQueue(keys store.Keys, name string) *queue {
	q := &queue{name: name, keys: keys}
	q.clear()
	return q
}

func (q *queue) clear() {
	q.classes, q.of, q.bad = map[string]*class{}, map[string]*class{}, map[string]error{}
}

// message takes what the queue's feed delivered, and returns what can't be read of it.
func (q *queue) message(m store.FeedMessage, now time.Time) (bad []error) {
	if m.Snapshot != nil {
		q.clear()
		for _, kv := range m.Snapshot.KVs {
			if err := q.put(kv, now); err != nil {
				bad = append(bad, err)
			}
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			q.remove(string(ev.Kv.Key))
			continue
		}
		if err := q.put(ev.Kv, now); err != nil {
			bad = append(bad, err)
		}
	}
	return bad
}

func (q *queue) put(kv *mvccpb.KeyValue, now time.Time) error {
	key := string(kv.Key)
	q.remove(key)
	p, err := step.DecodeReady(q.keys, kv)
	if err != nil {
		q.bad[key] = err
		return err
	}
	if p.External {
		return nil // for somebody else
	}
	name := classOf(p)
	c := q.classes[name]
	if c == nil {
		c = &class{name: name, pools: p.Pools, task: p.Task}
		q.classes[name] = c
	}
	at, _ := c.find(p.Order)
	c.all = slices.Insert(c.all, at, &offer{Published: p, seen: now, number: number(p.Order)})
	q.of[p.Order] = c
	return nil
}

func (q *queue) remove(key string) {
	delete(q.bad, key)
	order := strings.TrimPrefix(key, q.keys.Ready(q.name))
	c := q.of[order]
	if c == nil {
		return
	}
	delete(q.of, order)
	if at, ok := c.find(order); ok {
		c.removeAt(at)
	}
	if len(c.all) == 0 {
		delete(q.classes, c.name)
	}
}

// has tells whether an instance is published there as it was at that revision.
func (q *queue) has(order string, revision int64) bool {
	c := q.of[order]
	if c == nil {
		return false
	}
	at, ok := c.find(order)
	return ok && c.all[at].Revision == revision
}

func (c *class) find(order string) (int, bool) {
	return slices.BinarySearchFunc(c.all, order, func(p *offer, order string) int { return strings.Compare(p.Order, order) })
}

// removeAt takes one out. They go from the front, mostly, and there may be very many: so
// what is moved is the shorter side.
func (c *class) removeAt(at int) {
	if at > len(c.all)/2 {
		c.all = slices.Delete(c.all, at, at+1)
		return
	}
	copy(c.all[1:], c.all[:at])
	c.all[0] = nil
	c.all = c.all[1:]
}
