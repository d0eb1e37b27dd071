package instance

import (
	"context"
	"errors"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

// Connect connects to etcd for an operator, without an instance: to read it needs no permission to write. It uses the options for
// etcd and for authentication only, and returns the connection, which is to be closed, with the spelling of keys.
func Connect(ctx context.Context, o Options) (*store.Client, store.Keys, error) {
	if err := o.fill(); err != nil {
		return nil, store.Keys{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	o.Registerer = nil // an operator's commands export no metrics
	backend, err := dial(ctx, o)
	if err != nil {
		return nil, store.Keys{}, err
	}
	keys := store.NewKeys(o.Prefix)
	if err := (registry.Layout{Backend: backend, Keys: keys}).Check(ctx); err != nil {
		return nil, store.Keys{}, errors.Join(err, backend.Close())
	}
	return backend, keys, nil
}
