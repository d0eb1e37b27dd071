package pool

import "context"

// freshKey is the key of [Fresh].
type freshKey struct{}

// Fresh returns a context for reading what others have written up to now, instead of up to a
// second ago: for a decision, or a record.
func Fresh(ctx context.Context) context.Context { return context.WithValue(ctx, freshKey{}, true) }

// IsFresh reports whether a context is of [Fresh].
func IsFresh(ctx context.Context) bool { return ctx.Value(freshKey{}) != nil }
