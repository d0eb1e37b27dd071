package step

import (
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
)

// Active is how much an instance of berth executes now.
type Active struct {
	Host, Instance string
	// Steps are step instances, and Runs are runs that have an executor of their own.
	Steps, Runs int
	// Leases are those that it all hangs on.
	Leases []store.LeaseID
}

// ActiveByName finds what an instance of berth executes by its host and its name.
func ActiveByName(active []Active) map[[2]string]Active {
	counts := make(map[[2]string]Active, len(active))
	for _, a := range active {
		counts[[2]string{a.Host, a.Instance}] = a
	}
	return counts
}

// activeReads is how many records are read at a time; etcd takes 128 operations.
const activeReads = 100

// Active counts what is executed now, by host and instance: what is seen to live, and
// whose record says who has it. Records that can't be read count for nobody.
func (s Store) Active(ctx context.Context) ([]Active, error) {
	counts := map[[2]string]*Active{}
	err := s.eachExecuted(ctx, s.Keys.ActiveAll(), func(seen executing, kv *mvccpb.KeyValue) { s.count(counts, seen, kv) })
	if err != nil {
		return nil, err
	}
	all := make([]Active, 0, len(counts))
	for _, a := range counts {
		slices.Sort(a.Leases)
		a.Leases = slices.Compact(a.Leases)
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b Active) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, nil
}

// Executed lists the step instances that are executed now, on one host or on all if that
// is empty, by their executor and then as long as they have been: see [Store.Active].
func (s Store) Executed(ctx context.Context, host string) ([]*Instance, error) {
	prefix := s.Keys.ActiveAll()
	if host != "" {
		prefix = s.Keys.Active(host)
	}
	var all []*Instance
	err := s.eachExecuted(ctx, prefix, func(seen executing, kv *mvccpb.KeyValue) {
		i, err := Decode(s.Keys, kv)
		if err == nil && i.Status == Running && i.Executor.Host == seen.host {
			all = append(all, i)
		}
	})
	slices.SortFunc(all, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.Executor.Host, b.Executor.Host), cmp.Compare(a.Executor.Instance, b.Executor.Instance),
			a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.String(), b.String()))
	})
	return all, err
}

// eachExecuted hands on the records of what executors have that are seen to live, under a
// prefix of their keys.
func (s Store) eachExecuted(ctx context.Context, prefix string, take func(executing, *mvccpb.KeyValue)) error {
	const what = "it could not be read who executes what"
	found, err := store.ReadAll(ctx, s.Backend, prefix)
	if err != nil {
		return store.Problem(what, err)
	}
	for some := range slices.Chunk(found.KVs, activeReads) {
		var reads []*pb.RequestOp
		var seen []executing
		for _, kv := range some {
			if host, key, ok := s.executed(kv); ok {
				reads, seen = append(reads, store.Get(key)), append(seen, executing{host, store.LeaseID(kv.Lease)})
			}
		}
		if len(reads) == 0 {
			continue
		}
		resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
		if err != nil {
			return store.Problem(what, err)
		}
		for n, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				take(seen[n], kv)
			}
		}
	}
	return nil
}

// executing is where an executor is seen, and on what lease.
type executing struct {
	host  string
	lease store.LeaseID
}

// executed returns the key of the record of what an executor has that is seen to live.
func (s Store) executed(kv *mvccpb.KeyValue) (host, key string, ok bool) {
	host, id, err := s.Keys.ParseActive(string(kv.Key))
	switch {
	case err != nil:
		return "", "", false
	case id.Step == "":
		return host, s.Keys.Run(id.Run), true
	}
	return host, s.Keys.Step(id), true
}

// count counts a record for who has it, if it is running on the host where its
// executor is seen: it may have moved on meanwhile.
func (s Store) count(counts map[[2]string]*Active, seen executing, kv *mvccpb.KeyValue) {
	var by *run.Executor
	steps, runs := 0, 0
	if i, err := Decode(s.Keys, kv); err == nil {
		if i.Status == Running {
			by, steps = i.Executor, 1
		}
	} else if r, err := run.Decode(s.Keys, kv); err == nil && r.Status == run.Running {
		by, runs = r.Executor, 1
	}
	if by == nil || by.Host != seen.host {
		return
	}
	name := [2]string{by.Host, by.Instance}
	if counts[name] == nil {
		counts[name] = &Active{Host: by.Host, Instance: by.Instance}
	}
	a := counts[name]
	a.Steps, a.Runs = a.Steps+steps, a.Runs+runs
	if seen.lease != 0 {
		a.Leases = append(a.Leases, seen.lease)
	}
}
