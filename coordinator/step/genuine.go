package step

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// terms are under which an instance may be taken, as they were submitted. They are stored with
// its work, which workers can only read: the graph of the run and publications are keys that the
// etcd users of all workers can write.
type terms struct {
	Queue   string         `json:"queue,omitempty"` // empty in work that an older version has stored
	Pools   map[string]int `json:"pools,omitempty"`
	Task    string         `json:"task,omitempty"`
	Retries int            `json:"retries,omitempty"`
	Backoff Duration       `json:"backoff,omitempty"`
}

// terms returns those of the instances of a step.
func (s *Shape) terms() terms {
	return terms{Queue: s.Queue, Pools: s.Pools, Task: s.Task, Retries: s.Retries, Backoff: s.Backoff}
}

// MismatchError is that a publication does not match what was submitted: the process that wrote it is not
// the coordinator. The instance must not be run.
type MismatchError struct {
	ID store.StepID
	// Queue is where it was published.
	Queue string
	Why   string
	// over states that the run does not exist, or has ended.
	over bool
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the publication of step instance %s of run %q in queue '%s' does not match what was submitted: %s",
		e.ID.Text(), problem.Clip(e.ID.Run), problem.Clip(e.Queue), e.Why)
}

// genuine returns the reads that check a publication, for the transaction that takes the
// instance: see [Store.verify].
func (s Store) genuine(id store.StepID) []*pb.RequestOp {
	return []*pb.RequestOp{store.Get(s.Keys.Work(id)), store.Get(s.Keys.Run(id.Run))}
}

// verify sets the work of a taken instance, by the responses to [Store.genuine]. It returns a
// [*MismatchError] if the publication is not what the run and the work say.
func (s Store) verify(t *Taken, responses []*pb.ResponseOp) error {
	p := &t.Ready
	mismatch := func(over bool, format string, args ...any) error {
		return &MismatchError{ID: t.StepID, Queue: p.Queue, Why: fmt.Sprintf(format, args...), over: over}
	}
	key, works, runs := s.Keys.Work(t.StepID), responses[0].GetResponseRange().Kvs, responses[1].GetResponseRange().Kvs
	if len(runs) == 0 {
		return mismatch(true, "there is no such run")
	}
	r, err := run.Decode(s.Keys, runs[0])
	if err != nil {
		return err
	}
	if len(works) == 0 {
		return &store.CorruptError{Key: key, Reason: errors.New("the work of the instance is missing")}
	}
	var of terms
	t.Work, of, err = decodeWork(key, works[0].Value)
	switch {
	case err != nil:
		return err
	case !r.Status.InProgress():
		return mismatch(true, "the run is %s", r.Status)
	case p.SubmittedBy != r.SubmittedBy:
		return mismatch(false, "it was submitted by %s, not by %s", submitter(r.SubmittedBy), submitter(p.SubmittedBy))
	case p.Priority != r.Priority:
		return mismatch(false, "its priority is %d, not %d", r.Priority, p.Priority)
	case !inOrder(p):
		return mismatch(false, "its place in the queue is not that of its run")
	case p.External != t.Work.External:
		return mismatch(false, "external is %t, not %t", t.Work.External, p.External)
	}
	if why := of.differs(p); why != "" {
		return mismatch(false, "%s", why)
	}
	p.Traceparent, p.Tracestate = r.Traceparent, r.Tracestate
	return nil
}

// differs returns how a publication differs from the terms; empty if it does not.
func (of *terms) differs(p *Published) string {
	switch {
	case of.Queue == "":
		return ""
	case p.Queue != of.Queue:
		return fmt.Sprintf("its queue is '%s', not '%s'", of.Queue, problem.Clip(p.Queue))
	case !maps.Equal(p.Pools, of.Pools):
		return fmt.Sprintf("its pools are %s, not %s", run.PoolList(of.Pools), problem.Clip(run.PoolList(p.Pools)))
	case p.Task != of.Task:
		return fmt.Sprintf("its task is '%s', not '%s'", of.Task, problem.Clip(p.Task))
	case p.Retries != of.Retries || p.Backoff != time.Duration(of.Backoff):
		return "it has other retries"
	}
	return ""
}

// inOrder reports whether the order of a publication is of its priority and run.
func inOrder(p *Published) bool {
	priority, _, _ := strings.Cut(OrderOf(p.Priority, 0, 0, 0, ""), "-")
	return strings.HasPrefix(p.Order, priority+"-") && strings.HasSuffix(p.Order, "-"+p.Run)
}

func submitter(identity string) string {
	if identity == "" {
		return "an unknown identity"
	}
	return problem.Clip(identity)
}

// Verify reads and checks the work of a taken instance, as [Store.Take] does, whose response was
// lost.
func (s Store) Verify(ctx context.Context, t *Taken) error {
	var responses []*pb.ResponseOp
	for _, op := range s.genuine(t.StepID) { // neither changes what is checked
		resp, err := s.Backend.Range(ctx, op.GetRequestRange())
		if err != nil {
			return store.Problem("the step instance could not be read", err)
		}
		responses = append(responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: resp}})
	}
	return s.verify(t, responses)
}

// Return takes an instance from its executor that must not run because of a mismatch: the
// coordinator publishes it again, from what was submitted. If its run has ended, it is canceled.
func (s Store) Return(ctx context.Context, t *Taken, m *MismatchError, way Way) error {
	_, err := s.end(ctx, t, time.Time{}, nil, way, "the step instance was not returned", func(now time.Time) Record {
		rec := t.Record
		rec.Attempt = max(0, rec.Attempt-1)
		rec.Executor, rec.ScheduledAt, rec.StartedAt = nil, time.Time{}, time.Time{}
		rec.Status, rec.EndFence = Requested, t.Fence()
		if m.over {
			rec = rec.Cancel(now)
			rec.Error = text.CutWithin(m.Error(), MaxError)
		}
		return rec
	})
	return err
}
