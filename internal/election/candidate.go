package election

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// Candidate is a process that campaigns.
type Candidate struct {
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version,omitempty"`
	Since    time.Time `json:"since"`

	// Term is the revision at which the key was created.
	Term int64 `json:"-"`
	// Lease is the lease that the key is attached to.
	Lease store.LeaseID `json:"-"`
}

// record is the value of a candidate's key.
type record struct {
	store.V
	Candidate
}

func (c Candidate) encode() []byte { return store.Encode(record{store.Now, c}) }

// Decode reads the key and the value of a candidate under prefix.
func Decode(prefix string, kv *mvccpb.KeyValue) (Candidate, error) {
	var r record
	err := DecodeInto(prefix, kv, &r, &r.Candidate)
	return r.Candidate, err
}

// DecodeInto is [Decode] for a value with more than the candidate's fields: c points to
// the candidate in value. If only the value cannot be read, c has its term and its lease
// with the error.
func DecodeInto(prefix string, kv *mvccpb.KeyValue, value store.Versioned, c *Candidate) error {
	key := string(kv.Key)
	id, err := strconv.ParseInt(strings.TrimPrefix(key, prefix), 16, 64)
	if err != nil || store.CandidateKey(prefix, store.LeaseID(id)) != key || id != kv.Lease {
		return &store.CorruptError{Key: key, Reason: errors.New("the key is not that of a candidate on its lease")}
	}
	err = store.Decode(key, kv.Value, value)
	c.Term, c.Lease = kv.CreateRevision, store.LeaseID(kv.Lease)
	return err
}

// List reads the keys under prefix in the order of their terms: the leader is first.
func List(ctx context.Context, b store.Backend, prefix string) ([]*mvccpb.KeyValue, error) {
	found, err := store.ReadAll(ctx, b, prefix)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found.KVs, func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	return found.KVs, nil
}

// Fence makes writes conditional on the key of a leader. A leader that can continue with
// an unknown outcome uses [Fence.Held]. One that must know the outcome of its earlier
// writes compares and puts the key with each of them.
type Fence struct {
	// Revision is that of the last known write of the key.
	Revision int64

	key   string
	lease store.LeaseID
	term  int64
}

// NewFence returns the fence of a candidate under prefix.
func NewFence(prefix string, c Candidate) Fence {
	return Fence{Revision: c.Term, key: store.CandidateKey(prefix, c.Lease), lease: c.Lease, term: c.Term}
}

// Held returns the compare that holds during the whole term.
func (f *Fence) Held() *pb.Compare { return store.CreateEquals(f.key, f.term) }

// Unchanged returns the compare that holds if the process still leads and has not
// written the key since the last known write.
func (f *Fence) Unchanged() *pb.Compare { return store.ModEquals(f.key, f.Revision) }

// Write returns the transaction that puts the key if it is unchanged, and reads it if not,
// for [Fence.Answer]. Other compares and operations can be added to it. By itself it
// fences earlier writes: none of them can commit after it has succeeded.
func (f *Fence) Write(value []byte) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{f.Unchanged()},
		Success: []*pb.RequestOp{store.Put(f.key, value, f.lease)},
		Failure: []*pb.RequestOp{store.Get(f.key)},
	}
}

// Answer takes the response to a transaction of [Fence.Write], and reports whether the
// process still led.
func (f *Fence) Answer(resp *pb.TxnResponse) (leads bool) {
	if resp.Succeeded {
		f.Revision = resp.Header.Revision
		return true
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 || kvs[0].CreateRevision != f.term || kvs[0].Lease != int64(f.lease) {
		return false
	}
	f.Revision = kvs[0].ModRevision
	return true
}
