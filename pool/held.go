package pool

import "context"

// Held returns the claims that this instance holds, by id; also those whose
// trust has ended and whose holder has not released them yet.
func (e *Engine) Held(ctx context.Context) ([]*Claim, error) {
	return query(ctx, e, func(c *core) []*Claim {
		var all []*Claim
		for _, en := range c.sorted() {
			if en.state == held {
				all = append(all, en.claim)
			}
		}
		return all
	})
}

// Lookup returns a claim that this instance holds, nil if it holds none of that
// id.
func (e *Engine) Lookup(ctx context.Context, id string) (*Claim, error) {
	return query(ctx, e, func(c *core) *Claim {
		if en := c.entries[id]; en != nil && en.state == held {
			return en.claim
		}
		return nil
	})
}

// Unfinished returns how many claims of this instance have slots, or may have
// some: those that are being granted or released included.
func (e *Engine) Unfinished(ctx context.Context) (int, error) {
	return query(ctx, e, func(c *core) (n int) {
		for _, en := range c.entries {
			if en.state != queued {
				n++
			}
		}
		return n
	})
}
