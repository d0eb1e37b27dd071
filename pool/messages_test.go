package pool

import (
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// send has the core make its next call.
func (h *simHost) send() bool {
	if h.pending != nil {
		return false
	}
	c := h.core.next(h.w.now)
	if c == nil {
		return false
	}
	h.pending, h.answered = c, false
	txn := c.txn
	if h.w.mutate != nil {
		h.w.mutate(txn)
	}
	h.w.network = append(h.w.network, &message{from: h, life: h.life, call: c, txn: txn})
	return true
}

// arrive carries out a transaction that is under way.
func (w *world) arrive(i int) {
	m := w.network[i]
	w.network = slices.Delete(w.network, i, i+1)
	w.sending = m.from
	resp, err := (*pb.TxnResponse)(nil), store.ErrDenied
	if (!w.denying || w.rnd.IntN(3) > 0) && !w.foreign(m.from, m.txn) {
		resp, err = w.etcd.Txn(m.txn)
	}
	w.sending = nil
	w.logf("%s life %d txn: %s: %s", m.from.name, m.life, txnOutcome(resp, err), described(m.txn))
	if m.from.life == m.life && m.from.pending == m.call && !m.from.answered {
		m.from.answered, m.from.resp, m.from.err = true, resp, err
	}
}

// foreign reports whether a transaction puts keys on a lease on which its user may put none.
func (w *world) foreign(from *simHost, t *pb.TxnRequest) bool {
	return w.users && slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool {
		if nested := op.GetRequestTxn(); nested != nil {
			return w.foreign(from, nested)
		}
		h := w.owned[store.LeaseID(op.GetRequestPut().GetLease())]
		return h != nil && h != from
	})
}

// described is a transaction in one line: its compares, and what it writes.
func described(t *pb.TxnRequest) string {
	short := func(key []byte) string { return strings.TrimPrefix(string(key), "/b/pools/") }
	var parts []string
	for _, c := range t.Compare {
		parts = append(parts, fmt.Sprintf("%s %v%d", short(c.Key), c.Target, c.GetModRevision()+c.GetCreateRevision()))
	}
	parts = append(parts, "->")
	for _, op := range t.Success {
		switch {
		case op.GetRequestTxn() != nil:
			parts = append(parts, "("+described(op.GetRequestTxn())+")")
		case op.GetRequestPut() != nil:
			parts = append(parts, "+"+short(op.GetRequestPut().Key))
		case op.GetRequestDeleteRange() != nil:
			parts = append(parts, "-"+short(op.GetRequestDeleteRange().Key))
		}
	}
	return strings.Join(parts, " ")
}

func txnOutcome(resp *pb.TxnResponse, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%v at %d", resp.Succeeded, resp.Header.Revision)
}

// answer hands the answer to the core, or loses it.
func (h *simHost) answer(lose bool) bool {
	if h.pending == nil || !h.answered && !lose {
		return false
	}
	c := h.pending
	h.pending = nil
	if lose {
		h.w.logf("%s answer lost", h.name)
		h.core.answer(c, nil, store.ErrUnavailable, h.w.now)
	} else {
		h.core.answer(c, h.resp, h.err, h.w.now)
	}
	return true
}
