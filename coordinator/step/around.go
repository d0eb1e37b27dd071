package step

import (
	"context"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/pool"
)

// Around is what the waits of instances depend on beside their run. The zero value is
// that nothing of it is known.
type Around struct {
	// Space is what the lines leave of all pools; nil if that is not known.
	Space *pool.Space
	// Workers are those that are seen. Blind tells that there may be others.
	Workers []Worker
	Blind   bool
	// Leaderless tells that nobody coordinates.
	Leaderless bool
	// Now is what times are seen from; zero is that it is not known.
	Now time.Time
}

// Worker is one that is seen.
type Worker struct {
	ID WorkerID
	// Queues that it takes from; none of one that has not said so, and may take from any.
	Queues []string
	// Capacity is how many instances it can have, and Active how many it has.
	Capacity, Active int
	// Idle tells that an operator has drained or stopped it.
	Idle bool
}

// Presence is an instance of berth that is seen, whoever tells of it: steps know no leases.
type Presence interface {
	// Works tells which instance it is, from which queues it takes, and how many step
	// instances it can have: none if it is no worker.
	Works() (host, instance string, queues []string, capacity int)
}

// WorkersOf are the workers among the instances that are seen, with what they have, and
// with what is kept of their modes.
func WorkersOf[P Presence](seen []P, active []Active, states map[WorkerID]WorkerState) (workers []Worker) {
	counts := ActiveByName(active)
	for _, one := range seen {
		if host, instance, queues, capacity := one.Works(); capacity > 0 {
			id := WorkerID{host, instance}
			_, idle := states[id]
			workers = append(workers, Worker{ID: id, Queues: queues, Capacity: capacity, Active: counts[id].Steps, Idle: idle})
		}
	}
	return workers
}

// Outlook is how whoever asks reads what is around: from etcd, or from memory.
type Outlook struct {
	// Candidates are those for the coordinator's part.
	Candidates func(context.Context) ([]run.Candidate, error)
	// Workers are those that are seen, and whether there may be others.
	Workers func(context.Context) (workers []Worker, blind bool, err error)
	// Space is what the lines leave of all pools.
	Space func(context.Context) (*pool.Space, error)
}

// Pools is whoever keeps all pools in memory, as a client does.
type Pools interface {
	Space(context.Context) (*pool.Space, error)
	Pools(context.Context) ([]pool.Status, error)
}

// SpaceOf reads what the lines leave of the pools that somebody keeps. Who can't write to
// etcd does not know that, because it is full, say: then the lines are left out.
func SpaceOf(p Pools) func(context.Context) (*pool.Space, error) {
	return func(ctx context.Context) (*pool.Space, error) {
		if space, err := p.Space(ctx); err == nil {
			return space, nil
		}
		all, err := p.Pools(ctx)
		if err != nil {
			return nil, err
		}
		return pool.NewSpace(all...), nil
	}
}

// Around reads what the waits of instances depend on that have any of the statuses, and
// nothing else.
func (l *Outlook) Around(ctx context.Context, has func(Status) bool) (a Around, err error) {
	a.Now = time.Now()
	if has(Requested) {
		candidates, err := l.Candidates(ctx)
		if err != nil {
			return a, err
		}
		a.Leaderless = len(candidates) == 0
	}
	if !has(Scheduled) {
		return a, nil
	}
	if a.Workers, a.Blind, err = l.Workers(ctx); err != nil {
		return a, err
	}
	a.Space, err = l.Space(ctx)
	return a, err
}
