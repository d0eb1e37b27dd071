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
	// DefaultRetention is how long events are kept unless the settings say
	// otherwise.
	DefaultRetention = 24 * time.Hour
	// keysPerLease bounds the events on one lease: where etcd checks rights, a put costs
	// time in proportion to the keys on its lease, and when the lease ends, etcd deletes
	// all of them at once.
	keysPerLease = 300
	// leaseShare is the part of the retention for which one lease takes events.
	leaseShare = 24
	// grantTimeout bounds one try to get a lease.
	grantTimeout = 2 * time.Second
)

// Journal makes the writes of events. Each event is a key of its own on a lease
// that ends when nobody needs the event any more, so nobody has to delete it.
type Journal struct {
	backend   store.Backend
	keys      store.Keys
	by        string
	retention time.Duration

	written  atomic.Int64
	granting chan struct{} // holds one while a lease is being made
	group    store.Group   // of the changes that its events tell of
	spares   spares

	mu    sync.Mutex // guards what follows
	lease store.LeaseID
	left  int       // keys that the lease has room for
	until time.Time // when it takes no more
}

// NewJournal returns a journal of the instance by ("host/instance"), whose events
// are kept for retention at least; 0 is [DefaultRetention].
func NewJournal(b store.Backend, keys store.Keys, by string, retention time.Duration) *Journal {
	if retention <= 0 {
		retention = DefaultRetention
	}
	return &Journal{backend: b, keys: keys, by: by, retention: retention, granting: make(chan struct{}, 1)}
}

// Op is the write of an event of a run, to be sent with what it tells of.
func (j *Journal) Op(ctx context.Context, run string, e Event) (*pb.RequestOp, error) {
	return j.put(ctx, run, ulid.Make().String(), e)
}

// OpAs is [Journal.Op] for an event that has an id already. Ids are the order of the events
// of one revision; those of others begin with the time.
func (j *Journal) OpAs(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	return j.put(ctx, run, id, e)
}

// Stamp has the write of an event tell another time, and what else of it has changed.
func (j *Journal) Stamp(op *pb.RequestOp, e Event) { op.GetRequestPut().Value = j.value(e) }

// value is what stands in etcd of an event.
func (j *Journal) value(e Event) []byte {
	e.By, e.At = j.by, e.At.UTC().Truncate(time.Millisecond)
	return store.Encode(eventValue{store.Now, e})
}

// once is the write of an event that has an id already: the write of an event of that
// id does nothing if there was one before, of which the answer was lost.
func (j *Journal) once(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	put, err := j.put(ctx, run, id, e)
	if err != nil {
		return nil, err
	}
	return store.Nest(&pb.TxnRequest{
		Compare: []*pb.Compare{store.CreateEquals(j.keys.Event(run, id), 0)}, Success: []*pb.RequestOp{put},
	}), nil
}

func (j *Journal) put(ctx context.Context, run, id string, e Event) (*pb.RequestOp, error) {
	lease, err := j.room(ctx)
	if err != nil {
		return nil, err
	}
	j.written.Add(1)
	return store.Put(j.keys.Event(run, id), j.value(e), lease), nil
}

// Keep is the write of a key that is kept as long as events are.
func (j *Journal) Keep(ctx context.Context, key string, value []byte) (*pb.RequestOp, error) {
	lease, err := j.room(ctx)
	if err != nil {
		return nil, err
	}
	return store.Put(key, value, lease), nil
}

// Retention returns how long events are kept at least; 0 of a nil journal, which stores have
// that only read.
func (j *Journal) Retention() time.Duration {
	if j == nil {
		return 0
	}
	return j.retention
}

// Written is how many writes of events were made so far.
func (j *Journal) Written() int64 { return j.written.Load() }

// room returns a lease that has room for one more key.
func (j *Journal) room(ctx context.Context) (store.LeaseID, error) {
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

// take takes room on the present lease; false if it has none.
func (j *Journal) take(now time.Time) (store.LeaseID, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.left == 0 || now.After(j.until) {
		return 0, false
	}
	j.left--
	return j.lease, true
}

// grant makes a lease, unless somebody just has.
func (j *Journal) grant(ctx context.Context) error {
	now, share := time.Now(), j.retention/leaseShare
	j.mu.Lock()
	there := j.left > 0 && !now.After(j.until)
	j.mu.Unlock()
	if there {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	id, _, err := j.backend.Grant(ctx, j.retention+share)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lease, j.left, j.until = id, keysPerLease, now.Add(share)
	return nil
}

// Forget has the next event take a new lease: etcd did not know the last one.
func (j *Journal) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.left = 0
}
