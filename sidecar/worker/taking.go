package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// maxWaiting bounds how many instances wait for slots.
const maxWaiting = 256

// take takes instances as far as there is capacity.
func (w *Worker) take(ctx context.Context) {
	if !w.dirty || w.idle() {
		return
	}
	w.dirty = false
	free := w.capacity()
	if free == 0 {
		w.metrics.picked(0, 0)
		w.withdrawAll() // a grant would have to be released
		return
	}
	now := time.Now()
	p := pick(choice{
		now: now, queues: w.queues, peers: w.peers, turn: w.turn(), help: w.help,
		capacity: w.cfg.Concurrency, free: free - w.unpublished(), waiters: w.waiters(),
		skip: w.skips, slots: w.slotsOf, rests: func(c *requirement) bool { return now.Before(w.resting[c.name].until) },
	})
	w.metrics.picked(free, len(p.plain)+len(p.slotted))
	w.help.note(p.short, now, w.turn())
	if p.again {
		w.again.Reset(w.turn())
	}
	for _, id := range p.yields {
		w.yield(id)
	}
	// The cut must not depend on the slots: the first in order are kept.
	slices.SortStableFunc(p.slotted, func(a, b wanted) int { return strings.Compare(a.Order, b.Order) })
	p.slotted = p.slotted[:min(len(p.slotted), max(0, maxWaiting-len(w.waiting)))]
	all, places := w.turns(p), w.supply()
	w.look(ctx, all, places, now)
	candidates := make([]candidate, len(all))
	for i := range all {
		candidates[i] = all[i].candidate
	}
	for i, v := range deal(candidates, places) {
		switch t := &all[i]; {
		case v == noPlace:
		case t.slotted:
			w.claimFor(ctx, t.want, v)
		case !w.takeNow(ctx, t.offer.Published, v):
			return // its place was taken meanwhile: all are considered again when one is given back
		}
	}
}

// takeNow takes an instance without slots, if it gets its place.
func (w *Worker) takeNow(ctx context.Context, p *step.Published, v verdict) bool {
	seat := w.places.New()
	take := func() { w.async(func() { w.takePlain(ctx, p, seat) }) }
	switch v {
	case placed:
		if !seat.Take() {
			return false
		}
	case joins:
		if w.passPlace(true, seat) == nil {
			return false
		}
	default:
		if !w.passLater(false, seat, func() { w.unlessIdle(p, seat, take) }) {
			return false
		}
		w.begin(p)
		return true
	}
	w.begin(p)
	take()
	return true
}

// unlessIdle takes an instance that has waited for its place, unless the worker takes nothing
// new by now.
func (w *Worker) unlessIdle(p *step.Published, seat *pool.Place, take func()) {
	if w.idle() {
		w.notTaken(p, seat, nil)
		return
	}
	take()
}

// claimFor claims the slots of an instance. The claim is granted only with a place.
func (w *Worker) claimFor(ctx context.Context, p wanted, v verdict) {
	seat, helps := w.places.New(), !w.peers.mine(p.offer)
	ask := func() {
		claim := claimID(p.Published)
		w.waiting[p.ID()] = waiter{
			claim: claim, requirement: p.requirement, slots: p.slots, queue: p.Queue, order: p.Order, priority: p.Priority, seat: seat,
		}
		wait := w.waitLeft(p.Published, w.cfg.Client.ClaimTimeout())
		w.async(func() { w.takeSlotted(ctx, p, claim, wait, seat, helps) })
	}
	switch v {
	case placed:
		seat.Take()
	case follows:
		if !w.passLater(true, seat, func() { w.unlessIdle(p.Published, seat, ask) }) {
			return
		}
		w.begin(p.Published)
		return
	}
	w.begin(p.Published)
	ask()
}

// The bounds of a turn: see [Worker.turn].
const shortTurn, longTurn = 50 * time.Millisecond, time.Second

// turn returns how long an instance is left to the worker whose own it is: with free
// capacity, that worker takes it in about the time of a write.
func (w *Worker) turn() time.Duration { return min(longTurn, max(shortTurn, 4*w.pace)) }

// claimID returns the id of the claim of an instance: the same for one publication, in all
// workers, so that it keeps its place in the wait queue when it is withdrawn for a moment, and
// that it waits is one event; and in the order of the instances of the run, which orders those
// that begin to wait together.
func claimID(p *step.Published) string {
	sum := sha256.Sum256([]byte(p.ID().String() + "/" + strconv.FormatInt(p.Revision, 10)))
	return fmt.Sprintf("step-%07d-%s", p.Number, hex.EncodeToString(sum[:16]))
}

// hasSlotEvent reports whether an event of a claim is written to the events of its run: those of
// instances that have events, and losses.
func hasSlotEvent(ev pool.Event) bool {
	var number int
	_, err := fmt.Sscanf(ev.Claim, "step-%d-", &number) // see [claimID]
	return err != nil || step.HasEvents(number) || ev.Type == pool.ClaimEnded
}

// skips reports whether an instance is not to be taken.
func (w *Worker) skips(p *offer) bool {
	id := p.ID()
	_, taking := w.taking[id]
	return taking || w.passed[p.Order] >= p.Revision || w.active[id] != nil || w.isUnresolved(id) || w.canceled.runs[p.Run] > p.Revision
}

// slotsOf returns the slots of a requirement: those of its pools, and one of its task if
// that has a limit.
func (w *Worker) slotsOf(c *requirement) map[string]int {
	if c.task == "" {
		return c.pools
	}
	name := step.TaskPool(c.task)
	if !w.cfg.Client.HasPool(name) {
		return c.pools
	}
	slots := map[string]int{name: 1}
	maps.Copy(slots, c.pools)
	return slots
}

func (w *Worker) begin(p *step.Published) { w.taking[p.ID()] = p.Revision }

// place is what a running instance depends on: a key reservation, or a claim.
type place interface {
	Context() context.Context
	ValidFor() (left, grace time.Duration)
}

// takePlain takes an instance without slots.
func (w *Worker) takePlain(ctx context.Context, p *step.Published, seat *pool.Place) {
	begun := time.Now()
	reservation, err := w.cfg.Client.ReserveKey(ctx, stepLease)
	if err != nil {
		w.post(func() { w.notTaken(p, seat, err) })
		return
	}
	dir, err := w.folders.make(p, false)
	if err != nil {
		reservation.Release()
		w.post(func() { w.notTaken(p, seat, err) })
		return
	}
	t, err := w.steps.Take(context.WithoutCancel(ctx), p, w.by, reservation.Lease())
	if t == nil {
		w.post(func() {
			if !notTaken(err) && store.OutcomeUnknown(err) {
				w.unresolved = append(w.unresolved, &unresolved{p: p, dir: dir, reservation: reservation, seat: seat})
				seat = nil
			} else {
				reservation.Release()
				w.folders.remove(dir)
			}
			w.notTaken(p, seat, err)
		})
		return
	}
	e := &execution{w: w, t: t, dir: dir, place: reservation, give: reservation.Release, seat: seat}
	w.taken(e.traced(w.span(p, begun)), begun, err)
}

// waited is how long a publication has waited for its slots in this worker.
type waited struct {
	revision int64
	total    time.Duration
}

// waitLeft returns how much longer a publication may wait for its slots, of most in all.
func (w *Worker) waitLeft(p *step.Published, most time.Duration) time.Duration {
	if before := w.waited[p.Order]; before.revision == p.Revision {
		most -= before.total
	}
	return max(0, most)
}

// noteWaited adds a wait.
func (w *Worker) noteWaited(p *step.Published, since, until time.Time) {
	before := w.waited[p.Order]
	if before.revision != p.Revision {
		before = waited{revision: p.Revision}
	}
	before.total += until.Sub(since)
	w.waited[p.Order] = before
}

// giveUp ends the attempt of an instance whose wait for slots has timed out. It reports
// false if err is another error.
func (w *Worker) giveUp(ctx context.Context, p *step.Published, seat *pool.Place, err error) bool {
	var refused *problem.Error
	if code := problem.CodeOf(err); code != problem.ClaimTimeout && code != problem.NoCapacity || !errors.As(err, &refused) {
		return false
	}
	why := refused.Message
	if r, ok := refused.Detail.(pool.Reason); ok {
		why = fmt.Sprintf("timed out after %s: %s", w.cfg.Client.ClaimTimeout(), r.Text)
	}
	seat.Give()
	err = w.steps.GiveUp(ctx, p, w.by, why)
	w.post(func() {
		if err != nil {
			w.notTaken(p, seat, err)
			return
		}
		w.log.Info("a step instance has waited too long for its slots", "run", p.Run, "step", p.ID().Text(), "reason", why)
		w.metrics.ended("timed_out")
		w.endTaking(p.ID())
		w.passed[p.Order] = p.Revision // until the feed reports it
		w.dirty = true
	})
	return true
}

// maxRefusing bounds how many instances are being refused at the same time.
const maxRefusing = 16

// refuse ends published instances whose commands this worker does not run. It needs no capacity.
func (w *Worker) refuse() {
	if w.idle() {
		return
	}
	for _, q := range w.queues {
		for order, p := range q.refused {
			if w.refusing == maxRefusing {
				return // it is called again when one was refused
			}
			delete(q.refused, order)
			w.refusing++
			w.async(func() {
				w.refuseOne(p)
				w.post(func() { w.refusing-- })
			})
		}
	}
}

// refuseOne ends an instance without retries, unless another worker has taken it or its run was
// canceled. It tries again while etcd does not answer.
func (w *Worker) refuseOne(p *step.Published) {
	if !w.genuineSubmitter(p) {
		return
	}
	final := *p
	final.Retries = 0
	of := "that " + p.SubmittedBy + " has submitted"
	if p.SubmittedBy == "" {
		of = "whose submitter is not recorded"
	}
	why := fmt.Sprintf("worker %s/%s runs no commands of runs %s: its setting commands_from allows %s",
		w.by.Host, w.by.Instance, of, strings.Join(w.cfg.CommandsFrom, ", "))
	for {
		err := w.steps.GiveUp(w.quit, &final, w.by, why)
		switch {
		case err == nil:
			w.refusals.Log(w.log, hclog.Warn, "refused", "a step instance was refused: its submitter is not in commands_from", "run", p.Run, "step", p.ID().Text(), "submitted_by", p.SubmittedBy)
			w.metrics.ended("refused")
			return
		case notTaken(err):
			return
		}
		w.log.Debug("a step instance could not be refused, trying again", "run", p.Run, "step", p.ID().Text(), "error", err)
		select {
		case <-time.After(finishPause):
		case <-w.left:
			return
		}
	}
}

// takeSlotted takes an instance with its slots, for which it may wait. It helps if the instance
// is another worker's own.
func (w *Worker) takeSlotted(ctx context.Context, want wanted, id string, wait time.Duration, seat *pool.Place, helps bool) {
	p := want.Published
	begun := time.Now()
	dir, err := w.folders.make(p, true)
	if err != nil {
		w.post(func() { w.notTaken(p, seat, err) })
		return
	}
	span := w.span(p, begun)
	var claim *instance.Claim
	// The end of ctx only ends the wait: an instance whose slots are granted is taken.
	t, err := w.steps.TakeWith(context.WithoutCancel(ctx), p, w.by, func(x store.Extra) (store.Fence, []*pb.ResponseOp, error) {
		cl, err := w.cfg.Client.Claim(span.With(ctx), want.slots, instance.WithOwnID(id), instance.WithPriority(p.Priority),
			instance.WithRun(p.Run, p.ID().Text()), instance.WithBind(run.BindStep), instance.WithWait(wait),
			instance.WithSole(p.Revision, helps), instance.WithPlace(seat), instance.WithExtra(x))
		if err != nil {
			return 0, nil, err
		}
		claim = cl
		return cl.Fence(), cl.Extra, nil
	})
	if claim == nil {
		endSpan(span, notTakenStatus, "")
	}
	if claim == nil && w.giveUp(context.WithoutCancel(ctx), p, seat, err) {
		w.folders.remove(dir)
		return
	}
	if claim == nil {
		w.post(func() {
			if ctx.Err() == nil { // else the next process finds out what happened
				w.folders.remove(dir)
			}
			w.rest(want.requirement, err)
			w.noteWaited(p, begun, time.Now())
			w.notTaken(p, seat, err)
		})
		return
	}
	e := &execution{w: w, t: t, dir: dir, place: claim, give: func() { w.release(claim) }, seat: seat}
	w.taken(e.traced(span), begun, err)
}

// release releases a claim that is still held, asynchronously. It is also released if the
// worker ends meanwhile.
func (w *Worker) release(claim *instance.Claim) {
	if claim.Context().Err() != nil && claim.Err() == nil {
		return // it was released with the end of its instance
	}
	w.async(func() { _ = claim.Release(w.quit) })
}

// rested is how long a refused slot requirement is not tried.
type rested struct {
	until time.Time
	pause time.Duration
}

// firstRest and lastRest bound the pauses after which a slot requirement is tried again that
// was refused for a reason other than capacity, such as a deleted pool.
const firstRest, lastRest = time.Second, time.Minute

// rest records the result of a claim.
func (w *Worker) rest(class string, err error) {
	switch {
	case err == nil || notTaken(err) || isCanceled(err) || problem.CodeOf(err) == problem.Stopping:
		delete(w.resting, class)
		return
	case time.Now().Before(w.resting[class].until):
		return // one of many
	}
	pause := min(lastRest, max(firstRest, 2*w.resting[class].pause))
	w.resting[class] = rested{time.Now().Add(pause), pause}
	w.log.Warn("instances that need slots cannot be taken, trying again", "slots", class, "pause", pause, "error", err)
}

// taken passes a taken instance to the loop. If its task cannot be read, it fails; if etcd
// did not answer, it is handed back.
func (w *Worker) taken(e *execution, begun time.Time, unread error) {
	_, slotted := e.place.(*instance.Claim)
	w.metrics.took(time.Since(begun), slotted)
	w.post(func() {
		id := e.t.StepID
		w.endTaking(id)
		if slotted && len(w.resting) > 0 {
			delete(w.resting, requirementOf(&e.t.Ready))
		}
		// The feed may report it after its end.
		w.passed[e.t.Ready.Order] = e.t.Ready.Revision
		w.active[id] = e
		w.metrics.count.Store(int64(len(w.active)))
		w.dirty = true
		switch {
		case e.returnsMismatch(unread):
		case isCorrupt(unread):
			e.fail(unread)
		case w.canceled.why(id, e.t.Revision) != "":
			e.finish(step.Outcome{Status: step.Canceled, Error: w.canceled.why(id, e.t.Revision)})
		case unread != nil || w.idle():
			e.handBack()
		default:
			e.start()
		}
	})
}

func (w *Worker) endTaking(id store.StepID) {
	delete(w.taking, id)
	delete(w.waiting, id)
}

// notTaken handles an instance that could not be taken, and gives its place back.
func (w *Worker) notTaken(p *step.Published, seat *pool.Place, err error) {
	seat.Give()
	id := p.ID()
	waited, slotted := w.waiting[id] // logged for its slot requirement
	w.dirty = w.dirty || waited.left
	w.endTaking(id)
	switch {
	case notTaken(err):
		w.metrics.conflicts.Inc()
		w.passed[p.Order] = p.Revision // until the feed reports it
		w.dirty = true
	case err != nil && !isCanceled(err) && problem.CodeOf(err) != problem.Stopping && !slotted:
		w.log.Warn("an instance could not be taken, trying again", "run", id.Run, "step", id.Text(), "error", err)
	}
	// It is considered again at the next tick.
}

// isCorrupt reports whether a value exists and cannot be read.
func isCorrupt(err error) bool {
	var corrupt *store.CorruptError
	return errors.As(err, &corrupt)
}

// isCanceled reports whether a claim was withdrawn.
func isCanceled(err error) bool { return problem.CodeOf(err) == problem.ClaimCanceled }

// forgetPassed removes what it has of publications that are not in the queues any more.
func (w *Worker) forgetPassed() {
	for order := range w.passed {
		if !slices.ContainsFunc(w.queues, func(q *queue) bool { return q.of[order] != nil }) {
			delete(w.passed, order)
		}
	}
	for order, before := range w.waited {
		if !slices.ContainsFunc(w.queues, func(q *queue) bool { return q.has(order, before.revision) }) {
			delete(w.waited, order)
		}
	}
}
