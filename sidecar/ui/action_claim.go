package ui

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

// yes is the value of a field that is said yes to.
const yes = "yes"

// confirmRelease says what becomes of a claim that is taken back: its host is asked to, or by
// force.
func confirmRelease(ctx context.Context, s *Session, q url.Values) (*confirmation, error) {
	id := q.Get("claim")
	if err := pool.ValidateID(id); err != nil {
		return nil, err
	}
	w, err := s.Client.Why(ctx, id)
	if err != nil {
		return nil, err
	}
	force := q.Get("force") == yes
	c := releaseOf(w, force)
	// Where one comes from is kept on the way between the two.
	if to := q.Get(backKey); to != "" && c.Other != "" {
		c.Other += "&" + url.Values{backKey: {ownPath(to)}}.Encode()
	}
	return c, nil
}

// releaseOf says what becomes of a claim that is taken back.
func releaseOf(w pool.Why, force bool) *confirmation {
	c := &confirmation{
		Question: "Release claim " + w.Claim + "?", Button: "Ask the claim back", Danger: true, Back: home,
		Hidden: []pair{{"claim", w.Claim}}, Facts: []fact{{Name: "Claim", Value: w.Claim}},
	}
	if w.Held == nil {
		c.Not = "It holds nothing any more."
		if w.Waiter != nil {
			c.Not = "It holds nothing, it waits in line. To take it out, stop whoever waits on host " + w.Waiter.Host + "."
		}
		return c
	}
	h := w.Held
	c.Facts = append(c.Facts, claimFacts(h)...)
	c.Hidden = append(c.Hidden, pair{"fence", strconv.FormatInt(h.Fence, 10)})
	c.Back = claimLink(h.Pools)
	if h.Bind == run.BindBridge {
		c.Not = "The coordinator keeps it for run " + h.Run + ", which nobody has started yet. To free its slots, cancel the run."
		return c
	}
	slots := "Its slot is"
	if h.Slots != 1 {
		slots = "Its " + text.Number(int64(h.Slots)) + " slots are"
	}
	way := url.Values{"claim": {w.Claim}}
	if !force {
		c.addStopped(*h)
		c.Effects = []string{
			"Host " + h.Host + " is asked to take it back: it ends trust in the claim, and has the holder stop.",
			stopText(h),
			slots + " free when the holder has stopped, after " + text.Duration(pool.RevokeGrace) + " at most if its host lives, and else when its lease ends.",
		}
		way.Set("force", yes)
		c.Other, c.OtherText = addressOf(actionPath("release"), way), "Free the slots by force instead…"
		c.OtherWhat = "For a host that is dead or does not act: the slots are free at once, whatever the holder does."
		return c
	}
	fence := strconv.FormatInt(h.Fence, 10)
	c.Question, c.Button = "Free the slots of claim "+w.Claim+" by force?", "Free the slots by force"
	c.Hidden = append(c.Hidden, pair{"force", yes})
	c.Effects = []string{
		slots + " free at once, for the next in line.",
		"Host " + h.Host + " is not asked. If it lives it notices, and has the holder stop then.",
	}
	c.Warning = "The old holder may still run, beside the next one. What it writes can only be told by its fence, " + fence +
		": whatever it works on should refuse that and smaller ones."
	c.Sure = "I know that the old holder may still run."
	c.Other, c.OtherText = addressOf(actionPath("release"), way), "Ask its host instead…"
	return c
}

// claimFacts are what is known of a claim that holds slots.
func claimFacts(h *pool.HolderStatus) []fact {
	facts := []fact{{Name: "Slots", Value: run.PoolList(h.Pools)}, {Name: "Host", Value: h.Host}, {Name: "Instance", Value: h.Instance}}
	if h.Run != "" {
		f := fact{Name: "Run", Value: h.Run}
		if run.ValidateID(h.Run) == nil {
			f.Link = runLink(h.Run)
		}
		facts = append(facts, f)
	}
	if h.Step != "" {
		facts = append(facts, fact{Name: "Step", Value: h.Step})
	}
	if h.PID != 0 {
		facts = append(facts, fact{Name: "Process", Value: strconv.Itoa(h.PID)})
	}
	for _, l := range pairsOf(h.Labels) {
		facts = append(facts, fact{Name: "Label", Value: l.Key + "=" + l.Value})
	}
	return append(facts, fact{Name: "Since", At: h.Since}, fact{Name: "Fence", Value: strconv.FormatInt(h.Fence, 10)})
}

// stopText says how a holder is stopped.
func stopText(h *pool.HolderStatus) string {
	switch {
	case h.Bind == run.BindExecutor:
		return "The executor of run " + h.Run + " loses the run with it, and is told so with its next heartbeat: the run is tried again if it may be, and has failed else."
	case h.PID != 0:
		return "Its process " + strconv.Itoa(h.PID) + " gets TERM, and KILL after a grace."
	}
	return "The holder is told, and has to stop by itself."
}

// claimLink is the page of the first of the pools of a claim.
func claimLink(pools map[string]int) string {
	for name := range sortedPools(pools) {
		return poolLink(name)
	}
	return home
}

// releaseTask takes a claim back, if it is still the one that was shown.
func releaseTask(_ string, form url.Values) (task, error) {
	id, force := form.Get("claim"), form.Get("force") == yes
	if err := pool.ValidateID(id); err != nil {
		return task{}, err
	}
	fence, err := strconv.ParseInt(form.Get("fence"), 10, 64)
	if err != nil || fence <= 0 {
		return task{}, problem.Field("fence", "%q is not the fence that was shown", problem.Clip(form.Get("fence")))
	}
	t := task{query: url.Values{"claim": {id}}, back: home}
	if !force {
		t.do = recorded(id, fence, "", askBack)
		return t, nil
	}
	t.query.Set("force", yes)
	if form.Get("sure") != yes {
		return task{}, problem.Field("sure", "say that you know that the old holder may still run")
	}
	t.do = recorded(id, fence, "by force", freeByForce)
	return t, nil
}

// recorded revokes the claim that was shown, and records that.
func recorded(id string, fence int64, detail string, do func(ctx context.Context, s *Session, id string, fence int64) (string, error)) func(context.Context, *Session, inspect.Operator) (string, error) {
	return func(ctx context.Context, s *Session, o inspect.Operator) (result string, err error) {
		before := "held with fencing token " + strconv.FormatInt(fence, 10)
		err = o.Act(ctx, audit.RevokeClaim, id, detail, func(ctx context.Context) (audit.Effect, error) {
			result, err = do(ctx, s, id, fence)
			return audit.Effect{Before: before, Result: result}, err
		})
		return result, err
	}
}

// seeReleased bounds the wait until a claim that was asked back is gone: a holder that stops at
// once has by then.
const seeReleased = 2 * time.Second

// askBack asks a claim's host to take it back.
func askBack(ctx context.Context, s *Session, id string, fence int64) (string, error) {
	w, err := s.Client.Why(ctx, id)
	if err == nil {
		err = sameClaim(w, id, fence)
	}
	if err != nil {
		return "", err
	}
	host := w.Fenced(fence).Host
	pools := pool.Registry{Backend: s.Runs.Backend, Keys: s.Runs.Keys}
	if err := pools.RequestRevocation(ctx, host, id, fence); err != nil {
		return "", err
	}
	if untilGone(ctx, s, id, fence) {
		return "Claim " + id + " was given back by host " + host + ".", nil
	}
	return "Claim " + id + " was asked back from host " + host + ". Its slots are free when the holder has stopped, after " +
		text.Duration(pool.RevokeGrace) + " at most if the host lives.", nil
}

// freeByForce frees a claim's slots at once.
func freeByForce(ctx context.Context, s *Session, id string, fence int64) (string, error) {
	pools := pool.Registry{Backend: s.Runs.Backend, Keys: s.Runs.Keys}
	now, err := pool.Read(ctx, s.Runs.Backend, s.Runs.Keys)
	if err != nil {
		return "", store.Problem("the claims could not be read", err)
	}
	w, err := now.Why(id)
	if err == nil {
		err = sameClaim(w, id, fence)
	}
	if err == nil {
		err = pools.Free(ctx, now, id, fence)
	}
	if err != nil {
		return "", err
	}
	untilGone(ctx, s, id, fence)
	return "The slots of claim " + id + " are free. Its old holder on host " + w.Fenced(fence).Host + " may still run; its fence is " +
		strconv.FormatInt(fence, 10) + ".", nil
}

// sameClaim refuses a claim that is not the one that was shown.
func sameClaim(w pool.Why, id string, fence int64) error {
	switch {
	case w.Held == nil:
		return stale("claim %s holds nothing any more", id)
	case w.Fenced(fence) == nil:
		return stale("claim %s was given back, and claimed again", id)
	}
	return nil
}

// untilGone waits until a claim is seen no more.
func untilGone(ctx context.Context, s *Session, id string, fence int64) bool {
	return untilSeen(ctx, seeReleased, func() bool {
		w, err := s.Client.Why(ctx, id)
		return problem.CodeOf(err) == problem.ClaimNotFound || err == nil && w.Fenced(fence) == nil
	})
}
