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
	"github.com/berthhq/berth/pool/list"
	"github.com/berthhq/berth/pool/revoke"
)

// yes is the value of a field that is set.
const yes = "yes"

// confirmRevoke says what revoking a claim will do: its host stops the holder, or its slots
// are freed by force.
func confirmRevoke(ctx context.Context, s *Session, o inspect.Operator, q url.Values) (*confirmation, error) {
	id := q.Get("claim")
	if err := pool.ValidateID(id); err != nil {
		return nil, err
	}
	w, err := s.Client.Why(ctx, id)
	if err := o.MayRevoke(w, err); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	return revokeOf(w, q.Get("force") == yes), nil
}

// revokeOf says what revoking a claim will do.
func revokeOf(w pool.Why, force bool) *confirmation {
	c := &confirmation{
		Question: "Revoke claim " + w.Claim + "?", Button: "Revoke the claim", Danger: true, Back: home,
		Hidden: []pair{{"claim", w.Claim}}, Facts: []fact{{Name: "Claim", Value: w.Claim}},
	}
	if w.Held == nil {
		c.Not = "It holds no slots any more."
		if w.Waiter != nil {
			c.Not = "It holds no slots: it waits. To end the wait, stop the process on host " + w.Waiter.Host + "."
		}
		return c
	}
	h := w.Held
	c.Facts = append(c.Facts, claimFacts(h)...)
	c.Hidden = append(c.Hidden, pair{"fence", strconv.FormatInt(int64(h.Fence), 10)})
	c.Back = claimLink(h.Pools)
	if h.Bind == run.BindBridge {
		c.Not = "The coordinator holds it for run " + h.Run + ", which has not started yet. To free its slots, cancel the run."
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
			"Host " + h.Host + " ends the validity of the claim, and stops the holder.",
			stopText(h),
			slots + " free when the holder has stopped, after at most " + text.Duration(pool.RevokeGrace) + " unless berth watches its process and that still runs. If the host is dead, they are free when the lease ends.",
		}
		way.Set("force", yes)
		c.Other, c.OtherText = way, "Free the slots by force instead…"
		c.OtherWhat = "If the host is dead or does not respond: the slots are free at once, whatever the holder does."
		return c
	}
	fence := strconv.FormatInt(int64(h.Fence), 10)
	c.Question, c.Button = "Free the slots of claim "+w.Claim+" by force?", "Free the slots by force"
	c.Hidden = append(c.Hidden, pair{"force", yes})
	c.Effects = []string{
		slots + " free at once, for the claims that wait.",
		"The holder is not stopped first. If host " + h.Host + " is alive, it stops the holder when it notices.",
	}
	c.Warning = "The old holder may still run while the next one does. Its fencing token is " + fence +
		": what a pool of one slot guards should refuse this token and smaller ones."
	c.Sure = "I know that the old holder may still run."
	c.Other, c.OtherText = way, "Have its host stop the holder instead…"
	return c
}

// claimFacts describe a claim that holds slots.
func claimFacts(h *pool.HolderStatus) []fact {
	facts := []fact{{Name: "Slots", Value: run.PoolList(h.Pools)}, {Name: "Host", Value: h.Host}, {Name: "Instance", Value: h.Instance}}
	if h.ClaimedBy != "" {
		facts = append(facts, fact{Name: "Claimed by", Value: h.ClaimedBy})
	}
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
	return append(facts, fact{Name: "Since", At: h.Since}, fact{Name: "Fencing token", Value: strconv.FormatInt(int64(h.Fence), 10)})
}

// stopText says how the holder of a claim is stopped.
func stopText(h *pool.HolderStatus) string {
	switch {
	case h.Bind == run.BindExecutor:
		return "The executor of run " + h.Run + " loses the run, and gets that as the answer to its next heartbeat. The run is tried again if it has retries left; otherwise it fails."
	case h.PID != 0:
		return "Its process " + strconv.Itoa(h.PID) + " gets TERM, and KILL after a grace period."
	}
	return "The holder is notified, and has to stop by itself."
}

// claimLink is the page of the first of the pools of a claim.
func claimLink(pools map[string]int) string {
	for name := range sortedPools(pools) {
		return poolLink(name)
	}
	return home
}

// mayRevoke refuses who may not revoke the claim of a form.
func mayRevoke(ctx context.Context, s *Session, o inspect.Operator, form url.Values) error {
	return o.MayRevoke(s.Client.Why(ctx, form.Get("claim")))
}

// revokeTask revokes a claim, if it is still the one that was shown.
func revokeTask(_ string, form url.Values) (task, error) {
	id, force := form.Get("claim"), form.Get("force") == yes
	if err := pool.ValidateID(id); err != nil {
		return task{}, err
	}
	fence, err := strconv.ParseInt(form.Get("fence"), 10, 64)
	if err != nil || fence <= 0 {
		return task{}, problem.Field("fence", "%q is not the fencing token that was shown", problem.Clip(form.Get("fence")))
	}
	t := task{query: url.Values{"claim": {id}}, back: home}
	if !force {
		t.do = revoking(id, store.Fence(fence), "", requestRevocation)
		return t, nil
	}
	t.query.Set("force", yes)
	if form.Get("sure") != yes {
		return task{}, problem.Field("sure", "confirm that the old holder may still run")
	}
	t.do = revoking(id, store.Fence(fence), "by force", freeByForce)
	return t, nil
}

// revoking revokes the claim that was shown, and records that.
func revoking(id string, fence store.Fence, detail string, do func(ctx context.Context, s *Session, id string, fence store.Fence) (string, error)) func(context.Context, *Session, inspect.Operator) (string, error) {
	return func(ctx context.Context, s *Session, o inspect.Operator) (result string, err error) {
		before := "held with fencing token " + strconv.FormatInt(int64(fence), 10)
		err = o.Act(ctx, audit.RevokeClaim, id, detail, func(ctx context.Context) (audit.Effect, error) {
			result, err = do(ctx, s, id, fence)
			return audit.Effect{Before: before, Result: result}, err
		})
		return result, err
	}
}

// seeReleased bounds the wait until a revoked claim is gone: a holder that stops at once is
// gone by then.
const seeReleased = 2 * time.Second

// requestRevocation has the host of a claim stop the holder.
func requestRevocation(ctx context.Context, s *Session, id string, fence store.Fence) (string, error) {
	w, err := s.Client.Why(ctx, id)
	if err == nil {
		err = sameClaim(w, id, fence)
	}
	if err != nil {
		return "", err
	}
	host := w.Fenced(fence).Host
	revoker := revoke.Revoker{Backend: s.Runs.Backend, Keys: s.Runs.Keys}
	if err := revoker.RequestRevocation(ctx, host, id, fence); err != nil {
		return "", err
	}
	if untilGone(ctx, s, id, fence) {
		return "Claim " + id + " is revoked: its holder on host " + host + " has stopped.", nil
	}
	return "Claim " + id + " is being revoked. Its slots are free when the holder on host " + host + " has stopped, after at most " +
		text.Duration(pool.RevokeGrace) + " if the host is alive and does not see its process run.", nil
}

// freeByForce frees a claim's slots at once.
func freeByForce(ctx context.Context, s *Session, id string, fence store.Fence) (string, error) {
	revoker := revoke.Revoker{Backend: s.Runs.Backend, Keys: s.Runs.Keys}
	now, err := list.Read(ctx, s.Runs.Backend, s.Runs.Keys)
	if err != nil {
		return "", store.Problem("the claims could not be read", err)
	}
	w, err := now.Why(id)
	if err == nil {
		err = sameClaim(w, id, fence)
	}
	var done pool.Revocation
	if err == nil {
		done, err = revoker.Free(ctx, now, id, fence)
	}
	if err != nil {
		return "", err
	}
	untilGone(ctx, s, id, fence)
	result := "The slots of claim " + id + " are free. Its old holder on host " + done.Host + " may still run; its fencing token is " +
		strconv.FormatInt(int64(fence), 10) + "."
	if done.Unnotified {
		result += " Etcd is full, so the host was not notified."
	}
	return result, nil
}

// sameClaim refuses a claim that is not the one that was shown.
func sameClaim(w pool.Why, id string, fence store.Fence) error {
	switch {
	case w.Held == nil:
		return stale("claim %s holds no slots any more", id)
	case w.Fenced(fence) == nil:
		return stale("claim %s was released, and claimed again", id)
	}
	return nil
}

// untilGone waits until this server sees that a claim is gone.
func untilGone(ctx context.Context, s *Session, id string, fence store.Fence) bool {
	return untilSeen(ctx, seeReleased, func() bool {
		w, err := s.Client.Why(ctx, id)
		return problem.CodeOf(err) == problem.ClaimNotFound || err == nil && w.Fenced(fence) == nil
	})
}
