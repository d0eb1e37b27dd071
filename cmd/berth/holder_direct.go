package main

import (
	"context"
	"os"
	"time"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/pool"
)

// directHolder keeps claims straight on etcd, with an instance of berth that
// lives as long as exec does.
type directHolder struct{ client *berth.Client }

func openDirect(ctx context.Context, o berth.Options) (holder, error) {
	o.Role = "exec"
	client, err := berth.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &directHolder{client}, nil
}

func (h *directHolder) lease(ctx context.Context, name string) (time.Duration, error) {
	p, err := h.client.Pool(ctx, name)
	return p.LeaseDuration, err
}

func (h *directHolder) claim(ctx context.Context, r pool.Request) (held, error) {
	claim, err := h.client.Claim(ctx, r.Slots,
		berth.WithID(r.ID), berth.WithPriority(r.Priority), berth.WithWait(r.Wait),
		berth.WithRun(r.Holder.Run, r.Holder.Step), berth.WithLabels(r.Holder.Labels),
		berth.WithPID(os.Getpid()))
	if err != nil {
		return nil, err
	}
	return &directHeld{claim}, nil
}

func (h *directHolder) why(ctx context.Context, id string) (pool.Reason, error) {
	w, err := h.client.Why(ctx, id)
	return w.Reason, err
}

// close ends the instance. If the slots could not be given back, it is left
// alone: they are free when its leases end, and nothing is gained by waiting for
// an etcd that does not answer.
func (h *directHolder) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	if claims, err := h.client.Held(ctx); err != nil || len(claims) > 0 {
		return h.client.Leave()
	}
	return h.client.Close(ctx)
}

type directHeld struct{ *berth.Claim }

func (c *directHeld) fence() int64                       { return c.Fence() }
func (c *directHeld) trust() (left, grace time.Duration) { return c.Trust() }

// refresh has nothing to learn: whoever renews the claim stood still as well.
func (c *directHeld) refresh(context.Context) {}

func (c *directHeld) ended() <-chan struct{} { return c.Context().Done() }
func (c *directHeld) err() error             { return c.Err() }

// whyKilled knows of nobody: exec alone stops what it runs.
func (c *directHeld) whyKilled() error { return nil }

// bind has nothing to do: the claim lives as long as this process.
func (c *directHeld) bind(context.Context, int) error { return nil }

func (c *directHeld) release(ctx context.Context) error { return c.Release(ctx) }
