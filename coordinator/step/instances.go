package step

import (
	"context"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Page selects instances of a step.
type Page struct {
	// From is the index of the first.
	From int
	// Limit is how many to return at most, at least 1. Large ones are fewer.
	Limit int
	// Statuses filters the instances; none selects all.
	Statuses []Status
}

// Instances are instances of a step at one revision, ordered by index.
type Instances struct {
	Items []*Instance
	// Next is where the next page begins; 0 if there is none.
	Next int
	// Bad are the records that cannot be read: each names its key.
	Bad []error
}

// Instances lists the instances of a step as they are shown: one without a record is
// requested, and one that has not ended when its run has is canceled. An unknown run is a
// RunNotFound problem, an unknown step a StepNotFound problem.
func (s Store) Instances(ctx context.Context, id, name string, p Page) (*Instances, error) {
	v, err := s.view(ctx, id)
	if err != nil {
		return nil, err
	}
	number, err := v.step(name)
	if err != nil {
		return nil, err
	}
	c := &collector{view: &v, page: p, count: v.graph.Shapes()[number].Count, at: store.StepID{Run: id, Step: name, Index: p.From}}
	first := s.Keys.Step(store.StepID{Run: id, Step: name})
	prefix := first[:strings.LastIndexByte(first, '/')+1]
	err = s.states(ctx, prefix, s.Keys.Step(c.at), v.revision, func(kv *mvccpb.KeyValue) bool { return c.take(s.Keys, kv) })
	if err != nil {
		return nil, err
	}
	c.absent(c.count)
	return &c.list, nil
}

// collector collects a page. The instances before at are done.
type collector struct {
	view  *view
	page  Page
	count int
	at    store.StepID
	bytes int // of the records on the page
	list  Instances
	full  bool
}

// maxPageBytes bounds the records of a page in bytes.
const maxPageBytes = 4 << 20

// take adds the next record; false if the page is full.
func (c *collector) take(keys store.Keys, kv *mvccpb.KeyValue) bool {
	key := string(kv.Key)
	id, err := store.ParseStepID(strings.TrimPrefix(key, keys.StepsAll()))
	switch {
	case err != nil:
		c.list.Bad = append(c.list.Bad, &store.CorruptError{Key: key, Reason: err})
		return true
	case id.Index >= c.count:
		c.list.Bad = append(c.list.Bad, &store.CorruptError{Key: key, Reason: errNoInstance})
		return true
	}
	c.absent(id.Index)
	if c.full {
		return false
	}
	i, err := Decode(keys, kv)
	if err != nil {
		c.list.Bad = append(c.list.Bad, err)
		c.at.Index++
		return true
	}
	if c.bytes += store.SizeOf(kv); len(c.list.Items) > 0 && c.bytes > maxPageBytes {
		c.page.Limit = len(c.list.Items)
	}
	c.add(i)
	return !c.full
}

// absent adds those before an index that have no record.
func (c *collector) absent(before int) {
	for c.at.Index < before && !c.full {
		c.add(&Instance{StepID: c.at, Record: Record{Status: Requested}})
	}
}

// add adds the next instance, if it is selected and the page is not full.
func (c *collector) add(i *Instance) {
	i = c.view.shown(i)
	if len(c.page.Statuses) > 0 && !slices.Contains(c.page.Statuses, i.Status) {
		c.at.Index++
		return
	}
	if len(c.list.Items) == c.page.Limit {
		c.full, c.list.Next = true, c.at.Index
		return
	}
	c.list.Items = append(c.list.Items, i)
	c.at.Index++
}

// Detail is one instance as it is shown, with its run, shape and work.
type Detail struct {
	Instance
	Run   *run.Run
	Shape Shape
	// Number is that among all instances of the run, from 0.
	Number int
	Work   Work
}

// Detail returns one instance. An unknown run is a RunNotFound problem, an unknown instance
// a StepNotFound problem.
func (s Store) Detail(ctx context.Context, id store.StepID) (*Detail, error) {
	v, d, err := s.detail(ctx, id)
	if err != nil {
		return nil, err
	}
	d.Instance = *v.shown(&d.Instance)
	return d, nil
}

// detail returns one instance by its record.
func (s Store) detail(ctx context.Context, id store.StepID) (view, *Detail, error) {
	v, err := s.view(ctx, id.Run)
	if err != nil {
		return view{}, nil, err
	}
	number, err := v.step(id.Step)
	if err != nil {
		return view{}, nil, err
	}
	d := &Detail{Run: v.run, Shape: v.graph.Shapes()[number], Number: id.Index}
	if id.Index < 0 || id.Index >= d.Shape.Count {
		return view{}, nil, noInstance(id.Run, &d.Shape, id.Index)
	}
	for _, before := range v.graph.Shapes()[:number] {
		d.Number += before.Count
	}
	d.Instance = Instance{StepID: id, Record: Record{Status: Requested}}
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Step(id)), Revision: v.revision})
	if err == nil && len(resp.Kvs) > 0 {
		var i *Instance
		if i, err = Decode(s.Keys, resp.Kvs[0]); err == nil {
			d.Instance = *i
		}
	}
	if err != nil {
		return view{}, nil, store.Problem("the step instance could not be read", err)
	}
	d.Work, err = s.Work(ctx, id)
	return v, d, err
}

// Taken returns the running attempt, with which any process can finish it; nil if the
// instance is not running.
func (d *Detail) Taken() *Taken {
	if d.Status != Running {
		return nil
	}
	r := Ready{
		Run: d.Instance.Run, Step: d.Step, Index: d.Index, Number: d.Number, Priority: d.Run.Priority,
		Attempt: d.Attempt - 1, Pools: d.Shape.Pools, Task: d.Shape.Task, External: d.Shape.External,
		Retries: d.Shape.Retries, Backoff: time.Duration(d.Shape.Backoff), ScheduledAt: d.ScheduledAt, Place: d.Place,
		SubmittedBy: d.Run.SubmittedBy, Traceparent: d.Run.Traceparent, Tracestate: d.Run.Tracestate,
	}
	return &Taken{Instance: d.Instance, Work: d.Work, Ready: Published{Ready: r, Queue: d.Shape.Queue}}
}

// Raw is an instance by its record, regardless of its run, with all that is needed to take
// or to finish it.
type Raw struct {
	Detail
	// Published is its publication; nil if it cannot be taken.
	Published *Published
	// RunEnded states that its run was canceled or has failed, Canceled that the instance was
	// canceled: it must not start any more, and must stop if it runs.
	RunEnded, Canceled bool
}

// Raw returns one instance. An unknown run is a RunNotFound problem, an unknown instance a
// StepNotFound problem.
func (s Store) Raw(ctx context.Context, id store.StepID) (*Raw, error) {
	v, d, err := s.detail(ctx, id)
	if err != nil {
		return nil, err
	}
	r := &Raw{Detail: *d}
	number := v.graph.Number(id.Step)
	ready := s.Keys.Ready(d.Shape.Queue) + OrderIn(v.run, d.Place, number, id.Index)
	resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Get(s.Keys.Step(id)), store.Get(ready), store.Get(s.Keys.Canceled(id.Run)), store.Get(s.Keys.CanceledStep(id)),
	}})
	if err != nil {
		return nil, store.Problem("the step instance could not be read", err)
	}
	// What may change is read again at one revision.
	r.Instance = Instance{StepID: id, Record: Record{Status: Requested}}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		i, err := Decode(s.Keys, kvs[0])
		if err != nil {
			return nil, store.Problem("the step instance could not be read", err)
		}
		r.Instance = *i
	}
	if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		if r.Published, err = DecodeReady(s.Keys, kvs[0]); err != nil {
			return nil, store.Problem("the step instance could not be read", err)
		}
	}
	r.RunEnded = len(resp.Responses[2].GetResponseRange().Kvs) > 0
	r.Canceled = len(resp.Responses[3].GetResponseRange().Kvs) > 0
	return r, nil
}

// FinishAttempt ends an attempt by its fencing token: see [Store.Finish]. Repeating it
// succeeds; if the attempt has ended with another status, that is a StepEnded problem.
func (s Store) FinishAttempt(ctx context.Context, r *Raw, fence store.Fence, o Outcome) (*Instance, error) {
	t := r.Taken()
	switch {
	case t != nil && t.Fence() == fence:
		return s.Finish(ctx, t, o, nil)
	case r.EndFence == fence && (o.Status == r.Status || o.Status == Failed && r.Status != Succeeded):
		return &r.Instance, nil // a failed one may have been requested again, or canceled
	case r.EndFence == fence:
		return nil, problem.New(problem.StepEnded, "attempt %d of step instance %s of run %q was finished already: the status of the instance is %s", fence, r.Text(), r.Instance.Run, r.Status)
	}
	return nil, lost(&Taken{Instance: Instance{StepID: r.StepID, Revision: fence.Revision()}})
}
