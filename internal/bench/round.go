package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"
)

// pair is a round: the reference of a case, and the case.
type pair struct{ ref, own outcome }

// profileLabel tells in a CPU profile what is the floor's and what is berth's.
const profileLabel = "load"

// measureRounds measures a case in alternation with its reference.
func (r *runner) measureRounds(ctx context.Context, row *Row) (err error) {
	own, err := r.openCase(ctx, row.Case)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.door.close()) }()
	ref, what, err := r.openReference(row.Case, own)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.door.close()) }()

	var pairs []pair
	for range r.cfg.Rounds {
		var p pair
		if p.ref, err = labeled(ctx, "reference", ref.round); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if p.own, err = labeled(ctx, "case", own.round); err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	row.fill(what, pairs)
	return nil
}

// labeled does something, and names it in profiles.
func labeled[T any](ctx context.Context, name string, do func(context.Context) (T, error)) (result T, err error) {
	pprof.Do(ctx, pprof.Labels(profileLabel, name), func(ctx context.Context) { result, err = do(ctx) })
	return result, err
}

// openCase makes the load of a case.
func (r *runner) openCase(ctx context.Context, c Case) (load, error) {
	err := r.openPools(ctx, c)
	if err != nil {
		return load{}, err
	}
	d, err := labeled(ctx, "case", func(ctx context.Context) (door, error) { return r.openDoor(ctx, c) })
	if err != nil {
		return load{}, err
	}
	return load{
		door: d, clients: c.Clients, hold: c.hold, slots: c.slots(),
		measure: r.cfg.Duration * time.Duration(c.stretch),
	}, nil
}

// openPools makes the pools that a case needs, if it needs any.
func (r *runner) openPools(ctx context.Context, c Case) error {
	err := r.setPools(ctx, c.pools(), c.Limit)
	if err == nil && c.Kind == bigLimit {
		err = r.setPools(ctx, []string{smallPool}, ampleLimit)
	}
	return err
}

func (r *runner) openDoor(ctx context.Context, c Case) (door, error) {
	switch {
	case c.Kind == submit:
		return r.openSubmissions()
	case c.Kind == admit:
		return r.openAdmissions(ctx)
	case c.Door == DoorHTTP:
		return r.openSidecars(ctx, c.Hosts, c.claim())
	}
	return r.openInstances(ctx, c.Hosts, c.claim())
}

// openReference makes the load that a case is compared with, and says what it is.
func (r *runner) openReference(c Case, own load) (load, string, error) {
	clients, hosts := c.Clients, c.Hosts
	floor := load{measure: r.cfg.Duration}
	switch c.Kind {
	case bigLimit:
		return smallLimit(own), fmt.Sprintf("limit %d", ampleLimit), nil
	case submit:
		d, err := r.openRecordFloor()
		floor.door, floor.clients = d, clients
		return floor, fmt.Sprintf("a put per run/%dc", clients), err
	case handOver, admit:
		// One client, which puts at once after a delete, and deletes after a hold:
		// the one tells what a write costs, the other what it costs out of idleness.
		clients, hosts = 1, 1
		floor.hold, floor.measure = c.hold, own.measure
	}
	d, err := labeled(context.Background(), "reference", func(context.Context) (door, error) { return r.openFloor(clients, hosts) })
	what := fmt.Sprintf("floor/%dc/%dh", clients, hosts)
	floor.door, floor.clients = d, clients
	return floor, what, err
}

// smallPool is the pool that one with a huge limit is compared with.
const smallPool = "bench-small"

// smallLimit is the same load on that pool, through the same instances: others
// would have to follow both.
func smallLimit(own load) load {
	own.door = &shared{instances{
		clients: own.door.(*instances).clients,
		slots:   map[string]int{smallPool: 1},
	}}
	return own
}

// shared are instances that somebody else closes.
type shared struct{ instances }

func (*shared) close() error { return nil }
