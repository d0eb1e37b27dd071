package embed_test

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// putUntil puts a key again and again until a member that can answer does.
func putUntil(t *testing.T, c store.Backend, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answer)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, time.Second)
		_, err := c.Txn(try, &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}})
		done()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("no member takes a write: %v", err)
		}
	}
}
