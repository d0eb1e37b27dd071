package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// part is a component that runs in its own goroutine until it is stopped.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// stop stops a part and waits for it to return. It does nothing for a part that never
// started.
func (p *part) stop() {
	if p != nil {
		p.cancel()
		<-p.done
	}
}

// spawn runs a part. If it returns without being stopped, the client ends too.
func (c *Client) spawn(name string, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		switch err := run(ctx); {
		case ctx.Err() != nil:
		case problem.CodeOf(err) == problem.Internal:
			c.fail(fmt.Errorf("%s ended: %w", name, err))
		default:
			c.fail(err) // it says what happened
		}
	}()
	return p
}

// startParts starts the parts in the order of their dependencies: the presence key makes
// this process the only one of its name, then the leases of the previous process are
// listed, its pending writes resolved, its claims adopted, and its leases renewed.
func (c *Client) startParts(ctx context.Context, token string) error {
	c.presencePart = c.spawn("presence", c.presence.Run)
	select {
	case <-c.presence.Ready():
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return c.tooLate("the host could not be announced", c.presence.Trouble())
	}
	c.notifyWait(problem.New(problem.EtcdUnavailable, "the pools have not been read yet"))
	var left []lease.Resumable
	if token != "" && c.state != nil {
		var err error
		if left, err = lease.Resume(ctx, c.backend, c.clock, c.keys, c.opts.Host, c.opts.Instance, token); err != nil {
			return etcdProblem(err)
		}
		ids := make([]store.LeaseID, len(left))
		for i, l := range left {
			ids[i] = l.ID
		}
		c.engine.Adopt(ids...)
	}
	c.enginePart = c.spawn("engine", c.engine.Run)
	if err := c.engine.Ready(ctx); err != nil {
		return c.tooLate("the pools could not be read", cmp.Or(c.engine.Trouble(), err))
	}
	if err := c.adopt(ctx, left); err != nil {
		return err
	}
	c.keeperPart = c.spawn("keeper", c.keeper.Run)
	c.waitersPart = c.spawn("keeper of waiters", c.waiters.Run)
	return nil
}

// adopt makes the keeper renew the leases of the previous process. Each counts the keys
// that were found on it: those of claims, and key reservations.
func (c *Client) adopt(ctx context.Context, left []lease.Resumable) error {
	claims, err := c.engine.Adopted(ctx)
	if err != nil {
		return err
	}
	if err := c.adoptReservations(ctx, left); err != nil {
		return err
	}
	keys := map[store.LeaseID]int{}
	for _, cl := range claims {
		keys[cl.Lease] += cl.Keys
	}
	for _, l := range left {
		c.keeper.Adopt(l, keys[l.ID]+c.reservations.keysOn(l.ID))
	}
	if others := len(c.reservations.adopted); len(claims)+others > 0 {
		c.opts.Logger.Info("took over the claims of the previous process", "claims", len(claims), "executors", others, "leases", len(left))
	}
	return nil
}

// tooLate returns the error of a wait that timed out, with its cause if that is known.
func (c *Client) tooLate(what string, cause error) error {
	if err := etcdProblem(cause); err != cause {
		return fmt.Errorf("%s in time: %w", what, err)
	}
	return problem.New(problem.EtcdUnavailable, "%s in time: is etcd healthy?", what)
}

// notifyWait calls OnWait with the reason why Open does not return yet.
func (c *Client) notifyWait(why error) {
	if c.opts.OnWait == nil || c.opened.Load() {
		return
	}
	c.opts.OnWait(etcdProblem(why))
}

// fail ends the client because of an error. All claims lose their validity.
func (c *Client) fail(err error) {
	c.end.Do(func() {
		c.err = err
		close(c.done)
		if c.opened.Load() { // else it is the error of Open
			c.opts.Logger.Error("berth has ended on this host", "error", err)
		}
		ended := problem.New(problem.Stopping, "berth has ended on this host: %w", err)
		if c.engine != nil {
			c.engine.End(problem.New(problem.ClaimLost, "%w", ended))
		}
		c.reservations.endAll(ended)
	})
}

// Done returns a channel that is closed when the client has failed or was closed.
// [Client.Err] then returns the cause.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the client has ended, or nil while it runs.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// closeTimeout limits what Close does after all holders have stopped.
const closeTimeout = 5 * time.Second

// Close stops the client. It refuses new claims and waits until those it holds are
// released or ctx ends, and renews leases all the while. Then it cancels the contexts of
// the remaining claims, waits for [lease.StopGrace] and for processes that are killed
// after it, and revokes all leases. Only those of supervised claims whose holders have not
// stopped run out by themselves. It treats key reservations the same way. It may be called
// once.
func (c *Client) Close(ctx context.Context) error {
	last := context.WithoutCancel(ctx)
	_ = c.engine.Stop(last)
	c.reservations.refuse(errClosing)
	c.drain(ctx)
	c.engine.End(problem.New(problem.ClaimLost, "%w", errClosing))
	c.reservations.endAll(errClosing)
	stopping, stopped := context.WithTimeout(last, c.longestGrace(last)+grace.Kill)
	c.drain(stopping) // also of the claims that are being released already
	stopped()
	kept := c.unstopped(last)
	c.enginePart.stop()
	c.keeperPart.stop()
	c.waitersPart.stop()
	c.presencePart.stop()
	end, cancel := context.WithTimeout(last, closeTimeout)
	defer cancel()
	err := c.unended(
		c.keeper.RevokeAll(end, kept...),
		c.waiters.RevokeAll(end),
		c.presence.Revoke(end),
		c.engine.RemoveGuard(end),
	)
	c.end.Do(func() { c.err = errClosed; close(c.done) })
	return errors.Join(err, c.disconnect())
}

// unended says in one line, with the first of the errors, what remains if leases could not be revoked. It returns nil
// without errors.
func (c *Client) unended(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	until := "its leases end"
	if c.opts.StateDir != "" {
		until += ", or the next process with its state directory takes it over"
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return problem.New(problem.CodeOf(store.Problem("", err)), "this process has ended, and what it held stays held until %s: %s", until, first)
}

// Leave stops the client at once. Its claims stay for the next process that opens the
// state directory before their leases end. The contexts of the claims end, because this
// process can no longer tell whether they are held.
func (c *Client) Leave() error {
	c.enginePart.stop()
	c.keeperPart.stop()
	c.waitersPart.stop()
	c.presencePart.stop()
	c.engine.Abandon(problem.New(problem.ClaimLost, "the client has left the claim to the next process of this instance"))
	c.reservations.refuse(errClosed)
	c.reservations.endAll(errClosed)
	c.end.Do(func() { c.err = errClosed; close(c.done) })
	return c.disconnect()
}

var (
	errClosing = problem.New(problem.Stopping, "berth is shutting down on this host")
	errClosed  = problem.New(problem.Stopping, "the client is closed")
)

// drainPoll is how often Close checks whether claims are still held.
const drainPoll = 20 * time.Millisecond

// drain waits until nothing is held, or ctx ends.
func (c *Client) drain(ctx context.Context) {
	for {
		if n, err := c.engine.Unfinished(ctx); err != nil || n+c.reservations.len() == 0 {
			return
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return
		}
	}
}

// longestGrace returns the longest time that one of the remaining holders may take to
// stop, 0 if there are none.
func (c *Client) longestGrace(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	held, err := c.engine.Held(ctx)
	if err != nil {
		return 0
	}
	on := c.reservations.leases()
	for _, cl := range held {
		on = append(on, cl.Lease)
	}
	var longest time.Duration
	for _, id := range on {
		if w, ok := c.keeper.Validity(id); ok {
			longest = max(longest, lease.StopGrace(w.TTL))
		}
	}
	return longest
}

// unstopped returns the leases of claims whose holders are known to run still.
func (c *Client) unstopped(ctx context.Context) (leases []store.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	held, _ := c.engine.Held(ctx) // it answers at once, unless it has ended
	for _, cl := range held {
		if cl.Supervised() {
			c.opts.Logger.Warn("the process of a claim could not be stopped; its slots stay claimed until the lease ends", "claim", cl.ID)
			leases = append(leases, cl.Lease)
		}
	}
	return leases
}

// abort stops the parts that Open has started.
func (c *Client) abort() {
	c.enginePart.stop()
	c.keeperPart.stop()
	c.waitersPart.stop()
	c.presencePart.stop()
	if c.presence != nil {
		end, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = c.presence.Revoke(end)
	}
}

// disconnect closes the connections and the state directory.
func (c *Client) disconnect() error {
	var err error
	c.metrics.end()
	if c.backend != nil {
		err = c.backend.Close()
	}
	if c.state != nil {
		err = errors.Join(err, c.state.Close())
	}
	return err
}

// etcdProblem adds the problem code to an error of etcd, and returns other errors
// unchanged.
func etcdProblem(err error) error {
	for kind, code := range map[error]problem.Code{
		store.ErrDenied:      problem.EtcdDenied,
		store.ErrInsecure:    problem.EtcdDenied,
		store.ErrNoSpace:     problem.EtcdFull,
		store.ErrUnavailable: problem.EtcdUnavailable,
		// What was read before is void. The next try is in one cluster.
		store.ErrOtherCluster: problem.EtcdUnavailable,
	} {
		if errors.Is(err, kind) {
			return problem.New(code, "%w", err)
		}
	}
	return err
}
