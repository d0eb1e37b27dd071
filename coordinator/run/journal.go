package run

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

const (
	// DefaultRetention is the default of how long events are kept.
	DefaultRetention = 24 * time.Hour
	// keysPerLease bounds the events on one lease: with RBAC, a put costs time in
	// proportion to the keys on its lease, and when the lease expires, etcd deletes all of
	// them at once.
	keysPerLease = 300
	// leaseShare is the fraction of the retention for which one lease takes events.
	leaseShare = 24
	// grantTimeout bounds one attempt to get a lease.
	grantTimeout = 2 * time.Second
)

// Journal makes the writes of events. Each event has a key, on a lease that expires at the
// end of the retention.
type Journal struct {
	backend   store.Backend
	keys      store.Keys
	by        string
	retention time.Duration

	written  atomic.Int64
	dropped  atomic.Int64
	bound    eventBound
	claims   claimBound    // used by [Journal.Follow] only
	granting chan struct{} // holds one while a lease is being granted
	group    store.Group   // of the changes with events
	spares   spares

	mu      sync.Mutex // guards what follows
	lease   store.LeaseID
	cluster uint64    // of etcd that the lease is of
	left    int       // keys that can still be attached
	until   time.Time // when it takes no more
}

// NewJournal returns a journal of the instance by ("host/instance"). Its events are kept at
// least for retention; 0 is [DefaultRetention].
func NewJournal(b store.Backend, keys store.Keys, by string, retention time.Duration) *Journal {
	if retention <= 0 {
		retention = DefaultRetention
	}
	return &Journal{backend: b, keys: keys, by: by, retention: retention, granting: make(chan struct{}, 1), bound: eventBound{most: DefaultMaxEvents}}
}

// Op returns the write of an event of a run, for the transaction of the change. If the run has as
// many events as it can have, it is a read instead, without an effect.
func (j *Journal) Op(ctx context.Context, run string, e Event) (*pb.RequestOp, error) {
	return j.OpAs(ctx, run, ulid.Make().String(), e)
}

// OpAs is [Journal.Op] with a given id. Ids order the events of one revision; those of Op
// begin with the time.
func (j *Journal) OpAs(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	may, err := j.may(ctx, run, e)
	if err != nil {
		return nil, err
	}
	if !may {
		return store.Get(j.keys.Event(run, id)), nil
	}
	return j.put(ctx, run, id, e)
}

// Stamp replaces the event of a write of [Journal.Op].
func (j *Journal) Stamp(op *pb.RequestOp, e Event) {
	if put := op.GetRequestPut(); put != nil {
		put.Value = j.value(e)
	}
}

// value returns the value of an event in etcd.
func (j *Journal) value(e Event) []byte {
	e.By, e.At = j.by, e.At.UTC().Truncate(time.Millisecond)
	return store.Encode(eventValue{store.Now, e})
}

// may reports whether the run can have one more event, and counts it. If not, the event is
// dropped.
func (j *Journal) may(ctx context.Context, run string, e Event) (bool, error) {
	may, err := j.bound.take(run, e.Type, time.Now(), func() (int, error) { return j.count(ctx, run) })
	if err == nil && !may {
		j.dropped.Add(1)
	}
	return may, err
}

// once returns the write of an event with a given id that was counted. It has no effect if the
// event exists, since an earlier write had an unknown outcome, or if the run does not exist.
func (j *Journal) once(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	put, err := j.put(ctx, run, id, e)
	if err != nil {
		return nil, err
	}
	return store.Nest(&pb.TxnRequest{
		Compare: []*pb.Compare{store.CreateEquals(j.keys.Event(run, id), 0), store.Present(j.keys.Run(run))}, Success: []*pb.RequestOp{put},
	}), nil
}

func (j *Journal) put(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	lease, err := j.reserve(ctx)
	if err != nil {
		return nil, err
	}
	j.written.Add(1)
	return store.Put(j.keys.Event(run, id), j.value(e), lease), nil
}

// Keep returns the write of a key that is kept as long as events.
func (j *Journal) Keep(ctx context.Context, key string, value []byte) (*pb.RequestOp, error) {
	lease, err := j.reserve(ctx)
	if err != nil {
		return nil, err
	}
	return store.Put(key, value, lease), nil
}

// Retention returns how long events are kept at least; 0 of a nil journal, for stores that
// only read.
func (j *Journal) Retention() time.Duration {
	if j == nil {
		return 0
	}
	return j.retention
}

// Written returns the number of events written so far.
func (j *Journal) Written() int64 { return j.written.Load() }

// reserve returns a lease for one more key.
func (j *Journal) reserve(ctx context.Context) (store.LeaseID, error) {
	for {
		if id, ok := j.take(time.Now()); ok {
			return id, nil
		}
		select {
		case j.granting <- struct{}{}:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		err := j.grant(ctx)
		<-j.granting
		if err != nil {
			return 0, err
		}
	}
}

// take reserves a key on the current lease; false if it takes no more.
func (j *Journal) take(now time.Time) (store.LeaseID, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.usable(now) {
		return 0, false
	}
	j.left--
	return j.lease, true
}

// usable reports whether the current lease takes another key. The lock is held.
func (j *Journal) usable(now time.Time) bool {
	cluster, _ := j.backend.Cluster()
	return j.left > 0 && !now.After(j.until) && j.cluster == cluster
}

// grant grants a lease, unless another goroutine just has.
func (j *Journal) grant(ctx context.Context) error {
	now, share := time.Now(), j.retention/leaseShare
	j.mu.Lock()
	there := j.usable(now)
	j.mu.Unlock()
	if there {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	cluster, _ := j.backend.Cluster()
	id, _, err := j.backend.Grant(store.WithCluster(ctx, cluster), j.retention+share)
	if err != nil {
		return err
	}
	if cluster == 0 { // etcd had not answered yet
		cluster, _ = j.backend.Cluster()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lease, j.cluster, j.left, j.until = id, cluster, keysPerLease, now.Add(share)
	return nil
}

// Forget makes the next event use a new lease: the last one has expired.
func (j *Journal) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.left = 0
}

const (
	// sparePerRun is how many events of a run one journal writes in addition to the
	// regular events of step instances: that keeps the total near 500.
	sparePerRun = 20
	// spareRuns bounds the runs that are counted.
	spareRuns = 4096
)

// spares counts the additional events of runs.
type spares struct {
	mu   sync.Mutex // guards what follows
	used map[string]int
}

// Spare reports whether a run may have one more additional event, and counts it.
func (j *Journal) Spare(run string) bool {
	s := &j.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	used, known := s.used[run]
	switch {
	case used == sparePerRun:
		return false
	case s.used == nil || !known && len(s.used) == spareRuns:
		s.used = map[string]int{} // most of these runs have ended
	}
	s.used[run] = used + 1
	return true
}
