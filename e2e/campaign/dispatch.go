//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/e2e"
)

const (
	// movesWithin is how long a queue may stand still after its dispatcher was lost, while a
	// waiter fits and etcd serves: the dispatcher is silent for patience, which doubles with each take-over of the last minute, up to
	// mostPatience.
	movesWithin  = 3500 * time.Millisecond
	patience     = 2 * time.Second
	mostPatience = 24 * time.Second
	// quietAfter is how long after a fault of etcd or the network no queue has to move.
	quietAfter = 5 * time.Second
	// attributed is for how long a queue that stands still is counted with a fault.
	attributed = 20 * time.Second
	// queues is how long a fault of a dispatcher waits for one.
	queues = 8 * time.Second
)

// notApplicable is why a fault could not come: what it breaks does not exist.
type notApplicable string

// Error names what does not exist.
func (n notApplicable) Error() string { return "not applicable: " + string(n) }

// dispatcher is the instance that dispatches.
type dispatcher struct {
	instance string
	host     *host
	pid      int
}

// dispatcher reads which instance dispatches now.
func (c *campaign) dispatcher(ctx context.Context) (d dispatcher, err error) {
	read := false
	within, cancel := context.WithTimeout(ctx, queues)
	defer cancel()
	if !until(within, 50*time.Millisecond, func() bool {
		err = c.cluster.do(within, func(ctx context.Context, e *clientv3.Client) error {
			resp, err := e.Get(ctx, c.referee.keys.Dispatcher()+"role")
			if err != nil || len(resp.Kvs) == 0 {
				return err
			}
			var v struct{ Host, Instance string }
			if err := json.Unmarshal(resp.Kvs[0].Value, &v); err != nil {
				return err
			}
			at := slices.IndexFunc(c.hosts, func(h *host) bool { return h.name == v.Host })
			if at < 0 {
				return fmt.Errorf("a dispatcher on host %q", v.Host)
			}
			d = dispatcher{host: c.hosts[at], instance: v.Instance}
			return nil
		})
		read = read || err == nil
		return d.host != nil
	}) {
		if read {
			err = notApplicable("nobody dispatches")
		}
		return d, err
	}
	err = c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		resp, err := e.Get(ctx, c.referee.keys.Presence(d.host.name, d.instance))
		if err != nil || len(resp.Kvs) == 0 {
			return err
		}
		var presence struct{ PID int }
		err = json.Unmarshal(resp.Kvs[0].Value, &presence)
		d.pid = presence.PID
		return err
	})
	if err == nil && d.pid <= 1 {
		err = fmt.Errorf("the dispatcher %s/%s has gone", d.host.name, d.instance)
	}
	return d, err
}

// breakDispatcher kills or stops the process of the instance that dispatches, or cuts
// its host off from etcd.
func (c *campaign) breakDispatcher(ctx context.Context, f fault) (heal, error) {
	d, err := c.dispatcher(ctx)
	if err != nil {
		return nil, err
	}
	c.tell("%s: %s/%s, process %d, dispatches", f.Kind, d.host.name, d.instance, d.pid)
	p := d.host.processOf(d.pid)
	if p == nil && f.Kind == "stop-dispatcher" {
		return nil, notApplicable("the dispatcher is a berth exec, and no other process watches its command")
	}
	c.mu.Lock()
	c.moves.lost = append(c.moves.lost, loss{f.Kind, time.Now()})
	c.mu.Unlock()
	switch {
	case f.Kind == "cut-dispatcher":
		return c.spoil(d.host.name, weather{In: link{Blocked: true}, Out: link{Blocked: true}}), nil
	case f.Kind == "stop-dispatcher":
		return frozen(p), nil
	case p != nil:
		return away(p), nil
	}
	return nil, syscall.Kill(d.pid, syscall.SIGKILL)
}

// span is a time.
type span struct{ from, to time.Time }

// loss is when all pools lost their dispatcher.
type loss struct {
	kind kind
	at   time.Time
}

// moves judges for how long queues stand still.
type moves struct {
	begun     []time.Time // faults of any kind
	disturbed []span
	lost      []loss
	takeOvers []time.Time

	longest time.Duration
	after   map[kind]moved
}

// moved is what the queues did after the faults of one kind.
type moved struct {
	times, stood int // faults, and those after which the queue stood still at all
	longest      time.Duration
}

// String says how long a queue stood still.
func (m moved) String() string {
	return fmt.Sprintf("%s at most; it stood still after %d of %d", m.longest.Round(10*time.Millisecond), m.stood, m.times)
}

// parts returns what remains of gaps for which nothing but the dispatchers is to blame. A fault
// of any kind begins another gap: it may have hit the next dispatcher.
func (m *moves) parts(gaps []e2e.Gap) (parts []e2e.Gap) {
	for _, g := range gaps {
		from := g.From
		cut := func(to, next time.Time) {
			if to.After(from) {
				parts = append(parts, e2e.Gap{Pool: g.Pool, From: from, To: to, Waiter: g.Waiter})
			}
			if next.After(from) {
				from = next
			}
		}
		var cuts []span
		for _, at := range m.begun {
			cuts = append(cuts, span{at, at})
		}
		cuts = slices.SortedFunc(slices.Values(append(cuts, m.disturbed...)), func(a, b span) int { return a.from.Compare(b.from) })
		for _, s := range cuts {
			if s.from.Before(g.To) && s.to.After(g.From) {
				cut(s.from, s.to)
			}
		}
		cut(g.To, g.To)
	}
	return parts
}

// judge judges the gaps of a phase, whose faults are over, and forgets it.
func (m *moves) judge(gaps []e2e.Gap, wrong func(rule, text string)) {
	if m.after == nil {
		m.after = map[kind]moved{}
	}
	for _, l := range m.lost {
		m.begun = append(m.begun, l.at)
	}
	parts := m.parts(gaps)
	for _, g := range parts {
		took := g.To.Sub(g.From)
		m.longest = max(m.longest, took)
		if took > m.within(g.From) {
			wrong("queue", fmt.Sprintf("the queue of %s stood still for %s from %s on, while %s fitted and etcd served%s",
				g.Pool, took.Round(time.Millisecond), g.From.UTC().Format("15:04:05.000"), g.Waiter, m.reason(g)))
		}
	}
	for _, l := range m.lost {
		a, stood := m.after[l.kind], false
		for _, g := range parts {
			if !g.From.Before(l.at) && g.From.Sub(l.at) < attributed {
				a.longest, stood = max(a.longest, g.To.Sub(g.From)), true
			}
		}
		if a.times++; stood {
			a.stood++
		}
		m.after[l.kind] = a
	}
	m.begun, m.disturbed, m.lost = nil, nil, nil
}

// within is how long a queue may stand still from a time on.
func (m *moves) within(from time.Time) time.Duration {
	p := patience
	for _, at := range m.takeOvers {
		if since := from.Sub(at); since > 0 && since <= time.Minute {
			p = min(2*p, mostPatience)
		}
	}
	return movesWithin + p - patience
}

// reason names the last loss of a dispatcher before a gap.
func (m *moves) reason(g e2e.Gap) (text string) {
	for _, l := range m.lost {
		if since := g.From.Sub(l.at); since >= 0 {
			text = fmt.Sprintf(", %s after %s", since.Round(time.Millisecond), l.kind)
		}
	}
	return text
}

// standstills are what the referee has seen of queues, and what is not judged yet.
type standstills struct {
	gaps      []e2e.Gap
	takeOvers []time.Time
}

// take takes over what a history has found.
func (q *standstills) take(h *e2e.History) {
	q.gaps = append(q.gaps, h.Gaps()...)
	for _, at := range h.TakeOvers() {
		if !slices.ContainsFunc(q.takeOvers, at.Equal) {
			q.takeOvers = append(q.takeOvers, at)
		}
	}
}

// judged drops the gaps.
func (q *standstills) judged() { q.gaps = nil }

// judgeMoves judges the queues of a phase.
func (c *campaign) judgeMoves() {
	r := c.referee
	r.mu.Lock()
	defer r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moves.takeOvers = r.standing.takeOvers
	c.moves.judge(r.standing.gaps, r.wrong)
	r.standing.judged()
}
