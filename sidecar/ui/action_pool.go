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

// poolAsked is the pool that an address asks about. An unknown one is a PoolNotFound problem, and
// so is one that was deleted while its slots are held: there is nothing to change any more.
func poolAsked(ctx context.Context, s *Session, q url.Values) (pool.Detail, error) {
	name := q.Get("pool")
	if err := pool.ValidateName(name); err != nil {
		return pool.Detail{}, err
	}
	d, err := s.Client.Pool(ctx, name)
	if err == nil && d.Deleted {
		err = problem.New(problem.PoolNotFound, "pool %q was deleted: its holders keep their slots until they give them back", name)
	}
	return d, err
}

// poolConfirmation is what all confirmations of changes of a pool have.
func poolConfirmation(d pool.Detail, question, button string) *confirmation {
	c := &confirmation{
		Question: question, Button: button, Back: poolLink(d.Name), Hidden: []pair{{"pool", d.Name}},
		Facts: []fact{
			{Name: "Pool", Value: d.Name, Link: poolLink(d.Name)},
			{Name: "Limit", Value: inspect.LimitText(d.Limit)},
			{Name: "Held", Value: plural(d.Claimed, "slot", "slots") + " by " + plural(len(d.Holders), "claim", "claims")},
			{Name: "In line", Value: plural(len(d.Waiters), "claim", "claims")},
		},
	}
	if d.Paused {
		c.Facts = append(c.Facts, fact{Name: "Paused", Value: "yes"})
	}
	return c
}

func confirmPause(ctx context.Context, s *Session, q url.Values) (*confirmation, error) {
	d, err := poolAsked(ctx, s, q)
	if err != nil {
		return nil, err
	}
	return pauseOf(d), nil
}

// pauseOf says what becomes of a pool that is paused.
func pauseOf(d pool.Detail) *confirmation {
	c := poolConfirmation(d, "Pause pool "+d.Name+"?", "Pause the pool")
	if d.Paused {
		c.Not = "It is paused already."
		return c
	}
	c.Effects = []string{
		"Nothing of it is granted until it is resumed.",
		"Nobody is stopped: its holders keep " + plural(d.Claimed, "slot", "slots") + " until they give them back.",
		"Who waits keeps the place in line: " + plural(len(d.Waiters), "claim", "claims") + " now. A claim that has waited for as long as it was to is given up, as ever.",
	}
	return c
}

func confirmResume(ctx context.Context, s *Session, q url.Values) (*confirmation, error) {
	d, err := poolAsked(ctx, s, q)
	if err != nil {
		return nil, err
	}
	return resumeOf(d), nil
}

// resumeOf says what becomes of a pool that is resumed.
func resumeOf(d pool.Detail) *confirmation {
	c := poolConfirmation(d, "Resume pool "+d.Name+"?", "Resume the pool")
	if !d.Paused {
		c.Not = "It is not paused."
		return c
	}
	c.Effects = []string{"It grants again, at once and in the order of its line.", freeText(d, d.Limit)}
	return c
}

// freeText says how much room a pool has under a limit, and who may get it.
func freeText(d pool.Detail, limit int) string {
	waiting := plural(len(d.Waiters), "claim waits", "claims wait") + " in line."
	switch {
	case limit == pool.Unlimited:
		return "It has room for everybody: " + waiting
	case limit <= d.Claimed:
		return "It has no free slots: " + waiting
	}
	return plural(limit-d.Claimed, "slot of it is", "slots of it are") + " free: " + waiting
}

// pauseTask pauses a pool.
func pauseTask(_ string, form url.Values) (task, error) {
	return pausedTask(form, true)
}

// resumeTask ends a pause.
func resumeTask(_ string, form url.Values) (task, error) {
	return pausedTask(form, false)
}

func pausedTask(form url.Values, paused bool) (task, error) {
	name := form.Get("pool")
	if err := pool.ValidateName(name); err != nil {
		return task{}, err
	}
	t := task{query: url.Values{"pool": {name}}, back: poolLink(name)}
	t.do = func(ctx context.Context, _ *Session, o inspect.Operator) (string, error) {
		if paused {
			return "Pool " + name + " is paused.", o.PausePool(ctx, name, true)
		}
		return "Pool " + name + " grants again.", o.PausePool(ctx, name, false)
	}
	return t, nil
}

// limitQuestion asks which limit a pool is to have.
type limitQuestion struct {
	Pool    string
	Value   string // what was said last
	Problem string // why that can't be
	Most    int
}

// confirmLimit asks for a limit first, and then says what it comes to.
func confirmLimit(ctx context.Context, s *Session, q url.Values) (*confirmation, error) {
	d, err := poolAsked(ctx, s, q)
	if err != nil {
		return nil, err
	}
	return limitOf(d, q.Get("limit")), nil
}

// limitOf says what becomes of a pool with another limit, which somebody has typed.
func limitOf(d pool.Detail, text string) *confirmation {
	text = strings.TrimSpace(text)
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
		ask.Limit.Problem = "limit: that is its limit now"
		return ask
	}
	c := poolConfirmation(d, "Set the limit of pool "+d.Name+" to "+inspect.LimitText(limit)+"?", "Set the limit")
	c.Hidden = append(c.Hidden, pair{"limit", strconv.Itoa(limit)}, pair{"from", strconv.Itoa(d.Limit)})
	c.Effects = limitEffects(d, limit)
	c.Other, c.OtherText = addressOf(actionPath("limit"), url.Values{"pool": {d.Name}}), "Choose another limit"
	return c
}

// parseLimit reads a limit. Its error is a problem of the field.
func parseLimit(text string) (int, error) {
	limit, err := strconv.Atoi(text)
	if err != nil {
		return 0, problem.Field("limit", "%q is no number: allowed are 1 to %d, 0 (closed) and -1 (unlimited)", problem.Clip(text), pool.MaxLimit)
	}
	spec := pool.DefaultSpec()
	spec.Limit = limit
	return limit, spec.Validate()
}

// limitEffects says what another limit comes to.
func limitEffects(d pool.Detail, limit int) []string {
	say := []string{"Its limit goes from " + inspect.LimitText(d.Limit) + " to " + inspect.LimitText(limit) + "."}
	over := d.Claimed - limit
	switch {
	case limit != pool.Unlimited && over > 0:
		say = append(say, "Nobody is stopped: "+plural(d.Claimed, "slot is", "slots are")+" held, and nothing more is granted until "+
			plural(over, "slot was", "slots were")+" given back, and then only as much as fits.")
	case limit == pool.Closed:
		say = append(say, "Nothing of it is granted, and who waits keeps the place in line.")
	default:
		say = append(say, "Nobody is stopped.", freeText(d, limit))
	}
	if limit > 0 {
		refused := 0
		for _, w := range d.Waiters {
			if w.Slots > limit {
				refused++
			}
		}
		if refused > 0 {
			say = append(say, plural(refused, "claim", "claims")+" in line asked for more than that, and can't be granted any more: that is told to whoever waits.")
		}
	}
	if d.Paused {
		say = append(say, "The pool is paused, and stays so.")
	}
	return say
}

// seeLimit bounds the wait until the pages show a limit that was set.
const seeLimit = 2 * time.Second

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
	from, err := strconv.Atoi(form.Get("from"))
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
			return "The limit of pool " + name + " was " + inspect.LimitText(limit) + " already.", nil
		case !d.Deleted && d.Limit != from:
			return "", stale("somebody has set the limit of pool %s to %s meanwhile; it was %s", name, inspect.LimitText(d.Limit), inspect.LimitText(from))
		}
		if d.Deleted {
			return "", problem.New(problem.PoolNotFound, "pool %q was deleted", name)
		}
		if _, err := o.SetPool(ctx, name, pool.Change{Limit: &limit}); err != nil {
			return "", err
		}
		untilSeen(ctx, seeLimit, func() bool {
			d, err := s.Client.Pool(ctx, name)
			return err != nil || d.Limit == limit
		})
		return "The limit of pool " + name + " is " + inspect.LimitText(limit) + " now; it was " + inspect.LimitText(from) + ".", nil
	}
	return t, nil
}

// untilSeen waits until something is so, for a while at most, and tells whether it came about.
func untilSeen(ctx context.Context, most time.Duration, is func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
