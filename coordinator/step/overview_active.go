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
}

// activeReads is how many records are read at a time; etcd takes 128 operations.
const activeReads = 100

// Active counts what is executed now, by host and instance: what is seen to live, and
// whose record says who has it. Records that can't be read count for nobody.
func (s Store) Active(ctx context.Context) ([]Active, error) {
	const what = "it could not be read who executes what"
	seen, err := store.ReadAll(ctx, s.Backend, s.Keys.ActiveAll())
	if err != nil {
		return nil, store.Problem(what, err)
	}
	counts := map[[2]string]*Active{}
	for some := range slices.Chunk(seen.KVs, activeReads) {
		var reads []*pb.RequestOp
		var hosts []string
		for _, kv := range some {
			if host, key, ok := s.executed(kv); ok {
				reads, hosts = append(reads, store.Get(key)), append(hosts, host)
			}
		}
		if len(reads) == 0 {
			continue
		}
		resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
		if err != nil {
			return nil, store.Problem(what, err)
		}
		for n, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				s.count(counts, hosts[n], kv)
			}
		}
	}
	all := make([]Active, 0, len(counts))
	for _, a := range counts {
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b Active) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, nil
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
func (s Store) count(counts map[[2]string]*Active, host string, kv *mvccpb.KeyValue) {
	var by *run.Executor
	steps, runs := 0, 0
	if i, err := Decode(s.Keys, kv); err == nil {
		if i.Status == Running {
			by, steps = i.Executor, 1
		}
	} else if r, err := run.Decode(s.Keys, kv); err == nil && r.Status == run.Running {
		by, runs = r.Executor, 1
	}
	if by == nil || by.Host != host {
		return
	}
	name := [2]string{by.Host, by.Instance}
	if counts[name] == nil {
		counts[name] = &Active{Host: by.Host, Instance: by.Instance}
	}
	counts[name].Steps += steps
	counts[name].Runs += runs
}
