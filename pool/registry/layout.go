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

// version is the value of the key.
func version() []byte { return store.Encode(store.V{Version: wire.Version}) }

// Check refuses data of another layout than that of this berth. If there is neither a version nor a pool, it puts the
// version. A process must not read or write pools before Check has returned nil. Its errors are problems; that of
// older data is [ErrOldLayout].
func (l Layout) Check(ctx context.Context) error {
	_, err := store.Change(ctx, "the layout of the data could not be checked", func(ctx context.Context) (none struct{}, err error) {
		resp, err := l.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(l.key())})
		if err != nil {
			return none, fmt.Errorf("read %s: %w", l.key(), err)
		}
		if present, err := l.present(resp.Kvs); present || err != nil {
			return none, err
		}
		return none, l.begin(ctx)
	})
	return err
}

// begin puts the version if there are no pools, and accepts one that another process has put meanwhile.
func (l Layout) begin(ctx context.Context) error {
	resp, err := l.Backend.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{l.absent(), store.NonePutSince(l.Keys.Pools(), 0)},
		Success: []*pb.RequestOp{store.Put(l.key(), version(), 0)},
		Failure: []*pb.RequestOp{store.Get(l.key())},
	})
	switch {
	case err != nil:
		return fmt.Errorf("put %s: %w", l.key(), err)
	case resp.Succeeded:
		return nil
	}
	present, err := l.present(resp.Responses[0].GetResponseRange().Kvs)
	if present || err != nil {
		return err
	}
	return store.Stop(problem.New(problem.Precondition,
		"the data under %s is %w: stop every berth process, wait until no claim is held, then run 'berth upgrade'", l.Keys.Prefix(), ErrOldLayout))
}

func (l Layout) key() string { return wire.Keys{Keys: l.Keys}.Layout() }

// absent is the condition that there is no version.
func (l Layout) absent() *pb.Compare { return store.ModEquals(l.key(), 0) }

// present reports whether the version that was read is that of this berth. It is false if there is none.
func (l Layout) present(read []*mvccpb.KeyValue) (bool, error) {
	if len(read) == 0 {
		return false, nil
	}
	err := store.DecodeVersion(wire.Version, l.key(), read[0].Value, &store.V{})
	if err == nil {
		return true, nil
	}
	if v := (*store.VersionError)(nil); errors.As(err, &v) && v.Version > wire.Version {
		err = fmt.Errorf("the data under %s is of the layout %d, and this berth reads layouts up to %d: it is too old, run a newer one",
			l.Keys.Prefix(), v.Version, wire.Version)
	}
	return false, store.Stop(problem.New(problem.CorruptValue, "%w", err))
}
