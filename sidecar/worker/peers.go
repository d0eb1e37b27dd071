package worker

import (
	"hash/fnv"
	"slices"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// peers are the workers that are seen, this one included, by the queues that they take
// from. Each instance is one worker's before it is anybody's: so they do not try the same
// ones at the same time. It costs a moment, never an instance, if they disagree.
type peers struct {
	keys store.Keys
	feed *store.Feed
	log  hclog.Logger
	own  uint64              // the worker's own number
	seen map[string][]string // queues, by the key of who is seen
	of   map[string][]uint64 // the others' numbers, by queue
	// changes counts the times that of was made anew, from 1 on.
	changes int
}

func newPeers(keys store.Keys, host, instance string, log hclog.Logger) *peers {
	return &peers{
		keys: keys, log: log, own: number(keys.Presence(host, instance)),
		seen: map[string][]string{}, of: map[string][]uint64{}, changes: 1,
	}
}

// number spreads names over all numbers (FNV-1a).
func number(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // it never fails
	return h.Sum64()
}

// message takes what the feed of all instances delivered.
func (p *peers) message(m store.FeedMessage) {
	if m.Snapshot != nil {
		clear(p.seen)
		for _, kv := range m.Snapshot.KVs {
			p.put(kv)
		}
	}
	for _, ev := range m.Events {
		if ev.Type == mvccpb.Event_DELETE {
			delete(p.seen, string(ev.Kv.Key))
			continue
		}
		p.put(ev.Kv)
	}
	p.changes++
	clear(p.of)
	for key, queues := range p.seen {
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
	delete(p.seen, key)
	r, err := lease.DecodePresence(p.keys, key, kv.Value)
	if err != nil {
		p.log.Debug("an instance is not seen, since its entry can't be read", "error", err)
		return
	}
	if len(r.Queues) > 0 {
		p.seen[key] = slices.Compact(slices.Sorted(slices.Values(r.Queues)))
	}
}

// count is how many take from a queue.
func (p *peers) count(queue string) int { return 1 + len(p.of[queue]) }

// mine tells whether the worker comes first for an instance: each worker is as likely
// to, and where one goes only what was its own changes hands (rendezvous hashing).
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

// rank is where the worker has an instance among those of others.
func (p *peers) rank(o *offer) uint64 { return mix(o.number ^ p.own) }

// mix makes all bits depend on all others (the end of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
