package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// Source is what [PoolOperator] reads and changes.
type Source interface {
	Pool(ctx context.Context, name string) (pool.Detail, error)
	Why(ctx context.Context, claim string) (pool.Why, error)
	SetPool(ctx context.Context, name string, change pool.Change) (pool.Put, error)
	ChangePool(ctx context.Context, name string, change pool.Change) (pool.Put, error)
	DeletePool(ctx context.Context, name string, condition store.Condition) error
	Revoke(ctx context.Context, claim string, force bool, may ...pool.May) (pool.Revocation, error)
}

// PoolOperator carries out the verbs of pools and claims for one caller. Each verb checks what it
// is given, acts, and leaves an [Action].
type PoolOperator struct {
	Log    Log
	By     Caller
	Source Source
	// If is what the revision of that which a verb sets, changes or deletes must satisfy.
	If store.Condition
	// May, if not nil, decides whether the caller may revoke a claim. By default its owner may,
	// and who has the role operate for all of its pools.
	May pool.May
}

// Act carries out a verb, and records it.
func (p PoolOperator) Act(ctx context.Context, verb, object, detail string, do func(context.Context) (Effect, error)) error {
	return p.Log.Do(ctx, p.By, verb, object, detail, do)
}

// SetPool creates a pool, or changes what the change names of it.
func (p PoolOperator) SetPool(ctx context.Context, name string, ch pool.Change) (pool.Put, error) {
	return p.change(ctx, SetPool, name, ch, p.Source.SetPool)
}

// ChangePool changes what the change names of a pool that exists.
func (p PoolOperator) ChangePool(ctx context.Context, name string, ch pool.Change) (pool.Put, error) {
	return p.change(ctx, SetPool, name, ch, p.Source.ChangePool)
}

// PausePool has a pool grant nothing, or ends that.
func (p PoolOperator) PausePool(ctx context.Context, name string, paused bool) (pool.Put, error) {
	verb := PausePool
	if !paused {
		verb = ResumePool
	}
	return p.change(ctx, verb, name, pool.Change{Paused: &paused}, p.Source.ChangePool)
}

// MayOperate refuses a caller that may not operate a pool, and what is no name of one.
func (p PoolOperator) MayOperate(name string) error {
	if err := p.By.Identity.Allow(access.Operate, name); err != nil {
		return err
	}
	return pool.ValidateName(name)
}

// change sets or changes a pool. It puts into words only what is valid.
func (p PoolOperator) change(ctx context.Context, verb, name string, ch pool.Change, do func(context.Context, string, pool.Change) (pool.Put, error)) (put pool.Put, err error) {
	if err := p.MayOperate(name); err != nil {
		return put, err
	}
	if err := ch.Validate(); err != nil {
		return put, err
	}
	detail := ""
	if verb == SetPool {
		detail = changeText(ch)
	}
	ch.If = p.If
	err = p.Act(ctx, verb, name, detail, func(ctx context.Context) (Effect, error) {
		before, err := p.Source.Pool(pool.Fresh(ctx), name)
		if err != nil && problem.CodeOf(err) != problem.PoolNotFound {
			return Effect{}, err
		}
		e := Effect{Before: "no such pool"}
		if err == nil && !before.Deleted {
			e.Before = SpecText(before.Spec)
		}
		put, err = do(ctx, name, ch)
		e.After = SpecText(put.Spec)
		return e, err
	})
	return put, err
}

// DeletePool deletes a pool. Its holders keep their slots until they release them; its
// waiters are refused.
func (p PoolOperator) DeletePool(ctx context.Context, name string) error {
	if err := p.MayOperate(name); err != nil {
		return err
	}
	return p.Act(ctx, DeletePool, name, "", func(ctx context.Context) (Effect, error) {
		before, err := p.Source.Pool(pool.Fresh(ctx), name)
		e := Effect{After: "deleted"}
		if err == nil {
			e.Before = SpecText(before.Spec)
			e.Result = fmt.Sprintf("%s held, %s waiting", text.Count(before.Claimed, "slot"), text.Count(before.Waiting, "claim"))
		} else if problem.CodeOf(err) != problem.PoolNotFound { // the source may not know a new pool yet
			return e, err
		}
		return e, p.Source.DeletePool(ctx, name, p.If)
	})
}

// RevokeClaim revokes a claim, named by its id, or by HOST/INSTANCE/ID. Force frees its
// slots at once, although the holder may still run.
func (p PoolOperator) RevokeClaim(ctx context.Context, claim string, force bool) (done pool.Revocation, err error) {
	if err := pool.ValidateClaim(claim); err != nil {
		return done, err
	}
	detail := ""
	if force {
		detail = "by force"
	}
	w, unknown := p.Source.Why(pool.Fresh(ctx), claim)
	if err := p.MayRevoke(w, unknown); err != nil {
		return done, err
	}
	err = p.Act(ctx, RevokeClaim, claim, detail, func(ctx context.Context) (Effect, error) {
		var e Effect
		if unknown == nil && w.Held != nil {
			e.Before = fmt.Sprintf("held by %s/%s, fencing token %d: %s", w.Held.Host, w.Held.Instance, w.Held.Fence, slotsText(w.Held.Pools))
		}
		if done, err = p.Source.Revoke(ctx, claim, force, p.MayRevokeHeld); err != nil {
			return e, err
		}
		if e.After = "its host was asked to stop the holder"; force {
			e.After = "its slots are free"
		}
		return e, nil
	})
	return done, err
}

// MayRevokeHeld returns why the caller may not revoke a claim of a holder with slots.
func (p PoolOperator) MayRevokeHeld(of pool.Holder, slots map[string]int) error {
	id := p.By.Identity
	switch {
	case p.May != nil:
		return p.May(of, slots)
	case id.Is(of.ClaimedBy):
		return nil
	case len(slots) == 0: // they are not known
		return id.Allow(access.Operate, access.Everything)
	}
	return id.Allow(access.Operate, slices.Sorted(maps.Keys(slots))...)
}

// MayRevoke returns why the caller may not revoke a claim of which that is known. An unknown
// one can be revoked only by who may revoke all.
func (p PoolOperator) MayRevoke(w pool.Why, unknown error) error {
	if unknown == nil {
		return w.Each(p.MayRevokeHeld)
	}
	if p.By.Identity.Grants.Allow(access.Operate, access.Everything) {
		return nil
	}
	return unknown
}

// SpecText writes the settings of a pool.
func SpecText(s pool.Spec) string {
	parts := []string{"limit " + pool.LimitText(s.Limit), "lease " + text.Duration(s.LeaseDuration), "reserve " + pool.ReserveText(s.ReserveAfter)}
	if s.Paused {
		parts = append(parts, "paused")
	}
	return strings.Join(parts, ", ")
}

// changeText writes what is asked for of a pool.
func changeText(ch pool.Change) string {
	var parts []string
	if ch.Limit != nil {
		parts = append(parts, "limit "+pool.LimitText(*ch.Limit))
	}
	if ch.LeaseDuration != nil {
		parts = append(parts, "lease "+text.Duration(*ch.LeaseDuration))
	}
	if ch.ReserveAfter != nil {
		parts = append(parts, "reserve "+pool.ReserveText(*ch.ReserveAfter))
	}
	if ch.Paused != nil {
		parts = append(parts, "paused "+strconv.FormatBool(*ch.Paused))
	}
	return strings.Join(parts, ", ")
}

// slotsText writes the slots of a claim: "db 2, gpu 1".
func slotsText(slots map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		parts = append(parts, name+" "+text.Number(int64(slots[name])))
	}
	return strings.Join(parts, ", ")
}
