//go:build linux

package main

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
	"github.com/berthhq/berth/internal/bench"
	"github.com/berthhq/berth/internal/store"
)

const (
	// leaderStart bounds the time until a coordinator leads, and leaderPoll is how
	// often that is checked.
	leaderStart = 30 * time.Second
	leaderPoll  = 5 * time.Millisecond
	// startTimeout is longer than any case: runs that are not started stay admitted.
	startTimeout = 24 * time.Hour
)

// leader is a coordinator in this process, on a connection of its own.
type leader struct {
	conn *connection
	*part
}

// lead starts a coordinator, and returns when it leads.
func (r *runner) lead(ctx context.Context) (*leader, error) {
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	c := coordinator.New(coordinator.Config{
		Backend: conn, Keys: r.keys(), Host: "bench-leader", StartTimeout: startTimeout,
		CompactInterval: -1, // etcd may have other users
	})
	l := &leader{conn: conn, part: start(ctx, c.Run)}
	ctx, cancel := context.WithTimeout(ctx, leaderStart)
	defer cancel()
	for !c.Leading() {
		select {
		case <-time.After(leaderPoll):
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
	// backlogPuts is how many runs are written at a time: etcd takes up to 128.
	backlogPuts = 60
	// recordedPatience is how long a leader may take until all reasons are recorded,
	// recordedEach how long for each run, and recordedPoll how often that is checked.
	recordedPatience = time.Minute
	recordedEach     = 10 * time.Millisecond
	recordedPoll     = 20 * time.Millisecond
)

// leaderFigures are the memory of a coordinator that leads in this process. Megabytes are
// of 2^20 bytes.
type leaderFigures struct {
	Queued     int `json:"queued"`
	InProgress int `json:"in_progress"`
	TagLimits  int `json:"tag_limits"`
	// Seconds are those from its start until the reason of each queued run was
	// recorded.
	Seconds float64 `json:"seconds"`
	// Heap is the size of Go's heap after garbage collection, and Resident the memory of
	// the process after free memory was returned: how much more than before the
	// coordinator started.
	Heap     float64 `json:"heap_mb"`
	Resident float64 `json:"resident_mb"`
	// Peak is the most that was resident meanwhile, likewise.
	Peak float64 `json:"peak_mb"`
	// Before is what was resident before: the benchmark itself.
	Before float64 `json:"before_mb"`
}

// measureLeader measures the memory of a coordinator in this process that leads over a
// backlog.
func (r *runner) measureLeader(ctx context.Context, row *row) (err error) {
	conn, err := r.connect()
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), bench.CloseTimeout)
		defer cancel()
		err = errors.Join(err, r.wipeRuns(end), r.Wipe(end, r.keys().Limits()), conn.close())
	}()
	runs := r.runs(conn)
	limits := backlogLimits()
	if _, _, err := runs.SetLimits(ctx, run.LimitsChange{
		MaxConcurrentRuns: &limits.MaxConcurrentRuns, Tags: limits.Tags, Replace: true,
	}); err != nil {
		return err
	}
	if err := writeBacklog(ctx, runs, row.Queued); err != nil {
		return err
	}
	row.Leader, err = r.leaderOver(ctx, runs, row.Queued)
	return err
}

// leaderOver starts a coordinator, and reads the memory when it has nothing more to
// do.
func (r *runner) leaderOver(ctx context.Context, runs run.Store, queued int) (_ *leaderFigures, err error) {
	before, err := ownMemory()
	if err != nil {
		return nil, err
	}
	// This resets the peak.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	begun := time.Now()
	l, err := r.lead(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := recorded(ctx, runs, l, queued); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	after, err := ownMemory()
	if err != nil {
		return nil, err
	}
	return &leaderFigures{
		Queued: queued, InProgress: inProgress, TagLimits: len(backlogLimits().Tags),
		Seconds: took.Seconds(), Heap: after.heap - before.heap,
		Resident: after.resident - before.resident, Peak: after.peak - before.resident,
		Before: before.resident,
	}, nil
}

// writeBacklog writes runs that were admitted and wait for an executor, and queued
// ones after them.
func writeBacklog(ctx context.Context, runs run.Store, queued int) error {
	now := time.Now()
	for at := 0; at < inProgress+queued; at += backlogPuts {
		var t pb.TxnRequest
		for i := at; i < min(at+backlogPuts, inProgress+queued); i++ {
			rec := run.Record{Spec: backlogSpec(i), Status: run.Queued, QueuedAt: now}
			id := backlogID(run.Queued, i-inProgress)
			if i < inProgress {
				id = backlogID(run.NotStarted, i)
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

// recorded waits until a leader has recorded with each run why it is queued, which it
// does in the order of the queue.
func recorded(ctx context.Context, runs run.Store, l *leader, queued int) error {
	ctx, cancel := context.WithTimeout(ctx, recordedPatience+time.Duration(queued)*recordedEach)
	defer cancel()
	for {
		last, err := runs.Get(ctx, backlogID(run.Queued, queued-1))
		if err != nil {
			return err
		}
		if last.Block != nil {
			return nil
		}
		select {
		case <-time.After(recordedPoll):
		case <-l.done:
			return fmt.Errorf("the coordinator has ended: %w", l.err)
		case <-ctx.Done():
			return fmt.Errorf("the coordinator has not recorded all reasons: %w", context.Cause(ctx))
		}
	}
}

// memoryUse is what this process takes, in megabytes.
type memoryUse struct{ heap, resident, peak float64 }

// ownMemory returns it after garbage collection, of which FreeOSMemory forces a second
// one, and after free memory was returned to the system.
func ownMemory() (memoryUse, error) {
	runtime.GC()
	debug.FreeOSMemory()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	now, peak, err := bench.Resident(os.Getpid())
	return memoryUse{heap: float64(s.HeapAlloc) / (1 << 20), resident: now, peak: peak}, err
}
