package worker

import (
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
)

// queue holds the instances that are published in one queue, by slot requirement: what
// blocks one instance blocks all with the same requirement.
type queue struct {
	name         string
	keys         store.Keys
	requirements map[string]*requirement
	of           map[string]*requirement // by order
	// from are the submitters whose commands the worker runs; refused are the instances of
	// other submitters, by order.
	from    access.Patterns
	refused map[string]*step.Published
	// bad are keys that cannot be read.
	bad map[string]error
}

// requirement holds the instances of a queue that need the same slots, in order.
type requirement struct {
	name  string
	pools map[string]int
	task  string
	all   []*offer
}

// offer is a published instance, and when this worker received it.
type offer struct {
	*step.Published
	seen   time.Time
	number uint64 // of its order: see [number]
	// mine is the result of [peers.mine] at the change number asked.
	mine  bool
	asked int
}

// requirementOf names the slot requirement of an instance.
func requirementOf(p *step.Published) string { return p.Task + "/" + run.PoolList(p.Pools) }

func newQueue(keys store.Keys, name string, from access.Patterns) *queue {
	q := &queue{name: name, keys: keys, from: from}
	q.clear()
	return q
}

func (q *queue) clear() {
	q.requirements, q.of, q.bad = map[string]*requirement{}, map[string]*requirement{}, map[string]error{}
	q.refused = map[string]*step.Published{}
}

// message applies a message of the queue's feed. It returns the values that cannot be read.
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
		return nil // for an external executor
	}
	if !q.from.Match(p.SubmittedBy) {
		q.refused[p.Order] = p
		return nil
	}
	name := requirementOf(p)
	c := q.requirements[name]
	if c == nil {
		c = &requirement{name: name, pools: p.Pools, task: p.Task}
		q.requirements[name] = c
	}
	at, _ := c.find(p.Order)
	c.all = slices.Insert(c.all, at, &offer{Published: p, seen: now, number: number(p.Order)})
	q.of[p.Order] = c
	return nil
}

func (q *queue) remove(key string) {
	delete(q.bad, key)
	order := strings.TrimPrefix(key, q.keys.Ready(q.name))
	delete(q.refused, order)
	c := q.of[order]
	if c == nil {
		return
	}
	delete(q.of, order)
	if at, ok := c.find(order); ok {
		c.removeAt(at)
	}
	if len(c.all) == 0 {
		delete(q.requirements, c.name)
	}
}

// has reports whether an instance is published with that revision.
func (q *queue) has(order string, revision int64) bool {
	c := q.of[order]
	if c == nil {
		return false
	}
	at, ok := c.find(order)
	return ok && c.all[at].Revision == revision
}

func (c *requirement) find(order string) (int, bool) {
	return slices.BinarySearchFunc(c.all, order, func(p *offer, order string) int { return strings.Compare(p.Order, order) })
}

// removeAt removes one. Most are removed near the front of a long list, so the shorter
// side is moved.
func (c *requirement) removeAt(at int) {
	if at > len(c.all)/2 {
		c.all = slices.Delete(c.all, at, at+1)
		return
	}
	copy(c.all[1:], c.all[:at])
	c.all[0] = nil
	c.all = c.all[1:]
}
