package sidecar

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/server"
)

// waits are the requests for claims that have neither been refused nor got a
// holder. They can be ended by the claim's id, or all at once.
type waits struct {
	tasks sync.WaitGroup // waits without a connection

	// mu guards what follows.
	mu      sync.Mutex
	byID    map[string][]*wait
	stopped error // why no more may wait; nil while they may

	// waiting bounds the claims that wait with a connection, background those without.
	waiting, background *server.Limiter
}

// wait is one such request.
type wait struct {
	id     string
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when it has left
	cause  error         // why it was ended from here; guarded by mu of waits
	wanted *wanted       // what it is for; nil if that is no claim of a client

	// async means that it is of a request without a connection, or checks whether the claim of such
	// a request fits. Background means the former.
	async, background bool
	// What has become of a wait in the background once it is over.
	holder *claims.Holder
	err    error
}

const (
	// maxWaiting bounds the claims that wait with a connection: each takes some 40 KB, with its
	// connection, and a file descriptor of both sides. One identity has half of them.
	maxWaiting = 4096
	// maxAsync bounds the waits without a connection, of which each takes some 13 KB. One
	// identity has half of them.
	maxAsync = 10_000
)

// newWaits returns waits of which there is none; m is nil to count no refusals.
func newWaits(m *server.Metrics) *waits {
	limit := func(what, todo string, most int) *server.Limiter {
		return server.NewLimiter(server.LimiterConfig{
			Bound: "waiting_claims", What: what, Todo: todo, Total: most, Each: most / 2, Metrics: m,
		})
	}
	return &waits{
		byID:       map[string][]*wait{},
		waiting:    limit("requests for claims", "try again later, or with Prefer: "+respondAsync, maxWaiting),
		background: limit("claims that wait without a connection", "try again later, or wait for the answer", maxAsync),
	}
}

// enter begins a wait under a context that it may end, until leave. It is for a claim that a
// client wants, or nil.
func (w *waits) enter(ctx context.Context, id string, wanted *wanted) (context.Context, *wait, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.add(ctx, id, wanted)
}

func (w *waits) add(ctx context.Context, id string, wanted *wanted) (context.Context, *wait, error) {
	if w.stopped != nil {
		return nil, nil, w.stopped
	}
	ctx, cancel := context.WithCancelCause(ctx)
	one := &wait{id: id, wanted: wanted, cancel: cancel, over: make(chan struct{})}
	w.byID[id] = append(w.byID[id], one)
	return ctx, one, nil
}

// waitersOf returns as how many a claim that waits counts: each of its pools has its waiter.
func waitersOf(request *wanted) int { return max(1, len(request.Pools)) }

// enterAsync returns the wait without a connection for a claim. If there is none, it begins
// one, which goes on until serve, called in the background, has left it: first is then true.
// Check is a wait of the request itself, while ctx lasts: it must leave too.
func (w *waits) enterAsync(ctx context.Context, request *wanted, serve func(context.Context, *wait)) (checking context.Context, check, one *wait, first bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one = w.backgroundOf(request); one != nil {
		if !one.wanted.same(request) {
			return nil, nil, nil, false, problem.New(problem.IDInUse, "claim id %q is used by another claim: use another id", request.ID)
		}
		if one.cause != nil {
			return nil, nil, nil, false, one.cause
		}
	}
	if w.stopped != nil {
		return nil, nil, nil, false, w.stopped
	}
	var leave func()
	if one == nil {
		if leave, err = w.background.EnterAs(server.KeyOf(ctx), waitersOf(request)); err != nil {
			return nil, nil, nil, false, err
		}
	}
	if checking, check, err = w.add(ctx, request.ID, request); err != nil {
		return nil, nil, nil, false, err
	}
	check.async = true
	if one != nil {
		return checking, check, one, false, nil
	}
	serving, one, err := w.add(trace.Detach(context.Background(), ctx), request.ID, request)
	if err != nil {
		return nil, nil, nil, false, err
	}
	one.async, one.background = true, true
	w.tasks.Go(func() {
		defer leave()
		serve(serving, one)
	})
	return checking, check, one, true, nil
}

// backgroundOf returns the wait without a connection of the owner of a request, with the same id; nil
// if there is none. Another owner's does not count: the engine decides whose the id is.
func (w *waits) backgroundOf(request *wanted) *wait {
	for _, one := range w.byID[request.ID] {
		if one.background && one.wanted.sameOwner(request) {
			return one
		}
	}
	return nil
}

// connected reports whether a request of the same owner waits for a claim with a connection. Alone
// reports whether no other request waits for the id.
func (w *waits) connected(of *wait) (connected, alone bool) {
	alone = true
	for _, one := range w.of(of.id) {
		switch own := one.wanted != nil && one.wanted.sameOwner(of.wanted); {
		case one.async && own:
		case own:
			connected = true
		default:
			alone = false
		}
	}
	return connected, alone && !connected
}

// asyncOf returns the wait without a connection for a claim about which a caller may ask, its own
// before any other; nil if there is none.
func (w *waits) asyncOf(c claims.Caller, id string) *wait {
	var found *wait
	for _, one := range w.of(id) {
		if !one.background || one.check(c) != nil {
			continue
		}
		if one.ownedBy(c) {
			return one
		}
		found = one
	}
	return found
}

// ended returns why a wait was ended from here; nil if it was not.
func (w *waits) ended(one *wait) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return one.cause
}

// leave ends a wait of which all is done.
func (w *waits) leave(one *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.byID[one.id], func(x *wait) bool { return x == one })
	if w.byID[one.id] = all; len(all) == 0 {
		delete(w.byID, one.id)
	}
	one.cancel(context.Canceled)
	close(one.over)
}

// of returns the waits for one claim.
func (w *waits) of(id string) []*wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.byID[id])
}

// end ends one wait.
func (w *waits) end(one *wait, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.end(cause)
}

func (one *wait) end(cause error) {
	if one.cause == nil {
		one.cause = cause
		one.cancel(cause)
	}
}

// check returns why a caller may not ask for something about a wait.
func (one *wait) check(c claims.Caller) error {
	if one.wanted == nil {
		return c.Check(pool.Holder{}, nil)
	}
	return c.Check(one.wanted.holder(), one.wanted.Pools)
}

// ownedBy reports whether a caller has made the request that waits.
func (one *wait) ownedBy(c claims.Caller) bool {
	return one.wanted != nil && c.Owns(one.wanted.holder())
}

// owned reports whether a request of a caller waits for a claim.
func (w *waits) owned(c claims.Caller, id string) bool {
	return slices.ContainsFunc(w.of(id), func(one *wait) bool { return one.ownedBy(c) })
}

// askedBy returns the waits for one claim about which a caller may ask, or why it may not if there
// are only others.
func (w *waits) askedBy(c claims.Caller, id string) (may []*wait, refused error) {
	for _, one := range w.of(id) {
		if err := one.check(c); err != nil {
			refused = err
			continue
		}
		may = append(may, one)
	}
	if len(may) > 0 {
		return may, nil
	}
	return nil, refused
}

// endID ends those for one claim that the caller may end, and returns when they have left, or ctx
// has ended. It reports whether there were any; if there are only others, refused says why the
// caller may not end them. What was granted meanwhile is released, or has a holder.
func (w *waits) endID(ctx context.Context, c claims.Caller, id string, cause error) (ended bool, refused, err error) {
	all, refused := w.askedBy(c, id)
	for _, one := range all {
		w.end(one, cause)
	}
	for _, one := range all {
		select {
		case <-one.over:
		case <-ctx.Done():
			return true, nil, context.Cause(ctx)
		}
	}
	return len(all) > 0, refused, nil
}

// stop ends all, and lets no more in.
func (w *waits) stop(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = cause
	for _, all := range w.byID {
		for _, one := range all {
			one.end(cause)
		}
	}
}

// asyncStop bounds the time that a stop gives to waits without a connection, of which one
// may have been granted its claim just now, and releases it.
const asyncStop = 2 * time.Second

// await waits until the waits without a connection have left, for asyncStop at most.
func (w *waits) await() {
	left := make(chan struct{})
	go func() {
		w.tasks.Wait()
		close(left)
	}()
	select {
	case <-left:
	case <-time.After(asyncStop):
	}
}

// asyncCheck bounds the time in which an asynchronous request learns whether its claim is
// granted at once.
const asyncCheck = time.Second

// claimAsync answers POST /v1/claims of a client that does not wait. The claim waits in the
// background, and a request that does not wait says whether it fits now.
func (a *apiServer) claimAsync(ctx context.Context, s *session, w *wanted, begun time.Time) (*claimOutput, error) {
	limited, cancel := context.WithTimeout(ctx, asyncCheck)
	defer cancel()
	checking, check, one, first, err := a.waits.enterAsync(limited, w, func(ctx context.Context, one *wait) { a.waitAsync(ctx, s, one) })
	if !first {
		w.proc.Close()
	}
	if err != nil {
		return nil, err
	}
	// Who releases the claim waits for the check too: it may have been granted the claim.
	defer a.waits.leave(check)
	claim, err := s.client.Claim(checking, instance.Slots(w.Pools), append(w.options(), instance.WithWait(0))...)
	switch code := problem.CodeOf(err); {
	case err == nil:
		if <-one.over; one.holder == nil { // withdrawn, or refused, meanwhile
			_ = claim.Release(context.WithoutCancel(ctx)) // at its end there is the lease
		}
	case a.waits.ended(check) != nil: // released, or stopped, and so is the wait
		<-one.over
	case code == problem.NoCapacity, checking.Err() != nil, code.Status() == http.StatusServiceUnavailable && code != problem.Stopping:
		// It waits, also for etcd.
	case first:
		a.waits.end(one, err)
		<-one.over
		return nil, err
	default:
		return nil, err
	}
	out := &claimOutput{Status: http.StatusAccepted, Location: api.ClaimsPath + "/" + url.PathEscape(w.ID), Applied: respondAsync}
	select {
	case <-one.over:
		if one.err != nil {
			return nil, one.err
		}
		out.Status, out.Body = http.StatusCreated, heldClaim(s.holders.View(one.holder), begun)
	default:
		var e *problem.Error
		why := pool.Reason{}
		if errors.As(err, &e) {
			why, _ = e.Detail.(pool.Reason)
		}
		out.Body = s.waitingClaim(ctx, w, why)
	}
	if !w.named {
		a.ifUnread(ctx, func() { a.withdrawUnread(s, one) })
	}
	return out, nil
}

// waitAsync waits for a claim without a connection. What becomes of it is kept for its
// client; no answer has to be read for it to be held, so the ttl ends it if the client does
// not come.
func (a *apiServer) waitAsync(ctx context.Context, s *session, one *wait) {
	s.holders.Expect(one.id, one.wanted.holder())
	one.holder, one.err = a.hold(ctx, s, one.wanted, one)
	// If another request of the same owner waits, it is answered.
	if connected, alone := a.waits.connected(one); one.err != nil && !connected {
		s.holders.Refused(one.id, one.wanted.holder(), one.wanted.Pools, problem.Of(one.err), alone)
	}
	a.waits.leave(one)
	if one.holder != nil && !one.wanted.named && a.waits.ended(one) != nil {
		s.holders.Unread(one.holder, false)
	}
}

// withdrawUnread ends the wait for a claim, or releases the claim, whose client does not know
// its id.
func (a *apiServer) withdrawUnread(s *session, one *wait) {
	a.waits.end(one, problem.New(problem.ClaimCanceled, "claim %q was withdrawn: its client has not read its id", one.id))
	select {
	case <-one.over:
		if one.holder != nil {
			s.holders.Unread(one.holder, false)
		}
	default: // waitAsync sees it
	}
}

// waitingClaim returns the claim of a request that waits. Why is the reason if it is known already:
// reading it takes time in proportion to the number of waiters.
func (s *session) waitingClaim(ctx context.Context, w *wanted, why pool.Reason) api.Claim {
	if why.Text == "" {
		seen, err := s.client.Why(ctx, s.client.Host()+"/"+s.client.Instance()+"/"+w.ID)
		if err == nil && seen.Waiter != nil {
			return inspect.WaitingClaimOf(*seen.Waiter)
		}
	}
	c := api.Claim{
		ID: w.ID, Status: api.ClaimWaiting, Pools: w.Pools, Priority: w.Priority,
		QueuedAt: why.Since.Truncate(time.Millisecond), Position: why.Position, Reason: why.Text,
	}
	c.SetHolder(pool.Holder{
		Host: s.client.Host(), Instance: s.client.Instance(), ClaimedBy: w.by, Run: w.RunID, Step: w.StepKey, PID: w.PID, Labels: w.Labels,
	})
	return c
}

// parseWait reads how long a request waits: usual if the parameter was left out, and at most
// so long.
func parseWait(text string, usual, most time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 || wait > most {
		return 0, problem.Field("wait", "%s is no time to wait: use 0s to %s, as in 2s", problem.Quote(text), api.Duration(most))
	}
	return wait, nil
}
