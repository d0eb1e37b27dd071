package berth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthhq/berth/internal/grace"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// part is something that runs in a goroutine of its own until it is stopped.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// stop ends a part and waits for it. A part that never started is stopped.
func (p *part) stop() {
	if p != nil {
		p.cancel()
		<-p.done
	}
}

// spawn runs a part. If it ends without being stopped, so does the client.
func (c *Client) spawn(name string, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := run(ctx); ctx.Err() == nil {
			c.fail(fmt.Errorf("%s ended: %w", name, err))
		}
	}()
	return p
}

// startParts runs the parts in the order in which they need each other: first
// to be the only one of the name, then to find what the process before has left,
// then to settle its writes and take over its claims, then to renew their leases.
func (c *Client) startParts(ctx context.Context, token string) error {
	c.presencePart = c.spawn("presence", c.presence.Run)
	select {
	case <-c.presence.Ready():
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return c.tooLate("the host could not be announced", c.presence.Trouble())
	}
	c.waitsFor(problem.New(problem.EtcdUnavailable, "the pools have not been read yet"))
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

// adopt has the keeper renew the leases that were left, with as many keys on
// each as were found on it: those of claims, and others.
func (c *Client) adopt(ctx context.Context, left []lease.Resumable) error {
	claims, err := c.engine.Adopted(ctx)
	if err != nil {
		return err
	}
	if err := c.adoptRooms(ctx, left); err != nil {
		return err
	}
	keys := map[store.LeaseID]int{}
	for _, cl := range claims {
		keys[cl.Lease] += cl.Keys
	}
	for _, l := range left {
		c.keeper.Adopt(l, keys[l.ID]+c.rooms.keysOn(l.ID))
	}
	if others := len(c.rooms.left); len(claims)+others > 0 {
		c.opts.Logger.Info("took over what the process before held", "claims", len(claims), "executors", others, "leases", len(left))
	}
	return nil
}

// tooLate says why Open has given up, as far as it is known.
func (c *Client) tooLate(what string, cause error) error {
	if err := etcdProblem(cause); err != cause {
		return fmt.Errorf("%s in time: %w", what, err)
	}
	return problem.New(problem.EtcdUnavailable, "%s in time: is etcd healthy?", what)
}

// waitsFor tells whoever opens the client what for that takes so long.
func (c *Client) waitsFor(why error) {
	if c.opts.OnWait == nil || c.opened.Load() {
		return
	}
	c.opts.OnWait(etcdProblem(why))
}

// fail ends the client because of an error: no claim can be trusted any more.
func (c *Client) fail(err error) {
	c.end.Do(func() {
		c.err = err
		close(c.done)
		c.opts.Logger.Error("berth has ended on this host", "error", err)
		ended := problem.New(problem.Stopping, "berth has ended on this host: %w", err)
		if c.engine != nil {
			c.engine.End(problem.New(problem.ClaimLost, "%w", ended))
		}
		c.rooms.endAll(ended)
	})
}

// Done is closed when the client can't go on by itself, or was closed; Err then
// says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the client has ended.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// closeTimeout bounds what Close does after the holders are gone.
const closeTimeout = 5 * time.Second

// Close stops the client: it takes no new claims, waits until those it holds are
// released or ctx ends, renewing all the while, then tells the holders that are
// left to stop, gives them [lease.StopGrace] and a moment more for those that are killed
// then, and revokes all leases. With rooms it does the same. It may be called once.
func (c *Client) Close(ctx context.Context) error {
	last := context.WithoutCancel(ctx)
	_ = c.engine.Stop(last)
	c.rooms.refuse(errClosing)
	c.drain(ctx)
	c.engine.End(problem.New(problem.ClaimLost, "%w", errClosing))
	c.rooms.endAll(errClosing)
	if stop := c.longestGrace(last); stop > 0 {
		stopping, cancel := context.WithTimeout(last, stop+grace.Kill)
		c.drain(stopping)
		cancel()
	}
	c.enginePart.stop()
	c.keeperPart.stop()
	c.waitersPart.stop()
	c.presencePart.stop()
	end, cancel := context.WithTimeout(last, closeTimeout)
	defer cancel()
	err := errors.Join(
		c.keeper.RevokeAll(end),
		c.waiters.RevokeAll(end),
		c.presence.Revoke(end),
		c.engine.RemoveGuard(end),
	)
	c.end.Do(func() { c.err = errClosed; close(c.done) })
	return errors.Join(err, c.disconnect())
}

// Leave stops the client at once and leaves its claims to the next process that
// opens its state directory within their leases. Here their contexts end: this
// process can't tell any more whether they are held.
func (c *Client) Leave() error {
	c.enginePart.stop()
	c.keeperPart.stop()
	c.waitersPart.stop()
	c.presencePart.stop()
	c.engine.Abandon(problem.New(problem.ClaimLost, "the claim was left to the next process of this instance"))
	c.rooms.refuse(errClosed)
	c.rooms.endAll(errClosed)
	c.end.Do(func() { c.err = errClosed; close(c.done) })
	return c.disconnect()
}

var (
	errClosing = problem.New(problem.Stopping, "berth is shutting down on this host")
	errClosed  = problem.New(problem.Stopping, "the client is closed")
)

// drainLook is how often Close looks whether claims are held still.
const drainLook = 20 * time.Millisecond

// drain waits until nothing is held, or ctx ends.
func (c *Client) drain(ctx context.Context) {
	for {
		if n, err := c.engine.Unfinished(ctx); err != nil || n+c.rooms.len() == 0 {
			return
		}
		select {
		case <-time.After(drainLook):
		case <-ctx.Done():
			return
		}
	}
}

// longestGrace is what the holders that are left get to stop, 0 if there are
// none.
func (c *Client) longestGrace(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	held, err := c.engine.Held(ctx)
	if err != nil {
		return 0
	}
	on := c.rooms.leases()
	for _, cl := range held {
		on = append(on, cl.Lease)
	}
	var longest time.Duration
	for _, id := range on {
		if w, ok := c.keeper.Trust(id); ok {
			longest = max(longest, lease.StopGrace(w.TTL))
		}
	}
	return longest
}

// abort ends what Open had started.
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

// disconnect gives up the connections and the state directory.
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

// etcdProblem makes a problem of an error of etcd, and leaves others alone.
func etcdProblem(err error) error {
	for kind, code := range map[error]problem.Code{
		store.ErrDenied:      problem.EtcdDenied,
		store.ErrNoSpace:     problem.EtcdFull,
		store.ErrUnavailable: problem.EtcdUnavailable,
	} {
		if errors.Is(err, kind) {
			return problem.New(code, "%w", err)
		}
	}
	return err
}
