// Package trace creates the spans of berth, and passes trace contexts on. Only this package and its
// subpackage otlp import OpenTelemetry.
//
// A span belongs to a context. [Tracer.Start] starts a span that can be the first one of its
// process. [Start] starts a child of the span in a context, with the provider of that span. So
// [Start] records nothing unless the context has a recorded span, and there is no global state.
// Without a span, nothing in this package allocates.
//
// A [Parent] is a W3C trace context as text: in the headers of a request, in the environment of a
// command, or in the record of a run. It is passed on whether or not this process creates spans.
package trace

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/berthhq/berth/internal/problem"
)

// scope is the instrumentation scope of all spans.
const scope = "github.com/berthhq/berth"

// Tracer starts spans. A nil tracer starts none.
type Tracer struct{ provider trace.TracerProvider }

// New returns a tracer that creates spans with a provider.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p} }

// Kind is the role of a span in a request.
type Kind = trace.SpanKind

// Kinds of spans.
const (
	Internal = trace.SpanKindInternal
	Server   = trace.SpanKindServer
	Client   = trace.SpanKindClient
)

// Attr is an attribute of a span.
type Attr = attribute.KeyValue

// String returns an attribute with a text.
func String(key, value string) Attr { return attribute.String(key, value) }

// Int returns an attribute with a number.
func Int[N int | int64](key string, value N) Attr { return attribute.Int64(key, int64(value)) }

// Bool returns an attribute with a boolean.
func Bool(key string, value bool) Attr { return attribute.Bool(key, value) }

// Seconds returns an attribute with a duration in seconds.
func Seconds(key string, d time.Duration) Attr { return attribute.Float64(key, d.Seconds()) }

// Slots returns two attributes for the slots of a claim: the names of the pools, sorted, and the
// number of slots in each pool, in the same order.
func Slots(slots map[string]int) []Attr {
	names := slices.Sorted(maps.Keys(slots))
	counts := make([]int, len(names))
	for i, name := range names {
		counts[i] = slots[name]
	}
	return []Attr{attribute.StringSlice("berth.pools", names), attribute.IntSlice("berth.slots", counts)}
}

// Span is a span. The methods of its zero value do nothing.
type Span struct{ span trace.Span }

// Start starts a span. If ctx has a span, from this or another process, the new span is its child.
// A nil tracer returns ctx and the zero span.
func (t *Tracer) Start(ctx context.Context, name string, kind Kind) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	return begin(ctx, t.provider, name, trace.WithSpanKind(kind))
}

// StartAt is [Tracer.Start] for a span of kind [Internal] that began at an earlier time.
func (t *Tracer) StartAt(ctx context.Context, name string, at time.Time) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	return begin(ctx, t.provider, name, trace.WithTimestamp(at))
}

// Start starts a child of the span in ctx, if this process records that span, and returns a context
// with the child. Otherwise it returns ctx and the zero span.
func Start(ctx context.Context, name string) (context.Context, Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.SpanContext().IsSampled() {
		return ctx, Span{}
	}
	return begin(ctx, parent.TracerProvider(), name)
}

func begin(ctx context.Context, by trace.TracerProvider, name string, opts ...trace.SpanStartOption) (context.Context, Span) {
	with, span := by.Tracer(scope).Start(ctx, name, opts...)
	if !span.IsRecording() { // the context still passes on that the trace is not sampled
		return with, Span{}
	}
	return with, Span{span}
}

// Recorded reports whether the span is recorded. If not, callers need not create attributes.
func (s Span) Recorded() bool { return s.span != nil }

// Set sets attributes of the span.
func (s Span) Set(attrs ...Attr) {
	if s.span != nil {
		s.span.SetAttributes(attrs...)
	}
}

// Link adds a link to another span.
func (s Span) Link(to Span) {
	if s.span != nil && to.span != nil {
		s.span.AddLink(trace.Link{SpanContext: to.span.SpanContext()})
	}
}

// LinkTo adds a link to the span in a context.
func (s Span) LinkTo(ctx context.Context) {
	if of := trace.SpanContextFromContext(ctx); s.span != nil && of.IsValid() {
		s.span.AddLink(trace.Link{SpanContext: of})
	}
}

// Child starts a child that began at an earlier time.
func (s Span) Child(name string, at time.Time) Span {
	if s.span == nil {
		return Span{}
	}
	_, child := begin(trace.ContextWithSpan(context.Background(), s.span), s.span.TracerProvider(), name, trace.WithTimestamp(at))
	return child
}

// Root starts a new trace with a span that began at an earlier time, with the provider of s. The
// span has links to the given spans.
func (s Span) Root(name string, at time.Time, links []Span) Span {
	if s.span == nil {
		return Span{}
	}
	to := make([]trace.Link, 0, len(links))
	for _, l := range links {
		to = append(to, trace.Link{SpanContext: l.span.SpanContext()})
	}
	_, root := begin(context.Background(), s.span.TracerProvider(), name,
		trace.WithNewRoot(), trace.WithTimestamp(at), trace.WithSpanKind(Client), trace.WithLinks(to...))
	return root
}

// Rename changes the name of the span.
func (s Span) Rename(name string) {
	if s.span != nil {
		s.span.SetName(name)
	}
}

// Fail marks the span as failed, with a reason.
func (s Span) Fail(why string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, why)
	}
}

// End ends the span. If err is not nil, the span is marked as failed, with the problem code of err.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.SetAttributes(attribute.String("error.type", string(problem.CodeOf(err))))
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// EndAt ends the span at an earlier time.
func (s Span) EndAt(at time.Time) {
	if s.span != nil {
		s.span.End(trace.WithTimestamp(at))
	}
}

// IDOf returns the id of the trace in a context, or an empty text if this process does not record
// it.
func IDOf(ctx context.Context) string {
	span := trace.SpanFromContext(ctx)
	if of := span.SpanContext(); of.IsSampled() && span.IsRecording() {
		return of.TraceID().String()
	}
	return ""
}

// With returns a copy of ctx with the span.
func (s Span) With(ctx context.Context) context.Context {
	if s.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.span)
}

// Detach returns ctx with the span of another context, for work that continues after that context
// has ended.
func Detach(ctx, of context.Context) context.Context {
	span := trace.SpanFromContext(of)
	if !span.SpanContext().IsValid() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, span)
}

// Parent is a trace context as text: the values of the headers traceparent and tracestate. The zero
// value means no trace context.
type Parent struct{ Traceparent, Tracestate string }

// Names of the headers of a trace context, as spelled in [net/http.Header].
const (
	Header      = "Traceparent"
	StateHeader = "Tracestate"
)

const parentVariable, stateVariable = "TRACEPARENT", "TRACESTATE"

// Longest texts of a parent, in bytes. A longer traceparent is ignored, a longer tracestate is left
// out.
const (
	maxParent = 256
	maxState  = 512
)

// carrier presents a [Parent] to the propagator, which uses keys in lower case.
type carrier struct{ p *Parent }

func (c carrier) field(key string) *string {
	if key == "traceparent" {
		return &c.p.Traceparent
	}
	return &c.p.Tracestate
}

// Get returns a field.
func (c carrier) Get(key string) string { return *c.field(key) }

// Set sets a field.
func (c carrier) Set(key, value string) { *c.field(key) = value }

// Keys returns the names of the fields.
func (carrier) Keys() []string { return []string{"traceparent", "tracestate"} }

// With returns a copy of ctx whose spans are children of p. It returns ctx if p is not a valid
// trace context, and ignores an invalid tracestate.
func (p Parent) With(ctx context.Context) context.Context {
	if p.Traceparent == "" || len(p.Traceparent) > maxParent {
		return ctx
	}
	if len(p.Tracestate) > maxState {
		p.Tracestate = ""
	}
	return propagation.TraceContext{}.Extract(ctx, carrier{&p})
}

// Of returns the span in a context as the parent of other spans.
func Of(ctx context.Context) (p Parent) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		p = inject(ctx)
	}
	return p
}

// inject is separate from [Of] so that [Of] allocates nothing if there is no span.
func inject(ctx context.Context) Parent {
	var p Parent
	propagation.TraceContext{}.Inject(ctx, carrier{&p})
	if len(p.Tracestate) > maxState {
		p.Tracestate = ""
	}
	return p
}

// FromEnvironment returns the trace context in the environment of this process, or the zero value
// if there is no valid one.
func FromEnvironment() Parent {
	return Of(Parent{os.Getenv(parentVariable), os.Getenv(stateVariable)}.With(context.Background()))
}

// Environment returns a copy of env with p instead of the trace context in env.
func (p Parent) Environment(env []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == parentVariable || name == stateVariable
	})
	if p.Traceparent != "" {
		env = append(env, parentVariable+"="+p.Traceparent)
	}
	if p.Traceparent != "" && p.Tracestate != "" {
		env = append(env, stateVariable+"="+p.Tracestate)
	}
	return env
}
