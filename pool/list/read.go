package list

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"

	"github.com/berthhq/berth/internal/store"
)

const (
	// maxReads is how often all pools are read if etcd compacts the revision meanwhile at which they are.
	maxReads = 3
	// maxRelated is how many pools are read one by one along with a pool; of more, all are.
	maxRelated = 8
	// maxKeys is how many keys are read one by one: etcd takes 128 operations in a transaction.
	maxKeys = 100
	// keysTimeout bounds that, like a page.
	keysTimeout = 10 * time.Second
)

// Read reads all pools at one revision, in pages of which one is in memory: the demands of all instances, who dispatches, offers
// and ids. What etcd does not permit to be read of offers and ids is left out.
func Read(ctx context.Context, b store.Backend, keys store.Keys) (s *State, err error) {
	for range maxReads {
		r := reading{New(keys, 0), b}
		if err = r.all(ctx); !errors.Is(err, store.ErrCompacted) {
			return r.State, err
		}
	}
	return nil, err
}

// ReadPool reads a pool at one revision, and what its claims and waiters depend on: the pools that they are in too, and the
// demands that are before its waiters. If that is in many pools, it reads all.
func ReadPool(ctx context.Context, b store.Backend, keys store.Keys, name string) (*State, error) {
	r := reading{newOf(keys, 0, name), b}
	err := r.pool(ctx, name)
	if errors.Is(err, errTooMany) || errors.Is(err, store.ErrCompacted) {
		return Read(ctx, b, keys)
	}
	return r.State, err
}

// reading fills a state from etcd. Its revision is 0 until it is known.
type reading struct {
	*State
	from store.Backend
}

// all reads all pools.
func (r reading) all(ctx context.Context) error {
	revision, err := r.read(ctx, r.keys.Pools())
	if err != nil {
		return err
	}
	r.Show(revision)
	return r.readRest(ctx)
}

// pool reads a pool with what it depends on.
func (r reading) pool(ctx context.Context, name string) error {
	revision, err := r.read(ctx, r.keys.Pool(name))
	if err != nil {
		return err
	}
	r.Show(revision)
	if err := r.readRelated(ctx, name); err != nil {
		return err
	}
	return r.readRest(ctx)
}

// read reads the keys with a prefix, and returns the revision.
func (r reading) read(ctx context.Context, prefix string) (int64, error) {
	return store.Pages{Prefix: prefix, Revision: r.revision}.Each(ctx, r.from, func(p store.Page) bool {
		for _, kv := range p.KVs {
			r.Put(kv)
		}
		return true
	})
}

// readRest reads what belongs to no pool, at the revision of the state.
func (r reading) readRest(ctx context.Context) error {
	parts := []struct {
		prefix   string
		optional bool
	}{
		{r.keys.Role(), false}, {r.keys.OffersAll(), true}, {r.keys.ID(""), true},
	}
	read := make([]store.Snapshot, len(parts))
	g, ctx := errgroup.WithContext(ctx)
	for i, part := range parts {
		g.Go(func() (err error) {
			read[i], err = store.ReadAt(ctx, r.from, part.prefix, r.revision)
			if part.optional && errors.Is(err, store.ErrDenied) {
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, part := range read {
		for _, kv := range part.KVs {
			r.Put(kv)
		}
	}
	return nil
}

// errTooMany says that a pool is not to be read without all others.
var errTooMany = errors.New("too many pools")

// readRelated reads what a pool depends on that was read.
func (r reading) readRelated(ctx context.Context, name string) error {
	for range 2 { // demands of several pools are known when their first pool was read
		for _, other := range r.related(name) {
			if len(r.only) > maxRelated {
				return errTooMany
			}
			if _, err := r.read(ctx, r.keys.Pool(other)); err != nil {
				return err
			}
			r.include(other)
		}
	}
	for i, first := range r.firsts() {
		if i >= maxRelated {
			return errTooMany
		}
		if _, err := r.read(ctx, r.keys.DemandsAll(first)); err != nil {
			return err
		}
	}
	return r.readMains(ctx)
}

// related returns the pools that were not read which the main keys of a pool's claims, and its demands, are in.
func (r reading) related(name string) []string {
	names := map[string]bool{}
	if p := r.pools[name]; p != nil {
		for _, is := range p.slots {
			names[is.claim.main.Pool] = true
		}
	}
	for _, d := range r.demands {
		if d.Pool != name {
			continue
		}
		if d.First != "" {
			names[d.First] = true
			d = r.demands[d.In(d.First)]
		}
		if d != nil && len(d.List) > 0 {
			for other := range d.List[0].Pools {
				names[other] = true
			}
		}
	}
	return r.unread(names)
}

// firsts returns the pools that were not read which have the values of demands that were.
func (r reading) firsts() []string {
	names := map[string]bool{}
	for _, d := range r.demands {
		if d.First != "" {
			names[d.First] = true
		}
	}
	return r.unread(names)
}

// readMains reads the main keys of some claims that were read without, so that a reason can name them.
func (r reading) readMains(ctx context.Context) error {
	var keys []string
	for name, c := range r.claims {
		if c.of == nil && !r.knows(name.main.Pool) {
			keys = append(keys, name.main.Key(r.keys))
		}
	}
	return r.readKeys(ctx, keys)
}

// readKeys reads up to [maxKeys] keys one by one.
func (r reading) readKeys(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	t := &pb.TxnRequest{}
	for _, key := range keys[:min(len(keys), maxKeys)] {
		get := store.Get(key)
		get.GetRequestRange().Revision = r.revision
		t.Success = append(t.Success, get)
	}
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	resp, err := r.from.Txn(ctx, t)
	if err != nil {
		return err
	}
	for _, one := range resp.Responses {
		for _, kv := range one.GetResponseRange().Kvs {
			r.Put(kv)
		}
	}
	return nil
}
