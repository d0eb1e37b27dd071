package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthhq/berth/internal/store"
)

var _ store.Compacter = (*Backend)(nil)

// OpCompact is [store.Compacter].
const OpCompact Op = "compact"

// Compact forgets what was before a revision.
func (b *Backend) Compact(ctx context.Context, rev int64) error {
	_, err := call(ctx, b, Call{Op: OpCompact}, func(e *Etcd, _ Call) (struct{}, error) {
		err := e.Compact(rev)
		if errors.Is(err, errCompactAgain) {
			err = nil
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

// OpUsed is that of the size of the database.
const OpUsed Op = "used"

// Used returns what [Etcd.SetUsed] has set.
func (b *Backend) Used(ctx context.Context) (int64, error) {
	return call(ctx, b, Call{Op: OpUsed}, func(e *Etcd, _ Call) (int64, error) { return e.used, nil })
}

// SetUsed sets how many bytes the database uses.
func (e *Etcd) SetUsed(bytes int64) { e.used = bytes }
