package pool

import (
	"iter"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
)

// TestEveryCompareIsNeeded drops one kind of compare from every transaction on
// its way, and expects the checks to notice.
func TestEveryCompareIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("it can take some thousand schedules to notice")
	}
	keys := store.NewKeys("/b/")
	isSlots := func(c *pb.Compare) bool { return len(c.RangeEnd) > 0 && strings.Contains(string(c.Key), "/slots/") }
	for name, drop := range map[string]func(*pb.Compare) bool{
		"the group": func(c *pb.Compare) bool { return isSlots(c) && !strings.HasSuffix(string(c.Key), "/slots/") },
		"the whole pool": func(c *pb.Compare) bool {
			return isSlots(c) && strings.HasSuffix(string(c.Key), "/slots/")
		},
		"the spec":       func(c *pb.Compare) bool { return strings.HasSuffix(string(c.Key), "/spec") },
		"the fence":      func(c *pb.Compare) bool { return len(c.RangeEnd) == 0 && strings.Contains(string(c.Key), "/slots/") },
		"the dispatcher": func(c *pb.Compare) bool { return c.Target == pb.Compare_LEASE },
		"queued":         func(c *pb.Compare) bool { return strings.HasSuffix(string(c.Key), "/queued") },
		"the waiter": func(c *pb.Compare) bool {
			return len(c.RangeEnd) == 0 && strings.Contains(string(c.Key), "/waiters/")
		},
		"no later waiter": func(c *pb.Compare) bool {
			return len(c.RangeEnd) > 0 && strings.Contains(string(c.Key), "/waiters/")
		},
		"no dispatcher": func(c *pb.Compare) bool {
			return c.Target == pb.Compare_MOD && strings.HasSuffix(string(c.Key), "/dispatcher")
		},
		// The compares of notices follow from others: a waiter was written after the notice was
		// put, so a view that shows it shows the notice, too, and slots that were confirmed have
		// another revision.
		"the guard": func(c *pb.Compare) bool { return strings.HasPrefix(string(c.Key), keys.Prefix()+"guards/") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range candidates(name) {
				if w := run(*firstSeed+uint64(i), func(txn *pb.TxnRequest) { dropCompares(txn, drop) }); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", i+1, w.errs[0])
					return
				}
			}
			t.Errorf("nothing noticed that the compares of %s are missing", name)
		})
	}
}

func dropCompares(t *pb.TxnRequest, drop func(*pb.Compare) bool) {
	t.Compare = slices.DeleteFunc(t.Compare, drop)
	for _, op := range slices.Concat(t.Success, t.Failure) {
		if nested := op.GetRequestTxn(); nested != nil {
			dropCompares(nested, drop)
		}
	}
}

// rules are rules of dispatchers that are no compares, each with how to break it: by what is
// written, or by what a host learns. Two have no place here: a dispatcher that does not step down
// is deleted by others as one that is gone, and one that does not put its key again is replaced.
func rules(keys store.Keys) map[string]func(*world) {
	kind := func(key []byte) store.PoolKeyKind {
		k, err := keys.ParsePoolKey(string(key))
		if err != nil {
			return 0
		}
		return k.Kind
	}
	puts := func(t *pb.TxnRequest, of store.PoolKeyKind) bool {
		return slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil && kind(op.GetRequestPut().Key) == of })
	}
	deletes := func(t *pb.TxnRequest, of store.PoolKeyKind) bool {
		return slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool {
			return op.GetRequestDeleteRange() != nil && kind(op.GetRequestDeleteRange().Key) == of
		})
	}
	compares := func(t *pb.TxnRequest, of store.PoolKeyKind, target pb.Compare_CompareTarget) bool {
		return slices.ContainsFunc(t.Compare, func(c *pb.Compare) bool { return len(c.RangeEnd) == 0 && kind(c.Key) == of && c.Target == target })
	}
	// without has the nested transactions fail that are of a kind.
	without := func(is func(*pb.TxnRequest) bool) func(*world) {
		return func(w *world) {
			w.mutate = func(t *pb.TxnRequest) {
				for _, op := range t.Success {
					if nested := op.GetRequestTxn(); nested != nil && is(nested) {
						nested.Compare = append(nested.Compare, store.CreateEquals("/b/never", 1))
					}
				}
			}
		}
	}
	// aside has the deletes of a kind delete something else.
	aside := func(of store.PoolKeyKind, in func(*pb.TxnRequest) bool) func(*world) {
		return func(w *world) {
			var change func(t *pb.TxnRequest)
			change = func(t *pb.TxnRequest) {
				for _, op := range t.Success {
					if nested := op.GetRequestTxn(); nested != nil {
						change(nested)
					}
					if d := op.GetRequestDeleteRange(); d != nil && kind(d.Key) == of && in(t) {
						d.Key = append([]byte("/b/aside"), d.Key...)
					}
				}
			}
			w.mutate = change
		}
	}
	always := func(*pb.TxnRequest) bool { return true }
	hide := func(f func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event) func(*world) {
		return func(w *world) { w.hide = f }
	}
	return map[string]func(*world){
		"an owner heeds notices of claims that do not wait": hide(func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if k.Kind == store.NoticeKey && k.Host == h.name && ev.Type == mvccpb.Event_PUT && h.core.entries[k.Claim] == nil {
				return nil
			}
			return ev
		}),
		"the next life heeds the notices of the one before": hide(func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if k.Kind == store.NoticeKey && k.Host == h.name && h.life > 1 && h.core.phase != normal {
				return nil
			}
			return ev
		}),
		"the next life deletes the waiters of the one before": hide(func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if o, _ := ParseOrder(k.Order); k.Kind == store.WaiterKey && o.By == hash(h.name+"/i") && h.life > 1 && h.core.entries[o.Claim] == nil {
				return nil
			}
			return ev
		}),
		"notices that are not acknowledged are counted": hide(func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if k.Kind == store.NoticeKey && k.Host != h.name && ev.Type == mvccpb.Event_PUT && !strings.Contains(string(ev.Kv.Value), `"conditional":true`) {
				return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: ev.Kv.Key, ModRevision: ev.Kv.ModRevision}}
			}
			return ev
		}),
		"an owner confirms what it is to confirm": hide(func(h *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if k.Kind != store.NoticeKey || k.Host != h.name || ev.Type != mvccpb.Event_PUT {
				return ev
			}
			kv := ev.Kv
			return &mvccpb.Event{Type: ev.Type, Kv: &mvccpb.KeyValue{
				Key: kv.Key, Value: []byte(strings.Replace(string(kv.Value), `,"conditional":true`, "", 1)),
				CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version, Lease: kv.Lease,
			}}
		}),
		"a grant that is not confirmed is taken back": without(func(t *pb.TxnRequest) bool {
			return compares(t, store.NoticeKey, pb.Compare_MOD) && deletes(t, store.SlotKey)
		}),
		"a silent dispatcher is replaced": without(func(t *pb.TxnRequest) bool {
			return slices.ContainsFunc(t.Compare, func(c *pb.Compare) bool {
				return kind(c.Key) == store.DispatcherKey && c.Target == pb.Compare_MOD && c.GetModRevision() > 0
			})
		}),
		"who waits takes the role of a dispatcher": without(func(t *pb.TxnRequest) bool {
			return compares(t, store.DispatcherKey, pb.Compare_MOD) && puts(t, store.DispatcherKey)
		}),
		"what is left of a queue is deleted": without(func(t *pb.TxnRequest) bool {
			return compares(t, store.DispatcherKey, pb.Compare_MOD) && deletes(t, store.DispatcherKey)
		}),
		"a waiter has others wait": func(w *world) {
			w.mutate = func(t *pb.TxnRequest) {
				for _, op := range t.Success {
					if p := op.GetRequestPut(); p != nil && kind(p.Key) == store.QueuedKey {
						p.Key = append([]byte("/b/aside"), p.Key...)
					}
				}
			}
		},
		"what is read is as of when the read began": func(w *world) {
			w.redates = true
			for _, h := range w.hosts {
				h.feeds.redates = true
			}
		},
		"a host is notified of a release by force": func(w *world) { w.quiet = true },
		"regrants are kept in the journal": func(w *world) {
			w.deaf = true
			for _, h := range w.hosts {
				h.journal.deaf = true
			}
		},
		"a fence shows what was done to kept slots": func(w *world) {
			w.mutate = func(t *pb.TxnRequest) {
				for _, op := range t.Success {
					if get := op.GetRequestRange(); get != nil && strings.HasPrefix(string(get.Key), "/b/active/") {
						get.Key = append([]byte("/b/aside"), get.Key...)
					}
				}
			}
		},
		"the next life reads the journal":               func(w *world) { w.forgetful = true },
		"regrants depend on what etcd has shown lately": func(w *world) { w.fresh = true },
		"remote holders get no retained slots":          func(w *world) { w.near = true },
		"fencing tokens count regrants":                 func(w *world) { w.reused = true },
		"waiters of other hosts have slots recalled": hide(func(_ *simHost, k store.PoolKey, ev *mvccpb.Event) *mvccpb.Event {
			if k.Kind == store.RecallKey && ev.Type == mvccpb.Event_PUT {
				return nil
			}
			return ev
		}),
		"a grant is acknowledged":           aside(store.NoticeKey, always),
		"a waiter goes with its grant":      aside(store.WaiterKey, func(t *pb.TxnRequest) bool { return puts(t, store.NoticeKey) }),
		"a waiter goes when its claim does": aside(store.WaiterKey, func(t *pb.TxnRequest) bool { return !puts(t, store.SlotKey) }),
		"a grant to another comes with its notice": func(w *world) {
			w.mutate = func(t *pb.TxnRequest) {
				for _, op := range t.Success {
					if p := op.GetRequestPut(); p != nil && kind(p.Key) == store.NoticeKey {
						p.Key, p.Lease = append([]byte("/b/aside"), p.Key...), 0
					}
				}
			}
		},
	}
}

// TestEveryRuleIsNeeded breaks one rule of dispatchers, and expects the checks to notice.
func TestEveryRuleIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("it can take some thousand schedules to notice")
	}
	for name, spoil := range rules(store.NewKeys("/b/")) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range candidates(name) {
				w := newWorld(*firstSeed+uint64(i), 3)
				spoil(w)
				if w.run(); len(w.errs) > 0 {
					t.Logf("caught by schedule %d: %s", i+1, w.errs[0])
					return
				}
			}
			t.Errorf("nothing noticed that no longer %s", name)
		})
	}
}

// noticedBy are the numbers of the schedules that noticed rare faults the last time.
var noticedBy = map[string]int{
	"the next life heeds the notices of the one before": 6899,
	"the guard": 3333,
	"a fence shows what was done to kept slots":     687,
	"regrants depend on what etcd has shown lately": 347,
	"waiters of other hosts have slots recalled":    334,
	"remote holders get no retained slots":          151,
	"what is left of a queue is deleted":            149,
}

// candidates yields the numbers of the schedules to run for a fault: the one that noticed it last, and
// then all from the first on. A change of the simulation changes what a schedule does.
func candidates(fault string) iter.Seq[int] {
	return func(yield func(int) bool) {
		if i, ok := noticedBy[fault]; ok && !yield(i) {
			return
		}
		for i := range 50 * *schedules {
			if !yield(i) {
				return
			}
		}
	}
}
