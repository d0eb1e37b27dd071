package trace_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	valid   = "00-" + traceID + "-00f067aa0ba902b7-01"
)

// record returns a tracer and what it records.
func record(t *testing.T) (*trace.Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	all := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(all))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return trace.New(p), all
}

func TestASpanIsAChildOfItsParent(t *testing.T) {
	tracer, all := record(t)
	in := trace.Parent{Traceparent: valid, Tracestate: "vendor=1"}.With(t.Context())
	ctx, span := tracer.Start(in, "first", trace.Server)
	_, child := trace.Start(ctx, "second")
	child.End(problem.New(problem.NoCapacity, "full"))
	span.End(nil)

	got := all.GetSpans()
	if len(got) != 2 {
		t.Fatalf("%d spans were recorded, want 2", len(got))
	}
	second, first := got[0], got[1]
	if id := first.SpanContext.TraceID().String(); id != traceID || first.Parent.SpanID().String() != "00f067aa0ba902b7" {
		t.Errorf("the first span is of trace %s, with parent %s", id, first.Parent.SpanID())
	}
	if first.SpanContext.TraceState().String() != "vendor=1" {
		t.Errorf("its state is %q", first.SpanContext.TraceState())
	}
	if second.Parent.SpanID() != first.SpanContext.SpanID() || second.Status.Description != "full" {
		t.Errorf("the second span is %+v", second)
	}
	if i := slices.Index(second.Attributes, trace.String("error.type", "no_capacity")); i < 0 {
		t.Errorf("its attributes are %v", second.Attributes)
	}
	if p := trace.Of(ctx); !strings.HasPrefix(p.Traceparent, "00-"+traceID+"-"+first.SpanContext.SpanID().String()) || p.Tracestate != "vendor=1" {
		t.Errorf("passed on is %+v", p)
	}
}

func TestNothingIsRecordedOfWhatTheCallerDoesNotSample(t *testing.T) {
	tracer, all := record(t)
	ctx, span := tracer.Start(trace.Parent{Traceparent: strings.TrimSuffix(valid, "01") + "00"}.With(t.Context()), "first", trace.Server)
	_, child := trace.Start(ctx, "second")
	child.End(nil)
	span.End(nil)
	if n := len(all.GetSpans()); n > 0 || trace.IDOf(ctx) != "" {
		t.Errorf("%d spans were recorded", n)
	}
	if p := trace.Of(ctx).Traceparent; !strings.HasPrefix(p, "00-"+traceID) || !strings.HasSuffix(p, "-00") {
		t.Errorf("passed on is %q: the trace, not sampled", p)
	}
}

func TestABadParentIsIgnored(t *testing.T) {
	for _, bad := range []string{
		"", "x", "00", "00-" + traceID, strings.ToUpper(valid), valid + "-more", "ff" + valid[2:], " " + valid,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-" + traceID + "-0000000000000000-01",
		"00-" + traceID + "-00f067aa0ba902b-01", strings.Repeat("0", 1000),
	} {
		if p := trace.Of(trace.Parent{Traceparent: bad}.With(t.Context())); p != (trace.Parent{}) {
			t.Errorf("of %q there is %+v", bad, p)
		}
	}
	p := trace.Of(trace.Parent{Traceparent: valid, Tracestate: strings.Repeat("a", 2000)}.With(t.Context()))
	if p.Traceparent != valid || p.Tracestate != "" {
		t.Errorf("with a bad state there is %+v", p)
	}
}

// FuzzParent checks that whatever is accepted is passed on unchanged in what identifies it, and within
// bounds.
func FuzzParent(f *testing.F) {
	f.Add(valid, "vendor=1,other=2")
	f.Add("01-"+valid[3:]+"-more", "=")
	f.Add("", "a=b")
	f.Fuzz(func(t *testing.T, parent, state string) {
		p := trace.Of(trace.Parent{Traceparent: parent, Tracestate: state}.With(context.Background()))
		switch {
		case p.Traceparent == "":
			if p.Tracestate != "" {
				t.Errorf("a state without a parent: %+v", p)
			}
		case len(p.Traceparent) != len(valid) || p.Traceparent[3:52] != parent[3:52] || len(p.Tracestate) > 512:
			t.Errorf("%q, %q became %+v", parent, state, p)
		}
		if again := trace.Of(p.With(context.Background())); again != p {
			t.Errorf("%+v became %+v", p, again)
		}
	})
}

func TestTheEnvironmentOfACommandHasItsParentOnly(t *testing.T) {
	env := []string{"PATH=/bin", "TRACEPARENT=old", "TRACESTATE=old", "TRACEPARENTS=kept"}
	got := trace.Parent{Traceparent: valid}.Environment(env)
	if want := []string{"PATH=/bin", "TRACEPARENTS=kept", "TRACEPARENT=" + valid}; !slices.Equal(got, want) {
		t.Errorf("it is %q, want %q", got, want)
	}
	if env[1] != "TRACEPARENT=old" {
		t.Error("the original environment was changed")
	}
	t.Setenv("TRACEPARENT", valid)
	t.Setenv("TRACESTATE", "vendor=1")
	if got := trace.FromEnvironment(); got != (trace.Parent{Traceparent: valid, Tracestate: "vendor=1"}) {
		t.Errorf("read back it is %+v", got)
	}
}

func TestOffAllocatesNothing(t *testing.T) {
	var off *trace.Tracer
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		ctx, span := off.Start(ctx, "first", trace.Server)
		ctx, child := trace.Start(ctx, "second")
		if child.Recorded() {
			t.Error("it is recorded")
		}
		child.End(nil)
		span.End(nil)
		if trace.Of(ctx) != (trace.Parent{}) || trace.IDOf(ctx) != "" || trace.Detach(ctx, ctx) != ctx {
			t.Error("there is a trace")
		}
	})
	if n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}
