package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

const (
	// leaderStart bounds the time until a coordinator leads, and leaderLook is how
	// often it is asked.
	leaderStart = 30 * time.Second
	leaderLook  = 5 * time.Millisecond
	// startTimeout is longer than any case: runs that nobody starts stay admitted.
	startTimeout = 24 * time.Hour
)

// leader is a coordinator in this process, on a connection of its own.
type leader struct {
	conn *connection
	*part
}

// lead starts one, and returns when it leads.
func (r *runner) lead(ctx context.Context) (*leader, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	c := coordinator.New(coordinator.Config{
		Backend: conn, Keys: r.keys(), Host: "bench-leader", StartTimeout: startTimeout,
		CompactInterval: -1, // etcd may be somebody else's
	})
	l := &leader{conn: conn, part: start(ctx, c.Run)}
	ctx, cancel := context.WithTimeout(ctx, leaderStart)
	defer cancel()
	for !c.Leading() {
		select {
		case <-time.After(leaderLook):
			continue
		case <-l.done:
			err = l.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("the coordinator does not lead: %w", err), l.close())
	}
	return l, nil
}

func (l *leader) close() error {
	l.stop()
	return l.conn.close()
}

const (
	// crowdPuts is how many runs are written at a time: etcd takes up to 128.
	crowdPuts = 60
	// notedPatience is how long a leader may take until all reasons are noted, and
	// notedEach how long for each run; notedLook is how often it is looked.
	notedPatience = time.Minute
	notedEach     = 10 * time.Millisecond
	notedLook     = 20 * time.Millisecond
)

// measureLeader has a coordinator in this process lead over a crowd.
func (r *runner) measureLeader(ctx context.Context, row *Row) (err error) {
	conn, err := r.connect()
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, r.wipeRuns(end), r.wipe(end, r.keys().Limits()), conn.close())
	}()
	runs := r.runs(conn)
	limits := crowdLimits()
	if _, err := runs.SetLimits(ctx, run.LimitsChange{
		MaxConcurrentRuns: &limits.MaxConcurrentRuns, Tags: limits.Tags, Replace: true,
	}); err != nil {
		return err
	}
	if err := writeCrowd(ctx, runs, row.Queued); err != nil {
		return err
	}
	row.Leader, err = r.leaderOver(ctx, runs, row.Queued)
	return err
}

// leaderOver starts a coordinator, and reads its memory once it has nothing more to
// do.
func (r *runner) leaderOver(ctx context.Context, runs run.Store, queued int) (_ *Leader, err error) {
	before, err := ownMemory()
	if err != nil {
		return nil, err
	}
	// From here on the peak is that of what follows; without it, of all that was.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	begun := time.Now()
	l, err := r.lead(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := noted(ctx, runs, l, queued); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	after, err := ownMemory()
	if err != nil {
		return nil, err
	}
	return &Leader{
		Queued: queued, InProgress: crowdProgress, TagLimits: len(crowdLimits().Tags),
		Seconds: took.Seconds(), Heap: after.heap - before.heap,
		Resident: after.resident - before.resident, Peak: after.peak - before.resident,
		Before: before.resident,
	}, nil
}

// writeCrowd writes runs in progress that wait for an executor, and queued ones
// behind them.
func writeCrowd(ctx context.Context, runs run.Store, queued int) error {
	now := time.Now()
	for at := 0; at < crowdProgress+queued; at += crowdPuts {
		var t pb.TxnRequest
		for i := at; i < min(at+crowdPuts, crowdProgress+queued); i++ {
			rec := run.Record{Spec: crowdSpec(i), Status: run.Queued, QueuedAt: now}
			id := crowdID(run.Queued, i-crowdProgress)
			if i < crowdProgress {
				id = crowdID(run.NotStarted, i)
				rec.Status, rec.AdmittedAt = run.NotStarted, now
			}
			t.Success = append(t.Success, store.Put(runs.Keys.Run(id), rec.Encode(), 0))
		}
		if _, err := runs.Backend.Txn(ctx, &t); err != nil {
			return fmt.Errorf("write runs: %w", err)
		}
	}
	return nil
}

// noted waits until a leader has noted with each run why it is queued, which it does
// in the order of the queue.
func noted(ctx context.Context, runs run.Store, l *leader, queued int) error {
	ctx, cancel := context.WithTimeout(ctx, notedPatience+time.Duration(queued)*notedEach)
	defer cancel()
	for {
		last, err := runs.Get(ctx, crowdID(run.Queued, queued-1))
		if err != nil {
			return err
		}
		if last.Block != nil {
			return nil
		}
		select {
		case <-time.After(notedLook):
		case <-l.done:
			return fmt.Errorf("the coordinator has ended: %w", l.err)
		case <-ctx.Done():
			return fmt.Errorf("the coordinator has not noted all reasons: %w", context.Cause(ctx))
		}
	}
}

// memoryUse is what this process takes, in megabytes.
type memoryUse struct{ heap, resident, peak float64 }

// ownMemory reads it after garbage was collected, twice for what the first time only
// sets free, and free memory given back to the system.
func ownMemory() (memoryUse, error) {
	runtime.GC()
	debug.FreeOSMemory()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	now, peak, err := resident(os.Getpid())
	return memoryUse{heap: float64(s.HeapAlloc) / (1 << 20), resident: now, peak: peak}, err
}
