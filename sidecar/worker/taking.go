package worker

import (
	"cmp"
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

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// stepBind marks the claims of step instances.
const stepBind = "step"

// maxInLine bounds how many wait in the queues of pools.
const maxInLine = 256

// take takes what there is and what there is room for.
func (w *Worker) take(ctx context.Context) {
	if !w.dirty || w.idle() {
		return
	}
	w.dirty = false
	free := w.room()
	if free == 0 {
		w.metrics.looked(0, 0)
		w.leaveLines() // what is granted now would have to be given back
		return
	}
	now := time.Now()
	p := pick(choice{
		now: now, queues: w.queues, peers: w.peers, turn: w.turn(), help: w.help,
		room: w.cfg.Concurrency, free: free, lines: w.lines(),
		skip: w.skips, slots: w.slotsOf, rests: func(c *class) bool { return now.Before(w.resting[c.name].until) },
	})
	w.metrics.looked(free, len(p.plain)+len(p.slotted))
	w.help.note(p.short, now, w.turn())
	if p.again {
		w.again.Reset(w.turn())
	}
	for _, id := range p.yields {
		w.yield(id)
	}
	// The places go to the first, whether they need slots or not. Those that turn out to
	// wait for slots give theirs back.
	plain, slotted := p.plain, p.slotted[:min(len(p.slotted), max(0, maxInLine-len(w.inLine)))]
	slices.SortStableFunc(slotted, func(a, b wanted) int { return strings.Compare(a.Order, b.Order) })
	for len(plain)+len(slotted) > 0 {
		if len(plain) == 0 || len(slotted) > 0 && slotted[0].Order < plain[0].Order {
			w.claimFor(ctx, slotted[0])
			slotted = slotted[1:]
			continue
		}
		w.takeNow(ctx, plain[0].Published)
		plain = plain[1:]
	}
}

// takeNow has an instance taken that needs no slots, if there is a place for it.
func (w *Worker) takeNow(ctx context.Context, p *step.Published) {
	seat := w.places.New()
	if !seat.Take() && !w.takeEarly(seat) {
		return // it is looked at again when a place is given back
	}
	w.begin(p)
	w.beside(func() { w.takePlain(ctx, p, seat) })
}

// takeEarly takes the place of an execution whose end goes before.
func (w *Worker) takeEarly(seat *pool.Place) bool {
	for n, e := range w.early {
		if e.seat.Pass(seat) {
			w.early = slices.Delete(w.early, n, n+1)
			return true
		}
	}
	return false
}

// claimFor has the slots of an instance claimed. It is granted when there is a place for it
// as well.
func (w *Worker) claimFor(ctx context.Context, p wanted) {
	claim, seat := w.claimID(p.Published), w.places.New()
	seat.Take()
	w.begin(p.Published)
	w.inLine[p.ID()] = inLine{claim: claim, class: p.class, queue: p.Queue, order: p.Order, priority: p.Priority}
	wait := w.waitLeft(p.Published, w.cfg.Client.ClaimTimeout())
	w.beside(func() { w.takeSlotted(ctx, p, claim, wait, seat) })
}

// The bounds of a turn: see [Worker.turn].
const shortTurn, longTurn = 50 * time.Millisecond, time.Second

// turn is how long an instance is left to the worker that comes first for it: one that
// has room takes it in the time that this one needs for a write, or not much more.
func (w *Worker) turn() time.Duration { return min(longTurn, max(shortTurn, 4*w.pace)) }

// inLine is a claim for an instance that stands in line, or is about to be granted.
type inLine struct {
	claim, class string
	// queue and order are where it is published.
	queue, order string
	priority     int
	// left tells that it was told to leave the line.
	left bool
}

// lines are those that stand in line and have not been told to leave it, by class, the
// least urgent first.
func (w *Worker) lines() map[string][]standing {
	lines := map[string][]standing{}
	for id, l := range w.inLine {
		if !l.left {
			lines[l.class] = append(lines[l.class], standing{id, l.priority})
		}
	}
	for _, stand := range lines {
		slices.SortFunc(stand, func(a, b standing) int {
			return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(w.inLine[b.id].order, w.inLine[a.id].order))
		})
	}
	return lines
}

// yield has an instance leave the line. It comes back when there is room in it.
func (w *Worker) yield(id store.StepID) {
	l := w.inLine[id]
	l.left = true
	w.inLine[id] = l
	w.leaveLine(l.claim)
}

// claimID is the id under which an instance's slots are claimed: always the same for one
// publication, so that its place in line is kept when the line is left for a moment; and
// in the order of the run's instances, as those stand that come to wait together.
func (w *Worker) claimID(p *step.Published) string {
	sum := sha256.Sum256([]byte(w.by.Host + "/" + w.by.Instance + "/" + p.ID().String() + "/" + strconv.FormatInt(p.Revision, 10)))
	return fmt.Sprintf("step-%07d-%s", p.Number, hex.EncodeToString(sum[:16]))
}

// skips tells whether an instance is not to be taken.
func (w *Worker) skips(p *offer) bool {
	id := p.ID()
	_, taking := w.taking[id]
	return taking || w.passed[p.Order] >= p.Revision || w.active[id] != nil || w.doubted(id) || w.canceled.runs[p.Run] > p.Revision
}

// slotsOf are what the instances of a class take of pools: their own, and one of their
// task's if that has a limit.
func (w *Worker) slotsOf(c *class) map[string]int {
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

// leaveLines has all that stand in line leave it. They keep their places for a moment.
func (w *Worker) leaveLines() {
	for _, l := range w.inLine {
		w.leaveLine(l.claim)
	}
}

// leaveGone has those leave the line that are not published any more: they were canceled,
// or somebody else has them.
func (w *Worker) leaveGone(q *queue) {
	for id, l := range w.inLine {
		if !l.left && l.queue == q.name && !q.has(l.order, w.taking[id]) {
			w.yield(id)
		}
	}
}

// leaveAgain has those leave the line once more that were to leave it: some may not have
// stood there yet when they were told.
func (w *Worker) leaveAgain() {
	for _, l := range w.inLine {
		if l.left || w.idle() {
			w.leaveLine(l.claim)
		}
	}
}

// leaveLine has one leave it. What becomes of it is told to whoever claims: it may have
// been granted just then.
func (w *Worker) leaveLine(claim string) {
	w.beside(func() { w.cfg.Client.Withdraw(context.Background(), claim) })
}

// place is what an instance that is run hangs on: room for a key, or a claim.
type place interface {
	Context() context.Context
	ValidFor() (left, grace time.Duration)
}

// takePlain takes an instance that needs no slots.
func (w *Worker) takePlain(ctx context.Context, p *step.Published, seat *pool.Place) {
	begun := time.Now()
	room, err := w.cfg.Client.ReserveKey(ctx, stepLease)
	if err != nil {
		w.tell(func() { w.notTaken(p, seat, err) })
		return
	}
	dir, err := w.folders.make(p, false)
	if err != nil {
		room.Release()
		w.tell(func() { w.notTaken(p, seat, err) })
		return
	}
	t, err := w.steps.Take(context.WithoutCancel(ctx), p, w.by, room.Lease())
	if t == nil {
		w.tell(func() {
			if !notTaken(err) && store.OutcomeUnknown(err) {
				w.doubts = append(w.doubts, &doubt{p: p, dir: dir, room: room, seat: seat})
				seat = nil
			} else {
				room.Release()
				w.folders.remove(dir)
			}
			w.notTaken(p, seat, err)
		})
		return
	}
	w.taken(&execution{w: w, t: t, dir: dir, place: room, give: room.Release, seat: seat}, begun, err)
}

// waited is how long a publication has waited for its slots here.
type waited struct {
	revision int64
	total    time.Duration
}

// waitLeft is how long a publication may wait for its slots still, of so long in all.
func (w *Worker) waitLeft(p *step.Published, most time.Duration) time.Duration {
	if before := w.waited[p.Order]; before.revision == p.Revision {
		most -= before.total
	}
	return max(0, most)
}

// noteWaited adds to how long a publication has waited.
func (w *Worker) noteWaited(p *step.Published, since, until time.Time) {
	before := w.waited[p.Order]
	if before.revision != p.Revision {
		before = waited{revision: p.Revision}
	}
	before.total += until.Sub(since)
	w.waited[p.Order] = before
}

// giveUp ends the attempt of an instance that has waited for its slots for as long as it
// may, and tells whether that was why it was not taken.
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
	w.tell(func() {
		if err != nil {
			w.notTaken(p, seat, err)
			return
		}
		w.log.Info("a step instance has waited too long for its slots", "run", p.Run, "step", p.ID().Text(), "reason", why)
		w.metrics.ended("timed_out")
		w.endTaking(p.ID())
		w.passed[p.Order] = p.Revision // the queue will tell
		w.dirty = true
	})
	return true
}

// takeSlotted takes an instance with its slots, for which it may stand in line.
func (w *Worker) takeSlotted(ctx context.Context, want wanted, id string, wait time.Duration, seat *pool.Place) {
	p := want.Published
	begun := time.Now()
	dir, err := w.folders.make(p, true)
	if err != nil {
		w.tell(func() { w.notTaken(p, seat, err) })
		return
	}
	var claim *instance.Claim
	// Only the line is left when ctx ends: what was granted is taken.
	t, err := w.steps.TakeWith(context.WithoutCancel(ctx), p, w.by, func(x store.Extra) (int64, []*pb.ResponseOp, error) {
		cl, err := w.cfg.Client.Claim(ctx, want.slots, instance.WithID(id), instance.WithPriority(p.Priority),
			instance.WithRun(p.Run, p.ID().Text()), instance.WithBind(stepBind), instance.WithWait(wait),
			instance.WithSole(p.Revision), instance.WithPlace(seat), instance.WithExtra(x))
		if err != nil {
			return 0, nil, err
		}
		claim = cl
		return cl.Fence(), cl.Extra, nil
	})
	if claim == nil && w.giveUp(context.WithoutCancel(ctx), p, seat, err) {
		w.folders.remove(dir)
		return
	}
	if claim == nil {
		w.tell(func() {
			if ctx.Err() == nil { // else the next process looks what has become of it
				w.folders.remove(dir)
			}
			w.rest(want.class, err)
			w.noteWaited(p, begun, time.Now())
			w.notTaken(p, seat, err)
		})
		return
	}
	w.taken(&execution{w: w, t: t, dir: dir, place: claim, give: func() { w.release(claim) }, seat: seat}, begun, err)
}

// release gives a claim back that is held still, beside the loop. It is released all the
// same if the worker ends meanwhile.
func (w *Worker) release(claim *instance.Claim) {
	if claim.Context().Err() != nil && claim.Err() == nil {
		return // with the end of its instance
	}
	w.beside(func() { _ = claim.Release(w.quit) })
}

// rested is how long a class is not to be tried that was refused.
type rested struct {
	until time.Time
	pause time.Duration
}

// firstRest and lastRest bound the pauses after which a class is tried again that was
// refused for a reason that has nothing to do with room, such as a pool that was deleted.
const firstRest, lastRest = time.Second, time.Minute

// rest notes what became of a try of a class.
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
	w.log.Warn("instances that need slots can't be taken, trying again", "slots", class, "pause", pause, "error", err)
}

// taken hands what was taken to the loop. If nobody can read what it is to do, it has
// failed; if etcd did not answer, it is handed back.
func (w *Worker) taken(e *execution, begun time.Time, unread error) {
	_, slotted := e.place.(*instance.Claim)
	w.metrics.took(time.Since(begun), slotted)
	w.tell(func() {
		id := e.t.StepID
		w.endTaking(id)
		if slotted && len(w.resting) > 0 {
			delete(w.resting, classOf(&e.t.Ready))
		}
		// The queue may tell of it still when it has ended.
		w.passed[e.t.Ready.Order] = e.t.Ready.Revision
		w.active[id] = e
		w.metrics.count.Store(int64(len(w.active)))
		w.dirty = true
		switch {
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
	delete(w.inLine, id)
}

// notTaken takes that an instance was not to be had, and gives its place back.
func (w *Worker) notTaken(p *step.Published, seat *pool.Place, err error) {
	seat.Give()
	id := p.ID()
	_, slotted := w.inLine[id] // told of for its class
	w.endTaking(id)
	switch {
	case notTaken(err):
		w.metrics.conflicts.Inc()
		w.passed[p.Order] = p.Revision // the queue will tell what has become of it
		w.dirty = true
	case err != nil && !isCanceled(err) && problem.CodeOf(err) != problem.Stopping && !slotted:
		w.log.Warn("an instance could not be taken, trying again", "run", id.Run, "step", id.Text(), "error", err)
	}
	// Whatever it was, it is looked at again with the next tick.
}

// isCorrupt tells that a value is there and can't be read.
func isCorrupt(err error) bool {
	var corrupt *store.CorruptError
	return errors.As(err, &corrupt)
}

// isCanceled tells that whoever stood in line has left it.
func isCanceled(err error) bool { return problem.CodeOf(err) == problem.ClaimCanceled }

// forgetPassed forgets the publications that are not in the queues any more.
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
