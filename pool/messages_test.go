package pool

import (
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

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
	w.sending, w.batch = m.from, m.call.batch
	resp, err := (*pb.TxnResponse)(nil), store.ErrDenied
	if (!w.denying || w.rnd.IntN(3) > 0) && !w.foreign(m.from, m.txn) {
		resp, err = w.etcd.Txn(m.txn)
	}
	w.sending, w.batch = nil, nil
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

// deliver hands the host up to n revisions of one of its watches, or progress, or the answer to
// a read. It reports whether there is more.
func (h *simHost) deliver(n int) bool {
	h.core.reached(0, h.w.now)
	if h.w.fresh {
		h.core.samples[0] = sample{0, h.w.now}
	}
	h.core.revokedRev = h.w.etcd.Revision() // revocations are delivered at once
	if h.core.refollow || h.w.rnd.IntN(8) == 0 {
		h.core.follow(h.w.now)
	}
	h.feeds.follow(h.w.now)
	if reads := len(h.feeds.reads); reads > 0 && (n >= 100 || h.w.rnd.IntN(2) == 0) {
		return h.feeds.finishRead(h.w.rnd.IntN(reads), h.w.now)
	}
	all := h.feeds.feeds()
	if n >= 100 {
		busy := false
		for _, f := range all {
			busy = h.feeds.deliver(f, n, h.w.now) || busy
		}
		for h.feeds.poll(h.w.now); h.feeds.finishRead(0, h.w.now); {
		}
		return busy
	}
	if h.w.rnd.IntN(6) == 0 || len(all) == 0 {
		h.feeds.poll(h.w.now)
		return false
	}
	return h.feeds.deliver(all[h.w.rnd.IntN(len(all))], n, h.w.now)
}

// sees returns what the host learns of an event, nil if that is nothing.
func (h *simHost) sees(ev *mvccpb.Event) *mvccpb.Event {
	if k, err := h.w.keys.ParsePoolKey(string(ev.Kv.Key)); err == nil && h.w.hide != nil {
		return h.w.hide(h, k, ev)
	}
	return ev
}
