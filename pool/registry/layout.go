package registry

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
)

// ErrOldLayout is why [Layout.Check] refuses data that [Layout.Upgrade] can upgrade.
var ErrOldLayout = errors.New("of the layout before 2")

// Layout is the version of what etcd has under a prefix. Its key is put once.
type Layout struct {
	Backend store.Backend
	Keys    store.Keys
}

// Version is the layout of this berth.
const Version = wire.Version

// version is the value of the key.
func version() []byte { return store.Encode(store.V{Version: Version}) }

// Check refuses data of another layout than that of this berth. Without a version, there must be no pools: who creates
// the first one puts the version, so that a process that creates none needs no right to write it. A process must not
// read or write pools before Check has returned nil. Its errors are problems; that of older data is [ErrOldLayout].
func (l Layout) Check(ctx context.Context) error {
	_, err := store.Change(ctx, "the layout of the data could not be checked", l.read)
	return err
}

// establish puts the version before a pool is created. It is one try within [store.Change].
func (l Layout) establish(ctx context.Context) error {
	if present, err := l.read(ctx); present || err != nil {
		return err
	}
	_, err := store.Commit(ctx, l.Backend, []*pb.Compare{l.absent(), l.empty()}, store.Put(l.key(), version(), 0))
	return err
}

// read reports whether the version is there. If it is not, there are no pools.
func (l Layout) read(ctx context.Context) (present bool, err error) {
	resp, err := l.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(l.key())})
	if err != nil {
		return false, fmt.Errorf("read %s: %w", l.key(), err)
	}
	if present, err = l.present(resp.Kvs); present || err != nil {
		return present, err
	}
	// Only now all keys of pools are compared, of which there may be many.
	none, err := l.Backend.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{l.empty()}, Failure: []*pb.RequestOp{store.Get(l.key())}})
	if err != nil {
		return false, fmt.Errorf("read %s: %w", l.Keys.Pools(), err)
	}
	if none.Succeeded {
		return false, nil
	}
	if present, err = l.present(none.Responses[0].GetResponseRange().Kvs); present || err != nil { // put meanwhile
		return present, err
	}
	return false, store.Stop(problem.New(problem.Precondition,
		"the data under %s is %w: stop every berth process, wait until no claim is held, then run 'berth upgrade'", l.Keys.Prefix(), ErrOldLayout))
}

func (l Layout) key() string { return wire.Keys{Keys: l.Keys}.Layout() }

// absent is the condition that there is no version, and empty that there is nothing below pools/.
func (l Layout) absent() *pb.Compare { return store.ModEquals(l.key(), 0) }
func (l Layout) empty() *pb.Compare  { return store.NonePutSince(l.Keys.Pools(), 0) }

// present reports whether the version that was read is that of this berth. It is false if there is none.
func (l Layout) present(read []*mvccpb.KeyValue) (bool, error) {
	if len(read) == 0 {
		return false, nil
	}
	err := store.DecodeVersion(Version, l.key(), read[0].Value, &store.V{})
	if err == nil {
		return true, nil
	}
	if v := (*store.VersionError)(nil); errors.As(err, &v) && v.Version > Version {
		err = fmt.Errorf("the data under %s is of the layout %d, and this berth reads layouts up to %d: it is too old, run a newer one",
			l.Keys.Prefix(), v.Version, Version)
	}
	return false, store.Stop(problem.New(problem.CorruptValue, "%w", err))
}
