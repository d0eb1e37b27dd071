package worker

import (
	"hash/fnv"
	"slices"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// peers are the known workers by queue, including this one. Each instance is one worker's
// own at first, so that workers do not try to take the same ones at the same time. If they
// disagree, that costs a moment, never an instance.
type peers struct {
	keys   store.Keys
	feed   *store.Feed
	log    hclog.Logger
	own    uint64              // the number of this worker
	queues map[string][]string // by presence key
	of     map[string][]uint64 // the numbers of the others, by queue
	// changes counts the changes of others, from 1.
	changes int
}

func newPeers(keys store.Keys, host, instance string, log hclog.Logger) *peers {
	return &peers{
		keys: keys, log: log, own: number(keys.Presence(host, instance)),
		queues: map[string][]string{}, of: map[string][]uint64{}, changes: 1,
	}
}

// number hashes a name (FNV-1a).
func number(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // it never fails
	return h.Sum64()
}

// message applies a message of the feed of all instances.
func (p *peers) message(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(p.queues)
		for _, kv := range m.Snapshot.KVs {
			p.put(kv)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			delete(p.queues, string(ev.Kv.Key))
			continue
		}
		p.put(ev.Kv)
	}
	p.changes++
	clear(p.of)
	for key, queues := range p.queues {
		n := number(key)
		if n == p.own {
			continue
		}
		for _, q := range queues {
			p.of[q] = append(p.of[q], n)
		}
	}
}

func (p *peers) put(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	delete(p.queues, key)
	r, err := lease.DecodePresence(p.keys, key, kv.Value)
	if err != nil {
		p.log.Debug("the presence of an instance cannot be read", "error", err)
		return
	}
	if len(r.Queues) > 0 {
		p.queues[key] = slices.Compact(slices.Sorted(slices.Values(r.Queues)))
	}
}

// count returns how many workers take from a queue.
func (p *peers) count(queue string) int { return 1 + len(p.of[queue]) }

// mine reports whether an instance is this worker's own: each worker is equally likely, and
// when one ends, only its own instances get another worker (rendezvous hashing).
func (p *peers) mine(o *offer) bool {
	if o.asked != p.changes {
		o.asked, o.mine = p.changes, p.first(o)
	}
	return o.mine
}

func (p *peers) first(o *offer) bool {
	own := p.rank(o)
	for _, n := range p.of[o.Queue] {
		if mix(o.number^n) > own {
			return false
		}
	}
	return true
}

// rank orders the instances for this worker.
func (p *peers) rank(o *offer) uint64 { return mix(o.number ^ p.own) }

// mix makes all bits depend on all others (the end of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
