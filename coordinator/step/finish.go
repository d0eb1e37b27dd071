package step

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// MaxError bounds why an attempt has failed, in bytes.
const MaxError = run.MaxWhy

// MaxOutput bounds what is kept of an attempt's output, in bytes: it goes to etcd, so
// that it can be read on every host.
const MaxOutput = 16 << 10

// Finish ends an attempt, and returns the instance as it is then: it may be requested
// again. Asking again for the same is no error. If the attempt is not the instance's
// any more, because its executor was taken to be dead, that is a StepLost problem.
//
// Queued, if it is not nil, is called once the write has its place in the store's
// group: what is written through that later happens with it, or after it.
func (s Store) Finish(ctx context.Context, t *Taken, o Outcome, queued func()) (*Instance, error) {
	o.Error = clipError(o.Error)
	return s.end(ctx, t, o.Output, queued, "the step instance was not finished", func(now time.Time) Record {
		return t.Record.finish(o, t.Revision, t.Policy(), now)
	})
}

// HandBack puts an instance back into its queue that was taken and not begun: the
// attempt does not count.
func (s Store) HandBack(ctx context.Context, t *Taken) (*Instance, error) {
	return s.end(ctx, t, nil, nil, "the step instance was not handed back", func(now time.Time) Record {
		rec := t.handBack(now)
		rec.EndFence = t.Revision
		return rec
	})
}

// end takes an instance from its executor.
func (s Store) end(ctx context.Context, t *Taken, output []byte, queued func(), what string, next func(time.Time) Record) (*Instance, error) {
	now := time.Now()
	then := &Instance{StepID: t.StepID, Record: next(now)}
	key, active := s.Keys.Step(t.StepID), s.Keys.ActiveStep(t.Executor.Host, t.StepID)
	tried := false
	return store.Change(ctx, what, func(ctx context.Context) (*Instance, error) {
		if tried { // what has become of the try before
			there, err := s.read(ctx, t.StepID)
			switch {
			case err != nil:
				return nil, stopAtCorrupt(what, err)
			case there.EndFence == t.Revision && there.Status == then.Status:
				return there, nil
			case there.Revision != t.Revision:
				return nil, store.Stop(lost(t))
			}
		}
		ops := []*pb.RequestOp{store.Put(key, then.Encode(), 0), store.Delete(active)}
		if then.Status == Canceled {
			ops = append(ops, store.Delete(s.Keys.CanceledStep(t.StepID)))
		}
		if then.Status == Scheduled {
			again := t.Ready.Ready
			again.ScheduledAt = then.ScheduledAt
			ops = append(ops, store.Put(t.Ready.Key(s.Keys), again.Encode(), 0))
		}
		if len(output) > 0 {
			op, err := s.Journal.Keep(ctx, s.Keys.Log(t.StepID), output[max(0, len(output)-MaxOutput):])
			if err != nil {
				return nil, err
			}
			ops = append(ops, op)
		}
		ops, err := s.logged(ctx, ops, t.StepID, t.Ready.Number, then.event(now))
		if err != nil {
			return nil, err
		}
		answer := s.Group.Enqueue(ctx, s.Backend, []*pb.Compare{store.ModEquals(key, t.Revision), store.Present(active)}, ops...)
		if queued != nil {
			queued()
			queued = nil
		}
		made, err := answer()
		if err == nil {
			then.Revision = made.Revision
			return then, nil
		}
		s.suspect(err)
		if err == store.ErrChanged && tried {
			return nil, store.Stop(lost(t)) // its record is as it was: its key is gone
		}
		tried = true
		return nil, err
	})
}

// stopAtCorrupt ends a change that meets a value that can't be read.
func stopAtCorrupt(what string, err error) error {
	if problem.CodeOf(store.Problem(what, err)) == problem.CorruptValue {
		return store.Stop(store.Problem(what, err))
	}
	return err
}

func lost(t *Taken) error {
	return problem.New(problem.StepLost, "attempt %d of step instance %s of run %q is lost: its executor was not heard of in time, and somebody else may have it", t.Revision, t.Text(), t.Run)
}

// clipError keeps what may be kept of an error.
func clipError(text string) string {
	if len(text) > MaxError {
		return strings.ToValidUTF8(text[:MaxError-len("…")], "") + "…"
	}
	return text
}
