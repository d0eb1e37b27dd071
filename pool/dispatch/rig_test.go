package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// rig is one dispatcher, of the instance d/i, that sees each change of etcd immediately.
type rig struct {
	testing.TB
	etcd   *storetest.Etcd
	keys   wire.Keys
	d      *Dispatcher
	follow *storetest.Follower
	now    time.Duration
}

func newRig(t testing.TB) *rig {
	r := &rig{TB: t, etcd: storetest.New(storetest.Options{}), keys: wire.Keys{Keys: store.NewKeys("/b/")}, now: time.Hour}
	lease, _, _ := r.etcd.Grant(time.Hour)
	role := r.put(store.Put(r.keys.Role(), wire.EncodeRole(wire.Role{Host: "d", Instance: "i", Kind: wire.Service}), lease))
	r.d = New(Options{Keys: r.keys.Keys, Host: "d", Instance: "i", Role: role, Lease: lease})
	r.follow = r.etcd.Follow(Watched(r.keys.Keys), 0)
	r.d.Restart(Listing{Revision: r.etcd.Revision()}, r.now)
	return r
}

// put carries operations out, and shows them to the dispatcher.
func (r *rig) put(ops ...*pb.RequestOp) int64 {
	resp, err := r.etcd.Txn(&pb.TxnRequest{Success: ops})
	if err != nil {
		r.Fatal(err)
	}
	r.show()
	return resp.Header.Revision
}

func (r *rig) show() {
	if r.d == nil {
		return
	}
	for {
		m, ok := r.follow.Next(1)
		if !ok {
			break
		}
		r.d.Events(m.Revision, m.Events, r.now)
	}
	r.read()
}

// read has the dispatcher read what it wants to know.
func (r *rig) read() {
	for names := r.d.Wants(); len(names) > 0; names = r.d.Wants() {
		for _, name := range names {
			l := r.list(r.keys.Pool(name))
			l.Pools = []string{name}
			r.d.Listed(l, r.now)
		}
	}
}

// list reads all keys with some prefixes.
func (r *rig) list(prefixes ...string) Listing {
	l := Listing{Revision: r.etcd.Revision()}
	for _, prefix := range prefixes {
		for kv := range r.etcd.All(prefix) {
			l.Pages = append(l.Pages, []*mvccpb.KeyValue{kv})
		}
	}
	return l
}

// restart opens another watch.
func (r *rig) restart() {
	r.follow = r.etcd.Follow(Watched(r.keys.Keys), 0)
	r.d.Restart(r.list(r.keys.OffersAll(), r.keys.Pending("")), r.now)
}

func (r *rig) spec(name string, limit int, paused bool) {
	s := pool.DefaultSpec()
	s.Limit, s.Paused = limit, paused
	r.put(store.Put(r.keys.Spec(name), wire.EncodeSpec(s, 0), 0))
}

// ask returns a demand of slots of some pools, as db=1 gpu=2.
func ask(index int, needs string) wire.Demand {
	d := wire.Demand{Index: index, Pools: map[string]int{}, Since: time.Unix(1, 0)}
	for _, need := range strings.Fields(needs) {
		var n int
		name, number, _ := strings.Cut(need, "=")
		_, _ = fmt.Sscan(number, &n)
		d.Pools[name] = n
		d.Pending = append(d.Pending, name)
	}
	return d
}

// demand puts demands of the instance host/i. Their claims are named HOST-NAME-INDEX.
func (r *rig) demand(host string, name int, list ...wire.Demand) {
	var ops []*pb.RequestOp
	for i := range list {
		list[i].Claim = fmt.Sprintf("%s-%d-%d", host, name, list[i].Index)
		list[i].Holder = pool.Holder{Host: host, Instance: "i"}
	}
	for of, value := range wire.EncodeDemands(list) {
		ops = append(ops, store.Put(r.key(host, name, of), value, 0), store.Put(r.keys.Pending(of), wire.EncodeEmpty(), 0))
	}
	r.put(ops...)
}

func (r *rig) key(host string, name int, of string) string {
	return r.keys.Demand(wire.DemandKey{Pool: of, Host: host, Instance: "i", Name: name})
}

// hold puts slot keys, one claim for each number.
func (r *rig) hold(host, name string, numbers ...int) {
	for _, n := range numbers {
		req := &pool.Request{ID: fmt.Sprintf("held-%s-%d", name, n), Slots: map[string]int{name: 1}, Holder: pool.Holder{Host: host, Instance: "i"}}
		puts := wire.Spell(req).Puts(map[string]slots.Held{name: {Numbers: []int{n}}}, wire.Written{Since: time.Unix(1, 0)})
		r.put(store.Put(puts[0].Key(r.keys), puts[0].Value, 0))
	}
}

// next has the dispatcher send its next transaction, and returns it; nil if there is none.
func (r *rig) next() *pb.TxnRequest {
	t, ok := r.d.Next(r.now)
	if !ok {
		return nil
	}
	resp, err := r.etcd.Txn(t)
	if err != nil {
		r.Fatal(err)
	}
	r.d.Answer(resp, nil, r.now)
	r.show()
	return t
}

// run has the dispatcher send all that it has to send now.
func (r *rig) run() {
	for range 100 {
		if r.next() == nil {
			return
		}
	}
	r.Fatal("it does not end")
}

// offered returns what is offered, as CLAIM POOL=SLOTS or CLAIM !, in the order of the claims.
func (r *rig) offered() (all []string) {
	for kv := range r.etcd.All(r.keys.OffersAll()) {
		list, err := wire.DecodeOffers(string(kv.Key), kv.Value)
		if err != nil {
			continue
		}
		key, _ := r.keys.OfferKey(string(kv.Key))
		for _, o := range list {
			s := fmt.Sprintf("%s-%d-%d", key.Host, o.Demand.Name, o.Demand.Index)
			if o.Refused {
				s += " !"
			}
			for _, name := range slices.Sorted(func(yield func(string) bool) {
				for name := range o.Take {
					if !yield(name) {
						return
					}
				}
			}) {
				h, _ := o.Take[name].Held()
				s += fmt.Sprintf(" %s=%d", name, h.Slots())
			}
			all = append(all, s)
		}
	}
	slices.Sort(all)
	return all
}

// under returns the ends of the keys below a prefix.
func (r *rig) under(prefix string) (all []string) {
	for kv := range r.etcd.All(prefix) {
		all = append(all, strings.TrimPrefix(string(kv.Key), prefix))
	}
	return all
}

// decline deletes the offers keys of a host.
func (r *rig) decline(host string) {
	r.put(store.DeleteAll(r.keys.Offers(host, "i")))
}

// commit takes all that is offered to a host, and deletes its demands that have slots then.
func (r *rig) commit(host string) {
	ops := []*pb.RequestOp{store.DeleteAll(r.keys.Offers(host, "i"))}
	for kv := range r.etcd.All(r.keys.Offers(host, "i")) {
		list, _ := wire.DecodeOffers(string(kv.Key), kv.Value)
		for _, o := range list {
			needs, taken := map[string]int{}, map[string]slots.Held{}
			for name, t := range o.Take {
				taken[name], _ = t.Held()
				needs[name] = taken[name].Slots()
			}
			req := &pool.Request{ID: fmt.Sprintf("%s-%d-%d", host, o.Demand.Name, o.Demand.Index), Slots: needs, Holder: pool.Holder{Host: host, Instance: "i"}}
			for _, put := range wire.Spell(req).Puts(taken, wire.Written{Since: time.Unix(1, 0), Demand: o.Demand}) {
				ops = append(ops, store.Put(put.Key(r.keys), put.Value, 0))
			}
		}
	}
	r.put(ops...)
}

func (r *rig) want(what string, got []string, want ...string) {
	r.Helper()
	if !slices.Equal(got, want) {
		r.Errorf("%s: %q, want %q", what, got, want)
	}
}
