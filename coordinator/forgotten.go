package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// forgetKeys bounds the keys that one write deletes: etcd does nothing else
	// meanwhile.
	forgetKeys = 5000
	// forgetEvery is the pause after a write that did not come through.
	forgetEvery = time.Second
)

// forgotten deletes what is kept of the steps of runs whose records are gone: up to
// 400,000 keys each, and so in many writes, beside the ticks, which do not wait for it.
// The graph goes last: as long as it is there, whoever leads finds that there is
// something left to delete.
type forgotten struct {
	cfg  Config
	wake chan struct{} // coalesces

	mu   sync.Mutex // guards what follows
	runs map[string]bool
}

func newForgotten(cfg Config) *forgotten {
	return &forgotten{cfg: cfg, wake: make(chan struct{}, 1), runs: map[string]bool{}}
}

// add has the steps of a run deleted if it has no record.
func (f *forgotten) add(id string) {
	f.mu.Lock()
	f.runs[id] = true
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// next takes a run out.
func (f *forgotten) next() (id string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.runs {
		delete(f.runs, id)
		return id, true
	}
	return "", false
}

func (f *forgotten) run(ctx context.Context) error {
	troubled := false
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for id, ok := f.next(); ok; id, ok = f.next() {
			err := f.forget(ctx, id)
			if err != nil && ctx.Err() == nil {
				if !troubled { // once in a row
					f.cfg.Logger.Warn("what is left of a run that was forgotten could not be deleted, trying again", "run", id, "error", err)
				}
				f.add(id)
				select {
				case <-time.After(forgetEvery):
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			troubled = err != nil
		}
	}
}

// forget deletes all that is kept of the steps of a run. It stops where the run is found
// to have a record: then it was submitted anew, or is not forgotten at all.
func (f *forgotten) forget(ctx context.Context, id string) error {
	keys := f.cfg.Keys
	for _, prefix := range []string{keys.Steps(id), keys.Works(id), keys.CanceledSteps(id)} {
		for more := true; more; {
			var err error
			if more, err = f.some(ctx, id, prefix); err != nil {
				return unlessChanged(err)
			}
		}
	}
	return unlessChanged(f.commit(ctx, id, store.Delete(keys.Canceled(id)), store.Delete(keys.Graph(id))))
}

func unlessChanged(err error) error {
	if errors.Is(err, store.ErrChanged) {
		return nil
	}
	return err
}

// some deletes the first keys under a prefix, and tells whether there are more.
func (f *forgotten) some(ctx context.Context, id, prefix string) (more bool, err error) {
	try, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	resp, err := f.cfg.Backend.Range(try, &pb.RangeRequest{
		Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: forgetKeys, KeysOnly: true,
	})
	if err != nil || len(resp.Kvs) == 0 {
		return false, err
	}
	last := string(resp.Kvs[len(resp.Kvs)-1].Key)
	return resp.More, f.commit(try, id, store.DeleteUpTo(prefix, last))
}

func (f *forgotten) commit(ctx context.Context, id string, ops ...*pb.RequestOp) error {
	ctx, cancel := context.WithTimeout(ctx, 5*writeTimeout)
	defer cancel()
	_, err := store.Commit(ctx, f.cfg.Backend, []*pb.Compare{store.CreateEquals(f.cfg.Keys.Run(id), 0)}, ops...)
	return err
}
