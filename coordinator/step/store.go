package step

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

// Store reads and changes step instances. Its errors are problems, unless stated otherwise.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
	// Journal writes the events of changes.
	Journal *run.Journal
	// Group commits simultaneous changes in common transactions.
	Group *store.Group
	// Flights bounds the writes of all submissions together; those of each one if it is nil.
	Flights Flights
}

// eventsOf is how many instances of a run have events. Each has two or three, so a run has
// about 500 at most.
const eventsOf = 150

// HasEvents reports whether the instance with a number in its run has events.
func HasEvents(number int) bool { return number < eventsOf }

// HasEvent reports whether an event of the instance with a number is written: all events of
// the first instances, and the final failures of the others as far as the journal allows.
func HasEvent(j *run.Journal, id string, number int, e run.Event) bool {
	return HasEvents(number) || e.Type == run.StepFailed && j.Spare(id)
}

// Get returns an instance, or a StepNotFound problem.
func (s Store) Get(ctx context.Context, id store.StepID) (*Instance, error) {
	i, err := s.read(ctx, id)
	if err != nil {
		return nil, store.Problem("the step instance could not be read", err)
	}
	if i.Revision > 0 {
		return i, nil
	}
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Work(id)), KeysOnly: true})
	switch {
	case err != nil:
		return nil, store.Problem("the step instance could not be read", err)
	case len(resp.Kvs) == 0:
		return nil, notFound(id)
	}
	return i, nil
}

func notFound(id store.StepID) error {
	return problem.New(problem.StepNotFound, "run %q has no step instance %s", id.Run, id.Text())
}

// read returns an instance by its record; a requested one without a record.
func (s Store) read(ctx context.Context, id store.StepID) (*Instance, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Step(id))})
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return &Instance{StepID: id, Record: Record{Status: Requested}}, nil
	}
	return Decode(s.Keys, resp.Kvs[0])
}

// work returns the work of an instance.
func (s Store) work(key string, resp *pb.RangeResponse) (Work, error) {
	if len(resp.Kvs) == 0 {
		return Work{}, &store.CorruptError{Key: key, Reason: errors.New("the work of the instance is missing")}
	}
	return DecodeWork(key, resp.Kvs[0].Value)
}

// Work returns the work of an instance.
func (s Store) Work(ctx context.Context, id store.StepID) (Work, error) {
	key := s.Keys.Work(id)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return Work{}, store.Problem("the step instance could not be read", err)
	}
	w, err := s.work(key, resp)
	if err != nil {
		return Work{}, store.Problem("the step instance cannot be run", err)
	}
	return w, nil
}

// logged appends the write of an event, if the instance has events.
func (s Store) logged(ctx context.Context, ops []*pb.RequestOp, id store.StepID, number int, e run.Event) ([]*pb.RequestOp, error) {
	if !HasEvent(s.Journal, id.Run, number, e) {
		return ops, nil
	}
	op, err := s.Journal.Op(ctx, id.Run, e)
	if err != nil {
		return nil, err
	}
	return append(ops, op), nil
}

const (
	// workPuts and workBytes bound one write of work; etcd takes 128 operations and
	// 1.5 MiB.
	workPuts, workBytes = 100, 1 << 20
	// MaxStored bounds the work of all instances of a run, in bytes: etcd keeps it until
	// the run is deleted.
	MaxStored = 128 << 20
	// workFlights bounds the concurrent writes: four keep etcd busy.
	workFlights = 4
)

// Submit puts a run with steps into the queue: first the work of its instances is written,
// then the run is queued. The pools of tasks that declare a limit are created in one
// transaction with the record, so that a refused submission creates none. A repeated
// submission with the same id returns the same run, and continues an earlier attempt.
func (s Store) Submit(ctx context.Context, runs run.Store, id string, spec run.Spec, g *Graph) (r *run.Run, created bool, err error) {
	digest, work, err := g.digest(id, &spec)
	if err != nil {
		return nil, false, err
	}
	spec.Steps, spec.Digest = g.Total(), digest
	if there, err := runs.CheckPools(ctx, id, spec, g.slots()); there != nil || err != nil {
		return there, false, g.ofStep(err)
	}
	pools := registry.Registry{Backend: s.Backend, Keys: s.Keys}
	r, fresh, err := runs.Begin(ctx, id, spec, run.Size(&spec, work, spec.Steps, g.attempts()), func(ctx context.Context) (store.Extra, error) {
		if err := g.checkAhead(runs, &spec); err != nil {
			return store.Extra{}, err
		}
		return g.declare(ctx, pools, false)
	})
	if err != nil || r.Status != run.Storing {
		return r, false, err
	}
	const notWhole = "the run was not submitted whole: submit it again with the same id"
	if err := s.storeWork(ctx, r, fresh, &spec, g); err != nil {
		if there, readErr := runs.Get(ctx, id); readErr == nil && there.Created == r.Created && there.Status != run.Storing {
			return there, false, nil // another submission of the same run has stored it
		}
		return nil, false, store.Problem(notWhole, err)
	}
	r, created, err = runs.Enqueue(ctx, r)
	if problem.CodeOf(err) == problem.RunNotFound { // a restore of etcd took it
		err = problem.New(problem.EtcdUnavailable, "%s: %w", notWhole, err)
	}
	return r, created, err
}

// SubmitAs submits a run for an identity, which is recorded: with steps as [Store.Submit] does,
// without a graph as [run.Store.Submit] does. Only administrators can repeat the submission of
// another identity, and the run stays that one's.
func (s Store) SubmitAs(ctx context.Context, by access.Identity, runs run.Store, id string, spec run.Spec, g *Graph) (r *run.Run, created bool, err error) {
	submit := func() (*run.Run, bool, error) {
		if g == nil {
			return runs.Submit(ctx, id, spec)
		}
		return s.Submit(ctx, runs, id, spec, g)
	}
	spec.SubmittedBy = by.String()
	if r, created, err = submit(); problem.CodeOf(err) != problem.IDInUse || !by.Grants.Allow(access.Admin, access.Everything) {
		return r, created, err
	}
	there, unread := runs.Get(ctx, id)
	if unread != nil || there.SubmittedBy == spec.SubmittedBy {
		return r, created, err
	}
	spec.SubmittedBy = there.SubmittedBy
	return submit()
}

// slots returns the largest number of slots of each pool that an instance takes.
func (g *Graph) slots() map[string]int {
	most := map[string]int{}
	for _, sh := range g.Shapes() {
		for name, n := range sh.Pools {
			most[name] = max(most[name], n)
		}
	}
	return most
}

// ofStep adds the step that needs the most slots of a pool to a problem.
func (g *Graph) ofStep(err error) error {
	var p *problem.Error
	if !errors.As(err, &p) {
		return err
	}
	name, ok := strings.CutPrefix(p.Field, "pools.")
	if !ok {
		return err
	}
	most := g.slots()[name]
	for _, sh := range g.Shapes() {
		if most > 0 && sh.Pools[name] == most {
			of := *p
			of.Field = "steps." + sh.Name + "." + p.Field
			return &of
		}
	}
	return err
}

// checkAhead returns a problem if the run, or one of its steps, has a time that is too far ahead.
func (g *Graph) checkAhead(runs run.Store, spec *run.Spec) error {
	err := runs.CheckDue(spec)
	for _, sh := range g.Shapes() {
		err = cmp.Or(err, runs.CheckAhead("steps."+sh.Name+".not_before", sh.NotBefore))
	}
	return err
}

// digest returns a digest of the graph and the work of all instances, and their size in bytes.
func (g *Graph) digest(id string, spec *run.Spec) (digest string, size int, err error) {
	sum, graph := sha256.New(), g.Encode()
	sum.Write(graph)
	err = g.eachWork(id, spec, func(_ store.StepID, work []byte) error {
		sum.Write(work)
		if size += len(work); size > MaxStored {
			return problem.Field("steps", "the work of the instances is more than %d MiB as JSON", MaxStored>>20)
		}
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil))[:32], size + len(graph), err
}

// Flights bounds the concurrent writes of work, of which each takes a few MiB of memory.
type Flights chan struct{}

// NewFlights returns flights without a write.
func NewFlights() Flights { return make(Flights, workFlights) }

// storeWork writes the graph and the work of a run that is being stored. It renders the work
// again: all of it would take up to [MaxStored] of memory. It writes nothing that another submission
// of the same run has written: each write would stay in the history of etcd. fresh states that this
// submission has created the run.
func (s Store) storeWork(ctx context.Context, r *run.Run, fresh bool, spec *run.Spec, g *Graph) error {
	flights := s.Flights
	if flights == nil {
		flights = NewFlights()
	}
	still := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	eg, ctx := errgroup.WithContext(ctx)
	begin := func() error {
		select {
		case flights <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	write := func(ops []*pb.RequestOp) {
		last := ops[len(ops)-1].GetRequestPut().Key
		missing := store.Nest(&pb.TxnRequest{Compare: []*pb.Compare{store.NotPutSince(string(last), r.Created)}, Success: ops})
		eg.Go(func() error {
			defer func() { <-flights }()
			_, err := store.Change(ctx, "the work of a run was not stored", func(ctx context.Context) (int64, error) {
				if !fresh { // what is there need not even be sent
					resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: last, KeysOnly: true})
					if err != nil || len(resp.Kvs) > 0 && resp.Kvs[0].ModRevision > r.Created {
						return 0, err
					}
				}
				rev, err := store.Commit(ctx, s.Backend, still, missing)
				if err == store.ErrChanged {
					return 0, store.Stop(err)
				}
				return rev, err
			})
			return err
		})
	}
	var ops []*pb.RequestOp
	bytes := 0
	add := func(key string, value []byte) error {
		if len(ops) > 0 && (len(ops) == workPuts || bytes+len(value) > workBytes) {
			write(ops)
			ops, bytes = nil, 0
		}
		if len(ops) == 0 {
			if err := begin(); err != nil {
				return err
			}
		}
		ops, bytes = append(ops, store.Put(key, value, 0)), bytes+len(value)
		return nil
	}
	err := add(s.Keys.Graph(r.ID), g.Encode())
	if err == nil {
		err = g.eachWork(r.ID, spec, func(id store.StepID, work []byte) error { return add(s.Keys.Work(id), work) })
	}
	if len(ops) > 0 {
		write(ops) // and ends its flight
	}
	return cmp.Or(eg.Wait(), err)
}
