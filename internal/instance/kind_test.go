package instance_test

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool/wire"
)

// A server takes the role of dispatcher from a service, which has it as the only one with waiting claims.
func TestAServerDispatchesBeforeAService(t *testing.T) {
	srv := embedtest.New(t)
	etcd, key := embedtest.Client(t, srv), wire.Keys{Keys: store.NewKeys(store.DefaultPrefix)}.Role()
	role := func() wire.Role {
		resp, err := etcd.Range(t.Context(), &pb.RangeRequest{Key: []byte(key)})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) == 0 {
			return wire.Role{}
		}
		r, err := wire.DecodeRole(key, resp.Kvs[0].Value)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	service := open(t, srv, func(o *instance.Options) { o.Instance = "service" })
	defer closed(t, service)
	setPool(t, service, "db", 1, time.Minute)
	setPool(t, service, "api", 1, time.Minute)
	held := claimed(t, service, instance.Slots{"db": 1})
	defer waitIn(t, service, 1)()
	until(t, "the service dispatches", func() bool { return role().Kind == wire.Service })
	server := open(t, srv, func(o *instance.Options) { o.Instance, o.Kind = "server", instance.Server })
	defer closed(t, server)
	end := waitIn(t, server, 1)
	defer end()
	until(t, "the server dispatches", func() bool { r := role(); return r.Kind == wire.Server && r.Instance == "server" })
	end()
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
