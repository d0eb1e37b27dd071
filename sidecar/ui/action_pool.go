package ui

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// poolAsked returns the pool that an address names. An unknown one is a PoolNotFound problem,
// and so is one that was deleted while its slots are held: it can't be changed any more.
func poolAsked(ctx context.Context, s *Session, q url.Values) (pool.Detail, error) {
	name := q.Get("pool")
	d, err := s.Client.Pool(ctx, name)
	if err == nil && d.Deleted {
		err = problem.New(problem.PoolNotFound, "pool %q was deleted: its holders keep their slots until they release them", name)
	}
	return d, err
}

// poolConfirmation returns a confirmation with the facts of a pool.
func poolConfirmation(d pool.Detail, question, button string) *confirmation {
	c := &confirmation{
		Question: question, Button: button, Back: poolLink(d.Name), Hidden: []pair{{"pool", d.Name}},
		Facts: []fact{
			{Name: "Pool", Value: d.Name, Link: poolLink(d.Name)},
			{Name: "Limit", Value: pool.LimitText(d.Limit)},
			{Name: "Held", Value: plural(d.Claimed, "slot", "slots") + " by " + plural(len(d.Holders), "claim", "claims")},
			{Name: "Waiting", Value: plural(len(d.Waiters), "claim", "claims")},
		},
	}
	if d.Paused {
		c.Facts = append(c.Facts, fact{Name: "Paused", Value: "yes"})
	}
	return c
}

// mayOperatePool refuses who may not operate the pool of a form.
func mayOperatePool(_ context.Context, _ *Session, o inspect.Operator, form url.Values) error {
	return o.MayOperate(form.Get("pool"))
}

// onPool returns the confirmation of an action on a pool.
func onPool(of func(d pool.Detail, q url.Values) *confirmation) func(context.Context, *Session, inspect.Operator, url.Values) (*confirmation, error) {
	return func(ctx context.Context, s *Session, o inspect.Operator, q url.Values) (*confirmation, error) {
		if err := o.MayOperate(q.Get("pool")); err != nil {
			return nil, err
		}
		d, err := poolAsked(ctx, s, q)
		if err != nil {
			return nil, err
		}
		return of(d, q), nil
	}
}

// pauseOf says what pausing a pool will do.
func pauseOf(d pool.Detail, _ url.Values) *confirmation {
	c := poolConfirmation(d, "Pause pool "+d.Name+"?", "Pause the pool")
	if d.Paused {
		c.Not = "It is paused already."
		return c
	}
	c.Effects = []string{
		"It grants no slots until it is resumed.",
		keptText(d),
		"Claims that wait keep their position: " + plural(len(d.Waiters), "claim", "claims") + " now. A claim whose wait ends meanwhile is refused, as always.",
	}
	return c
}

// keptText says what becomes of the holders of a pool that grants nothing more.
func keptText(d pool.Detail) string {
	return "Its holders keep " + plural(d.Claimed, "slot", "slots") + " until they release them."
}

// deleteOf says what deleting a pool will do.
func deleteOf(d pool.Detail, _ url.Values) *confirmation {
	c := poolConfirmation(d, "Delete pool "+d.Name+"?", "Delete the pool")
	c.Danger, c.Back = true, home
	c.Effects = []string{keptText(d), "Claims that wait are refused: " + plural(len(d.Waiters), "claim waits", "claims wait") + " now."}
	return c
}

// deleteTask deletes a pool.
func deleteTask(_ string, form url.Values) (task, error) {
	name := form.Get("pool")
	if err := pool.ValidateName(name); err != nil {
		return task{}, err
	}
	return task{query: url.Values{"pool": {name}}, back: home, do: func(ctx context.Context, s *Session, o inspect.Operator) (string, error) {
		if err := o.DeletePool(ctx, name); err != nil {
			return "", err
		}
		untilSeen(ctx, seeChange, func() bool {
			d, err := s.Client.Pool(ctx, name)
			return err != nil || d.Deleted
		})
		return "Pool " + name + " is deleted.", nil
	}}, nil
}

// resumeOf says what resuming a pool will do.
func resumeOf(d pool.Detail, _ url.Values) *confirmation {
	c := poolConfirmation(d, "Resume pool "+d.Name+"?", "Resume the pool")
	if !d.Paused {
		c.Not = "It is not paused."
		return c
	}
	c.Effects = []string{"It grants slots again, in the order in which claims wait.", freeText(d, d.Limit)}
	return c
}

// freeText says how many slots of a pool are free under a limit, and how many claims wait.
func freeText(d pool.Detail, limit int) string {
	waiting := plural(len(d.Waiters), "claim waits", "claims wait") + "."
	switch {
	case limit == pool.Unlimited:
		return "It has no limit: " + waiting
	case limit <= d.Claimed:
		return "It has no free slots: " + waiting
	}
	return plural(limit-d.Claimed, "slot is", "slots are") + " free: " + waiting
}

// pausedTask pauses a pool, or ends that.
func pausedTask(paused bool) func(string, url.Values) (task, error) {
	return func(_ string, form url.Values) (task, error) {
		name := form.Get("pool")
		if err := pool.ValidateName(name); err != nil {
			return task{}, err
		}
		return task{query: url.Values{"pool": {name}}, back: poolLink(name), do: func(ctx context.Context, _ *Session, o inspect.Operator) (string, error) {
			_, err := o.PausePool(ctx, name, paused)
			if paused {
				return "Pool " + name + " is paused.", err
			}
			return "Pool " + name + " is resumed.", err
		}}, nil
	}
}

// limitQuestion asks for the new limit of a pool.
type limitQuestion struct {
	Pool    string
	Value   string // the last answer
	Problem string // why it is refused
	Most    int
}

// limitOf says what a new limit of a pool, as it was typed, will do.
// Without one it asks for it.
func limitOf(d pool.Detail, q url.Values) *confirmation {
	text := strings.TrimSpace(q.Get("limit"))
	ask := poolConfirmation(d, "Change the limit of pool "+d.Name, "")
	ask.Limit = &limitQuestion{Pool: d.Name, Value: text, Most: pool.MaxLimit}
	if text == "" {
		ask.Limit.Value = strconv.Itoa(d.Limit)
		return ask
	}
	limit, err := parseLimit(text)
	if err != nil {
		ask.Limit.Problem = err.Error()
		return ask
	}
	if limit == d.Limit {
		ask.Limit.Problem = "limit: it is already the limit of the pool"
		return ask
	}
	c := poolConfirmation(d, "Set the limit of pool "+d.Name+" to "+pool.LimitText(limit)+"?", "Set the limit")
	c.Hidden = append(c.Hidden, pair{"limit", strconv.Itoa(limit)}, pair{"from", strconv.Itoa(d.Limit)})
	c.Effects = limitEffects(d, limit)
	c.Other, c.OtherText = url.Values{"pool": {d.Name}}, "Choose another limit"
	return c
}

// parseLimit reads a limit. Its error is a problem of the field.
func parseLimit(text string) (int, error) {
	limit, err := pool.ParseLimit(text)
	if err != nil {
		return 0, problem.Field("limit", "%s is not one: it %s", problem.Quote(text), problem.Of(err).Message)
	}
	return limit, nil
}

// limitEffects says what a new limit will do.
func limitEffects(d pool.Detail, limit int) []string {
	say := []string{"Its limit goes from " + pool.LimitText(d.Limit) + " to " + pool.LimitText(limit) + "."}
	over := d.Claimed - limit
	switch {
	case limit != pool.Unlimited && over > 0:
		say = append(say, keptText(d)+" It grants no slots until "+plural(over, "slot is", "slots are")+" released.")
	case limit == pool.Closed:
		say = append(say, "It grants no slots. Claims that wait keep their position.")
	default:
		say = append(say, "No holder is stopped.", freeText(d, limit))
	}
	if limit > 0 {
		refused := 0
		for _, w := range d.Waiters {
			if w.Slots > limit {
				refused++
			}
		}
		if refused > 0 {
			say = append(say, plural(refused, "waiting claim asks", "waiting claims ask")+" for more slots than the new limit: refused.")
		}
	}
	if d.Paused {
		say = append(say, "The pool stays paused.")
	}
	return say
}

// seeChange bounds the wait until this server sees the change of a pool.
const seeChange = 2 * time.Second

// limitTask changes a limit, if it is still the one that was shown.
func limitTask(_ string, form url.Values) (task, error) {
	name := form.Get("pool")
	if err := pool.ValidateName(name); err != nil {
		return task{}, err
	}
	limit, err := parseLimit(form.Get("limit"))
	if err != nil {
		return task{}, err
	}
	from, err := parseLimit(form.Get("from"))
	if err != nil {
		return task{}, problem.Field("from", "%q is not the limit that was shown", problem.Clip(form.Get("from")))
	}
	t := task{
		query: url.Values{"pool": {name}, "limit": {strconv.Itoa(limit)}}, back: poolLink(name),
	}
	t.do = func(ctx context.Context, s *Session, o inspect.Operator) (string, error) {
		d, err := s.Client.Pool(ctx, name)
		switch {
		case err != nil:
			return "", err
		case !d.Deleted && d.Limit == limit:
			return "The limit of pool " + name + " is " + pool.LimitText(limit) + " already.", nil
		case !d.Deleted && d.Limit != from:
			return "", stale("the limit of pool %s was set to %s meanwhile; it was %s", name, pool.LimitText(d.Limit), pool.LimitText(from))
		}
		if d.Deleted {
			return "", problem.New(problem.PoolNotFound, "pool %q was deleted", name)
		}
		if _, err := o.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return "", err
		}
		untilSeen(ctx, seeChange, func() bool {
			d, err := s.Client.Pool(ctx, name)
			return err != nil || d.Limit == limit
		})
		return "The limit of pool " + name + " is " + pool.LimitText(limit) + " now; it was " + pool.LimitText(from) + ".", nil
	}
	return t, nil
}

// untilSeen waits until a condition is true, at most for a duration, and reports whether it is.
func untilSeen(ctx context.Context, most time.Duration, is func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
