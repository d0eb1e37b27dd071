package source

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

func TestASourceDoesNotUseDataOfAnotherLayout(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		put := store.Put(r.keys.Spec("db"), []byte(`{"v":1,"limit":2,"lease_duration":"5m","reserve_after":"0s"}`), 0)
		old, err := r.root.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{put}})
		if err != nil {
			t.Fatal(err)
		}
		by := r.root.Peer()
		defer by.Close()
		err = New(Config{Backend: by, Keys: r.keys, Spec: r.specs, Host: "one"}).Run(t.Context())
		if !errors.Is(err, registry.ErrOldLayout) || problem.CodeOf(err) != problem.Precondition {
			t.Errorf("it has ended with %v", err)
		}
		if all, err := store.ReadAll(t.Context(), r.root, "/"); err != nil || all.Revision != old.Header.Revision {
			t.Errorf("it has put something, %v", err)
		}
	})
}
