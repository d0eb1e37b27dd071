package pool

import (
	"context"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Reader is the state of all pools at one revision, read once. It is what an
// operator needs, without an instance of its own.
type Reader struct {
	core     *core
	snapshot store.Snapshot
}

// Read reads all pools.
func Read(ctx context.Context, b store.Backend, keys store.Keys) (*Reader, error) {
	s, err := store.ReadAll(ctx, b, keys.Pools())
	if err != nil {
		return nil, err
	}
	return newReader(s, keys), nil
}

func newReader(s store.Snapshot, keys store.Keys) *Reader {
	v := newView(keys)
	v.load(s)
	return &Reader{core: &core{view: v, entries: map[string]*entry{}}, snapshot: s}
}

// Revision is the one at which everything was read.
func (r *Reader) Revision() int64 { return r.snapshot.Revision }

// Pools returns all pools by name.
func (r *Reader) Pools() []Status { return r.core.view.statuses() }

// Pool returns one pool. An unknown one is a PoolNotFound problem.
func (r *Reader) Pool(name string) (Detail, error) { return found(r.core.detail(name), name) }

// Claims returns all claims that hold slots, first come first, and all that
// wait, in line.
func (r *Reader) Claims() ([]HolderStatus, []WaiterStatus) {
	return r.core.view.allHolders(), r.core.waiters(nil)
}

// Why tells about one claim, named by its id, or by HOST/INSTANCE/ID. An unknown one is
// a ClaimNotFound problem.
func (r *Reader) Why(id string) (Why, error) { return known(r.core.why(id), id) }

// detail returns one pool, nil if there is none.
func (c *core) detail(name string) *Detail {
	p := c.view.pools[name]
	if p == nil || !p.exists() {
		return nil
	}
	return &Detail{Status: c.view.status(p), Holders: c.view.holders(p), Waiters: c.waiters(p)}
}

func found(d *Detail, name string) (Detail, error) {
	if d == nil {
		return Detail{}, noPool(name)
	}
	return *d, nil
}

func known(w *Why, id string) (Why, error) {
	if w == nil {
		return Why{}, problem.New(problem.ClaimNotFound, "no claim %q is held or waits", id)
	}
	return *w, nil
}
