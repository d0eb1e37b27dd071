package step

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Store reads and changes step instances. Its errors are problems, unless it says
// otherwise.
type Store struct {
	Backend store.Backend
	Keys    store.Keys
	// Journal takes the events of what is changed.
	Journal *run.Journal
	// Group has changes that come together share transactions.
	Group *store.Group
}

// eventsOf is how many instances of a run have events: two or three each, so that a run
// keeps to some 500 however many instances it has.
const eventsOf = 150

// hasEvents tells whether the instance of that number, among all of its run, has events.
func hasEvents(number int) bool { return number < eventsOf }

// HasEvent tells whether an event of the instance of that number is written: of the first of
// a run all are, of the others it is told that they have failed for good, as long as a
// journal has room for that.
func HasEvent(j *run.Journal, id string, number int, e run.Event) bool {
	return hasEvents(number) || e.Type == run.StepFailed && j.Spare(id)
}

// Get returns an instance. An unknown one is a StepNotFound problem.
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

// read returns an instance as its record says; a requested one if it has none.
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

// work reads what an instance is to do.
func (s Store) work(key string, resp *pb.RangeResponse) (Work, error) {
	if len(resp.Kvs) == 0 {
		return Work{}, &store.CorruptError{Key: key, Reason: errors.New("it is gone, and nobody knows what the instance is to do")}
	}
	return DecodeWork(key, resp.Kvs[0].Value)
}

// Work reads what an instance is to do.
func (s Store) Work(ctx context.Context, id store.StepID) (Work, error) {
	key := s.Keys.Work(id)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return Work{}, store.Problem("the step instance could not be read", err)
	}
	w, err := s.work(key, resp)
	if err != nil {
		return Work{}, store.Problem("the step instance can't be run", err)
	}
	return w, nil
}

// logged appends the write of an event, if it is told.
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
	// workPuts and workBytes bound what one write of work puts; etcd takes 128
	// operations and 1.5 MiB.
	workPuts, workBytes = 100, 1 << 20
	// MaxStored bounds the work of all instances of a run, in bytes: etcd holds it until
	// the run is forgotten.
	MaxStored = 128 << 20
	// workFlights bounds the writes under way.
	workFlights = 4
)

// Submit puts a run with steps into the queue: first all that its instances are to do
// is written, then it is queued. The pools of tasks that declare a limit are created in the
// transaction that makes its record, so that what is refused leaves none. Asking again with the same id finds the same run, and
// goes on where an earlier try has ended.
func (s Store) Submit(ctx context.Context, runs run.Store, id string, spec run.Spec, g *Graph) (r *run.Run, created bool, err error) {
	works, digest, err := g.works(id, &spec)
	if err != nil {
		return nil, false, err
	}
	spec.Steps, spec.Digest = g.Total(), digest
	if there, err := runs.CheckPools(ctx, id, spec, g.slots()); there != nil || err != nil {
		return there, false, g.ofStep(err)
	}
	pools := pool.Registry{Backend: s.Backend, Keys: s.Keys}
	r, err = runs.Begin(ctx, id, spec, func(ctx context.Context) (store.Extra, error) { return g.declare(ctx, pools) })
	if err != nil || r.Status != run.Storing {
		return r, false, err
	}
	if err := s.storeWork(ctx, r, g, works); err != nil {
		return nil, false, store.Problem("the run was not submitted whole: submit it again with the same id", err)
	}
	return runs.Enqueue(ctx, r)
}

// slots are the most of each pool that an instance takes.
func (g *Graph) slots() map[string]int {
	most := map[string]int{}
	for _, sh := range g.Shapes() {
		for name, n := range sh.Pools {
			most[name] = max(most[name], n)
		}
	}
	return most
}

// ofStep has a problem with what is asked of a pool name the step that asks the most of
// it.
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

// stored is the work of an instance as it is written.
type stored struct {
	key   store.StepID
	value []byte
}

// works renders the work of all instances, and returns a digest of it and the graph.
func (g *Graph) works(id string, spec *run.Spec) ([]stored, string, error) {
	about := About{RunID: id, Name: spec.Name, Tags: spec.Tags, Labels: spec.Labels}
	all := make([]stored, 0, g.Total())
	sum, size := sha256.New(), 0
	sum.Write(g.Encode())
	for n, sh := range g.Shapes() {
		for i := range sh.Count {
			w, err := g.Work(n, i, about)
			if err != nil {
				return nil, "", err
			}
			value := w.Encode()
			sum.Write(value)
			if size += len(value); size > MaxStored {
				return nil, "", problem.Field("steps", "what the instances are to do is more than %d MiB long as JSON", MaxStored>>20)
			}
			all = append(all, stored{store.StepID{Run: id, Step: sh.Name, Index: i}, value})
		}
	}
	return all, hex.EncodeToString(sum.Sum(nil))[:32], nil
}

// storeWork writes the graph and the work of a run that is being stored.
func (s Store) storeWork(ctx context.Context, r *run.Run, g *Graph, works []stored) error {
	still := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(workFlights)
	write := func(ops []*pb.RequestOp) {
		eg.Go(func() error {
			_, err := store.Change(ctx, "the work of a run was not stored", func(ctx context.Context) (int64, error) {
				rev, err := store.Commit(ctx, s.Backend, still, ops...)
				if err == store.ErrChanged {
					return 0, store.Stop(err)
				}
				return rev, err
			})
			return err
		})
	}
	write([]*pb.RequestOp{store.Put(s.Keys.Graph(r.ID), g.Encode(), 0)})
	var ops []*pb.RequestOp
	bytes := 0
	for _, w := range works {
		if len(ops) > 0 && (len(ops) == workPuts || bytes+len(w.value) > workBytes) {
			write(ops)
			ops, bytes = nil, 0
		}
		ops, bytes = append(ops, store.Put(s.Keys.Work(w.key), w.value, 0)), bytes+len(w.value)
	}
	write(ops)
	return eg.Wait()
}
