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
