package storetest

import (
	"iter"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// Options of an [Etcd]. The zero value is a fresh etcd with its defaults.
type Options struct {
	// Revision of the empty store. 0 means 1, which is a fresh etcd's.
	Revision int64
	// ClusterID in the header of every answer. 0 means 1.
	ClusterID uint64
	// MinTTL is the shortest time to live; shorter grants are raised to it
	// without a word. 0 means 2 s, which is etcd's at its default election
	// timeout of 1 s.
	MinTTL time.Duration
	// ExpiryLag is how long after its end a lease still keeps its keys. It can't
	// be renewed in that time. Etcd takes up to half a second.
	ExpiryLag time.Duration
}

// Etcd is the stand-in. The zero value is of no use; see [New].
type Etcd struct {
	opts     Options
	onCommit func(rev int64, events []*mvccpb.Event, req *pb.TxnRequest)

	keys      index
	rev       int64
	compacted int64 // -1 before the first compaction, as in etcd
	log       []Revision
	space     Space
	used      int64

	leases    map[store.LeaseID]*lease
	lastLease store.LeaseID
	now       time.Duration
	// No lease ends before earliest. It may be too early after a renewal.
	earliest time.Duration

	// Scratch of one transaction, kept to spare allocations.
	path    []bool
	puts    [][]byte
	deletes []keyRange
}

// New returns an empty store.
func New(opts Options) *Etcd {
	if opts.Revision == 0 {
		opts.Revision = 1
	}
	if opts.ClusterID == 0 {
		opts.ClusterID = 1
	}
	if opts.MinTTL == 0 {
		opts.MinTTL = 2 * time.Second
	}
	return &Etcd{
		opts:      opts,
		rev:       opts.Revision,
		compacted: -1,
		leases:    make(map[store.LeaseID]*lease),
		earliest:  never,
	}
}

// OnCommit has f called after every revision, before the call that made it
// returns: the place to check invariants. Request req is nil where a lease took
// its keys with it. The field PrevKv of each event is what the key held before.
// Function f may read the store; it must not change it, nor what it is given.
func (e *Etcd) OnCommit(f func(rev int64, events []*mvccpb.Event, req *pb.TxnRequest)) {
	e.onCommit = f
}

// Revision returns the revision of the last write.
func (e *Etcd) Revision() int64 { return e.rev }

// All yields the keys under prefix in order, as they are now. They are the
// store's own. The store must not change meanwhile.
func (e *Etcd) All(prefix string) iter.Seq[*mvccpb.KeyValue] {
	return func(yield func(*mvccpb.KeyValue) bool) {
		for _, kv := range e.keys.under(prefix) {
			if !yield(kv) {
				return
			}
		}
	}
}

// Txn carries out one transaction, whole or not at all. The exception is
// [SpaceFilling], in which it is carried out and still ends in an error.
func (e *Etcd) Txn(req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := e.validate(req); err != nil {
		return nil, err
	}
	costs := puts(req)
	if costs && e.space == SpaceFull {
		return nil, errTxnNoSpace
	}
	e.path = e.decide(e.path[:0], req)
	if _, err := e.admit(req, e.path); err != nil {
		return nil, err
	}

	began := e.rev
	run := run{e: e, path: e.path, began: began}
	resp := run.txn(req)
	resp.Header.ClusterId = e.opts.ClusterID
	resp.Header.MemberId, resp.Header.RaftTerm = 1, 1
	resp.Header.Revision = e.rev
	if e.rev != began {
		e.committed(req)
	}
	if costs && e.space == SpaceFilling {
		return nil, errTxnNoSpace
	}
	return resp, nil
}

// committed tells the hook of the revision just made.
func (e *Etcd) committed(req *pb.TxnRequest) {
	if e.onCommit == nil {
		return
	}
	last := e.log[len(e.log)-1]
	e.onCommit(last.Rev, last.Events, req)
}

// Saved is what a snapshot of an [Etcd] has.
type Saved struct {
	rev    int64
	keys   index
	leases map[store.LeaseID]time.Duration
}

// Save takes a snapshot, for [Etcd.Restore].
func (e *Etcd) Save() *Saved {
	s := &Saved{rev: e.rev, keys: slices.Clone(e.keys), leases: make(map[store.LeaseID]time.Duration)}
	for id, l := range e.leases {
		s.leases[id] = l.ttl
	}
	return s
}

// Revision is the one of the snapshot.
func (s *Saved) Revision() int64 { return s.rev }

// SetCluster gives the store the id of another cluster, as a restore with a new cluster token does.
func (e *Etcd) SetCluster(id uint64) { e.opts.ClusterID = id }

// Restore goes back to a snapshot as etcdutl does with --bump-revision and --mark-compacted:
// keys keep their revisions, leases have their full time, and the store is at a revision
// that is later by bump than the last one, with all before it compacted and forgotten.
func (e *Etcd) Restore(s *Saved, bump int64) {
	e.rev += bump
	e.opts.Revision, e.compacted, e.log = e.rev, e.rev, nil
	e.keys = slices.Clone(s.keys)
	e.leases, e.earliest = make(map[store.LeaseID]*lease), never
	for id, ttl := range s.leases {
		l := &lease{ttl: ttl, end: later(e.now, ttl)}
		e.leases[id] = l
		e.earliest = min(e.earliest, later(l.end, e.opts.ExpiryLag))
	}
}
