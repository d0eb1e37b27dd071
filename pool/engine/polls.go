package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/dispatch"
)

// firstPoll is when a poll follows the first claim that waits, and mostPoll how long after a poll the next one comes at the latest.
const (
	firstPoll = 500 * time.Millisecond
	mostPoll  = 5 * time.Second
)

// polls reads from time to time what watches should have shown, and finds out who dispatches.
type polls struct {
	*loop
	succession *dispatch.Succession
	ready      dispatch.Ready
	at         time.Duration // of the next poll; 0 for none
	busy       bool          // a poll is under way
	deciding   bool          // a transaction of the succession is under way
	leads      bool          // the instance is the leading coordinator
}

func newPolls(l *loop) *polls {
	cfg := l.e.cfg
	return &polls{loop: l, succession: dispatch.NewSuccession(l.e.keys, cfg.Host, cfg.Instance, cfg.Kind)}
}

// Lead says whether the instance is the leading coordinator, which dispatches before all others.
func (e *Engine) Lead(on bool) { e.inbox.put(func() { e.polls.leads = on }) }

// soon has a poll sent now.
func (p *polls) soon() { p.at = p.e.now() }

// end gives the role up, if this instance has it, to one that follows.
func (p *polls) end(f dispatch.Follower) { p.succession.End(f) }

// seeRole shows the succession what the queue has read of the role.
func (p *polls) seeRole() {
	if r, revision := p.owner.Role(); r != nil {
		p.succession.SeeRole(p.e.now(), revision, first(r.Kvs))
	}
}

// shown takes events of the role.
func (p *polls) shown(m message) {
	for _, ev := range m.Events {
		kv := ev.Kv
		if ev.Type == mvccpb.DELETE {
			kv = nil
		}
		p.succession.SeeRole(p.e.now(), ev.Kv.ModRevision, kv)
	}
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// act polls if it is time, and has the succession decide.
func (p *polls) act(ctx context.Context, now time.Duration, wall time.Time) {
	waiting := p.owner.Waiting() > 0
	p.decide(now, wall)
	if p.ready.Lease && p.hosting.acquire() {
		p.decide(now, wall)
	}
	p.hosting.dispatch(p.ready)
	if t := p.ready.Txn; t != nil && p.full(now) {
		p.succession.Answer(now, nil, store.ErrNoSpace)
		p.decide(now, wall)
	} else if t != nil && !p.deciding {
		p.deciding = true
		p.e.txn(ctx, t, func(resp *pb.TxnResponse, err error) {
			p.deciding = false
			if errors.Is(err, store.ErrNoSpace) {
				p.owner.Space().Refused(p.e.now())
			}
			p.succession.Answer(p.e.now(), resp, err)
		})
	}
	switch {
	case p.busy:
	case p.ready.Poll, p.at > 0 && now >= p.at:
		p.poll(ctx, now)
	case waiting && p.at == 0:
		p.at = now + firstPoll
	}
}

// full reports whether etcd is full, and it is not time yet to find out whether it still is.
func (p *polls) full(now time.Duration) bool {
	s := p.owner.Space()
	return s.Full() && now < s.Wakes()
}

// decide has the succession decide.
func (p *polls) decide(now time.Duration, wall time.Time) {
	p.succession.Set(now, dispatch.Instance{Leads: p.leads, Demands: p.owner.Queued() > 0 || p.owner.Left(), Waiting: p.hosting.demands() > 0, Lease: p.hosting.lease})
	if p.ready = p.succession.Ready(now, wall); p.ready.Changed {
		p.owner.RoleChanged()
	}
}

// poll reads the offers to this instance, its demands, the role and the mark in one transaction.
func (p *polls) poll(ctx context.Context, now time.Duration) {
	p.busy, p.at = true, 0
	reads := p.succession.Reads()
	t := &pb.TxnRequest{Success: append(p.owner.Polls(), reads...)}
	p.e.txn(ctx, t, func(resp *pb.TxnResponse, err error) {
		at := p.e.now()
		p.busy = false
		if p.at == 0 && p.owner.Waiting() > 0 {
			p.at = at + p.interval()
		}
		if err != nil {
			p.succession.Unanswered(at, now, err)
			if errors.Is(err, store.ErrDenied) {
				p.owner.Serve(at, p.ready.Nobody)
			}
			return
		}
		n := len(resp.Responses) - len(reads)
		p.follows.polled(resp.Responses[0].GetResponseRange().Kvs, at)
		p.owner.Polled(resp.Responses[:n], resp.Header.Revision)
		role, mark := resp.Responses[n].GetResponseRange(), resp.Responses[n+1].GetResponseRange()
		p.succession.Polled(at, now, resp.Header.Revision, first(role.Kvs), first(mark.Kvs))
		p.owner.Serve(at, p.ready.Nobody)
	})
}

// interval is the time to the next poll.
func (p *polls) interval() time.Duration {
	d := p.e.cfg.PollInterval
	if d <= 0 {
		return mostPoll
	}
	if j := p.e.cfg.PollJitter; j > 0 {
		d += rand.N(j)
	}
	return min(d, mostPoll)
}

// wakes returns when there is something to do without anything having happened.
func (p *polls) wakes() time.Duration {
	if p.at > 0 && !p.busy {
		return min(p.at, p.ready.At)
	}
	return p.ready.At
}
