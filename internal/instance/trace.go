package instance

import (
	"context"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
)

// The names of spans: see docs/how-to/tracing.md.
const (
	spanClaim   = "berth.claim"
	spanWait    = "berth.wait"
	spanGrant   = "berth.grant"
	spanRelease = "berth.release"
)

// observer records the spans of a request for a claim.
type observer struct {
	claim trace.Span
	begun time.Time

	// mu guards what follows.
	mu    sync.Mutex
	wait  trace.Span
	ended bool
}

// observe returns the observer of a request, whose span is the claim's.
func observe(span trace.Span, r *pool.Request) *observer {
	span.Set(trace.Slots(r.Slots)...)
	span.Set(trace.String("berth.claim.id", r.ID), trace.Int("berth.priority", r.Priority), trace.Seconds("berth.wait.limit", r.Wait))
	if r.Holder.Run != "" {
		span.Set(trace.String("berth.run.id", r.Holder.Run))
	}
	if r.Holder.Step != "" {
		span.Set(trace.String("berth.step", r.Holder.Step))
	}
	return &observer{claim: span, begun: time.Now()}
}

// Waits starts the span of the wait.
func (o *observer) Waits(since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended && !o.wait.Recorded() {
		o.wait = o.claim.Child(spanWait, since)
	}
}

// Written records the transaction. It is no part of any claim's trace, since it can grant many:
// it and the claims refer to each other.
func (o *observer) Written(w pool.Write) {
	claims := make([]trace.Span, len(w.Observers))
	for i, other := range w.Observers {
		claims[i] = other.(*observer).claim
	}
	span := o.claim.Root(spanGrant, w.Sent, claims)
	span.Set(trace.Int("berth.grants", w.Grants), trace.Int("berth.releases", w.Releases), trace.Int("berth.revision", w.Revision))
	span.EndAt(w.Answered)
	for _, c := range claims {
		c.Link(span)
	}
}

// end ends the spans with the answer to the request.
func (o *observer) end(cl *pool.Claim, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.wait.End(err)
	if cl != nil {
		o.claim.Set(trace.Int("berth.fence", int64(cl.Fence)))
	}
	o.claim.Set(trace.Seconds("berth.wait", time.Since(o.begun)))
	o.claim.End(err)
}

// claim has the engine carry out a request, with its spans if ctx has one that is recorded.
func (c *Client) claim(ctx context.Context, r *pool.Request) (*pool.Claim, error) {
	ctx, span := trace.Start(ctx, spanClaim)
	if !span.Recorded() {
		return c.engine.Claim(ctx, r)
	}
	o := observe(span, r)
	r.Observer = o
	cl, err := c.engine.Claim(ctx, r)
	o.end(cl, err)
	return cl, err
}

// releasing starts the span of a release.
func (cl *Claim) releasing(ctx context.Context) (context.Context, trace.Span) {
	ctx, span := trace.Start(ctx, spanRelease)
	if span.Recorded() {
		span.Set(trace.Slots(cl.Slots)...)
		span.Set(trace.String("berth.claim.id", cl.ID), trace.Int("berth.fence", int64(cl.Fence())))
	}
	return ctx, span
}
