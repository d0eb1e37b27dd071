package enginetest

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// holder is a backend that keeps the first transaction that is meant, and has its caller wait.
type holder struct {
	store.Backend
	of   func(storetest.Call) bool
	took chan *pb.TxnRequest

	mu     sync.Mutex
	active bool
}

// on has it keep the next one.
func (h *holder) on(is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active = is
}

// keeps reports whether it keeps a transaction, which it does once.
func (h *holder) keeps(t *pb.TxnRequest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	is := h.active && h.of(storetest.Call{Op: storetest.OpTxn, Txn: t})
	h.active = h.active && !is
	return is
}

// Txn sends a transaction, or keeps it until its caller gives it up.
func (h *holder) Txn(ctx context.Context, t *pb.TxnRequest) (*pb.TxnResponse, error) {
	if !h.keeps(t) {
		return h.Backend.Txn(ctx, t)
	}
	h.took <- t
	<-ctx.Done()
	return nil, store.ErrUnavailable
}
