package instance_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/pool"
)

// spans are what a test has recorded.
type spans struct{ *tracetest.InMemoryExporter }

// recorded returns a context with a span, and what is recorded of it.
func recorded(t *testing.T) (context.Context, spans) {
	t.Helper()
	all := spans{tracetest.NewInMemoryExporter()}
	p := sdk.NewTracerProvider(sdk.WithSyncer(all))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	ctx, span := trace.New(p).Start(t.Context(), "test", trace.Internal)
	t.Cleanup(func() { span.End(nil) })
	return ctx, all
}

// named returns the spans with a name, in the order of their ends.
func (s spans) named(name string) []tracetest.SpanStub {
	return slices.DeleteFunc(slices.Clone(s.GetSpans()), func(one tracetest.SpanStub) bool { return one.Name != name })
}

func (s spans) only(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	all := s.named(name)
	if len(all) != 1 {
		t.Fatalf("there are %d spans %s, want 1", len(all), name)
	}
	return all[0]
}

func attr(s tracetest.SpanStub, key string) attribute.Value {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

func TestAClaimHasSpansOfItsWaitAndItsGrant(t *testing.T) {
	c := open(t, embedtest.New(t))
	defer c.Leave()
	setPool(t, c, "db", 1, time.Minute)
	first, err := c.Claim(t.Context(), instance.Slots{"db": 1})
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, all := recorded(t)
	type result struct {
		claim *instance.Claim
		err   error
	}
	done := make(chan result, 1)
	go func() {
		claim, err := c.Claim(ctx, instance.Slots{"db": 1}, instance.WithID("second"), instance.WithPriority(7), instance.WithWait(time.Minute))
		done <- result{claim, err}
	}()
	waits(t, events, "second")
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	if err := got.claim.Release(ctx); err != nil {
		t.Fatal(err)
	}

	claim, wait, grant, release := all.only(t, "berth.claim"), all.only(t, "berth.wait"), all.only(t, "berth.grant"), all.only(t, "berth.release")
	of := claim.SpanContext
	if wait.Parent.SpanID() != of.SpanID() || wait.SpanContext.TraceID() != of.TraceID() {
		t.Error("the wait is no child of the claim")
	}
	if grant.Parent.IsValid() || grant.SpanContext.TraceID() == of.TraceID() {
		t.Error("the transaction is a child of the claim, but others could be in it")
	}
	if len(grant.Links) != 1 || grant.Links[0].SpanContext.SpanID() != of.SpanID() {
		t.Errorf("the transaction refers to %v", grant.Links)
	}
	if len(claim.Links) != 1 || claim.Links[0].SpanContext.SpanID() != grant.SpanContext.SpanID() {
		t.Errorf("the claim refers to %v", claim.Links)
	}
	if release.Parent.SpanID() != claim.Parent.SpanID() || attr(release, "berth.claim.id").AsString() != "second" {
		t.Error("the release is no child of the span of its context")
	}
	if attr(claim, "berth.claim.id").AsString() != "second" || attr(claim, "berth.priority").AsInt64() != 7 ||
		!slices.Equal(attr(claim, "berth.pools").AsStringSlice(), []string{"db"}) || !slices.Equal(attr(claim, "berth.slots").AsInt64Slice(), []int64{1}) ||
		attr(claim, "berth.wait.limit").AsFloat64() != 60 || attr(claim, "berth.fence").AsInt64() != int64(got.claim.Fence()) {
		t.Errorf("the attributes of the claim are %v", claim.Attributes)
	}
	if waited := attr(claim, "berth.wait").AsFloat64(); waited <= 0 || waited > claim.EndTime.Sub(claim.StartTime).Seconds() {
		t.Errorf("it has waited %v s", waited)
	}
	if attr(grant, "berth.grants").AsInt64() != 1 || attr(grant, "berth.revision").AsInt64() <= 0 || grant.EndTime.Before(grant.StartTime) {
		t.Errorf("the attributes of the transaction are %v", grant.Attributes)
	}
	if wait.StartTime.Before(claim.StartTime) || grant.EndTime.After(wait.EndTime) {
		t.Error("the wait did not begin in the claim, or ended before its grant")
	}
}

func TestARefusedClaimHasAFailedSpan(t *testing.T) {
	c := open(t, embedtest.New(t))
	defer c.Leave()
	ctx, all := recorded(t)
	if _, err := c.Claim(ctx, instance.Slots{"none": 1}); err == nil {
		t.Fatal("a claim of a pool that does not exist was granted")
	}
	claim := all.only(t, "berth.claim")
	if attr(claim, "error.type").AsString() != "pool_not_found" || claim.Status.Description == "" {
		t.Errorf("its span is %+v", claim)
	}
	if n := len(all.named("berth.grant")) + len(all.named("berth.wait")); n > 0 {
		t.Errorf("it has %d spans of a wait or a grant", n)
	}
}

// waits returns when the event says that a claim waits in the queue. Lists show a claim before
// that: from when it is requested.
func waits(t *testing.T, events <-chan pool.Event, id string) {
	t.Helper()
	for e := range events {
		if e.Type == pool.ClaimWaiting && e.Claim == id {
			return
		}
	}
	t.Fatal("it does not wait")
}

// BenchmarkClaim measures claims of one client, without a trace and with one.
func BenchmarkClaim(b *testing.B) {
	c, err := instance.Open(b.Context(), instance.Options{Endpoints: []string{embedtest.New(b).Endpoint()}, Host: "one"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Leave()
	limit := 100
	if _, err := c.SetPool(b.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		b.Fatal(err)
	}
	p := sdk.NewTracerProvider()
	defer func() { _ = p.Shutdown(context.Background()) }()
	on, _ := trace.New(p).Start(b.Context(), "bench", trace.Internal)
	for name, ctx := range map[string]context.Context{"off": b.Context(), "on": on} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				claim, err := c.Claim(ctx, instance.Slots{"db": 1})
				if err == nil {
					err = claim.Release(ctx)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
