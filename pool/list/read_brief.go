package list

import (
	"context"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/slots"
)

const (
	// briefSlots is how many slot keys of a pool are read for a reason, which names the oldest holders of these. The others are
	// counted.
	briefSlots = 500
	// briefDemands is after how many demands of a pool no further page is read for a reason. With that page they are some 10 MB
	// at most.
	briefDemands = 10_000
	// briefPage is how many keys of demands the first page has, each of which has up to 32 KB.
	briefPage = 64
)

// readBrief reads of some pools what the reason of a claim needs that waits for them, and no more of a pool than is bounded.
func readBrief(ctx context.Context, b store.Backend, keys store.Keys, names []string) (*State, error) {
	r := reading{newOf(keys, 0, names...), b}
	for _, name := range names {
		if err := r.briefPool(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := r.readValues(ctx); err != nil {
		return nil, err
	}
	if err := r.readMains(ctx); err != nil {
		return nil, err
	}
	return r.State, r.readRest(ctx)
}

// briefPool reads the spec of a pool, how many slots are held, some of them, and its demands as far as they are bounded.
func (r reading) briefPool(ctx context.Context, name string) error {
	revision, err := r.read(ctx, r.keys.Spec(name))
	if err != nil {
		return err
	}
	r.Show(revision)
	if err := r.briefSlots(ctx, name); err != nil {
		return err
	}
	if _, err := r.read(ctx, r.keys.Blocks(name)); err != nil {
		return err
	}
	pages := store.Pages{Prefix: r.keys.DemandsAll(name), Revision: revision, First: briefPage}
	_, err = pages.Each(ctx, r.from, func(p store.Page) bool {
		for _, kv := range p.KVs {
			r.Put(kv)
		}
		return Part{r.State}.Demands(name) < briefDemands || !r.stop(p.More)
	})
	return err
}

// briefSlots reads some slot keys of a pool, and counts the others.
func (r reading) briefSlots(ctx context.Context, name string) error {
	from, end := r.keys.Numbers(name, slots.Run{To: slots.MaxNumbersOfPool})
	pages := store.Pages{From: from, End: []byte(end), Revision: r.revision, First: briefSlots}
	_, err := pages.Each(ctx, r.from, func(p store.Page) bool {
		for _, kv := range p.KVs {
			r.Put(kv)
		}
		r.State.pool(name).unread(int(p.Left) - len(p.KVs))
		return false
	})
	return err
}

// readValues reads the keys that list the demands which were read in another of their pools.
func (r reading) readValues(ctx context.Context) error {
	var keys []string
	for _, d := range r.demands {
		if d.First != "" && !r.knows(d.First) {
			keys = append(keys, r.keys.Demand(d.In(d.First)))
		}
	}
	r.stop(len(keys) > maxKeys)
	return r.readKeys(ctx, keys)
}
