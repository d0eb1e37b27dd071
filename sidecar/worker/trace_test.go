package worker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/trace"
)

const (
	callerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + callerTrace + "-00f067aa0ba902b7-01"
)

// traced submits a run with a trace context.
func (y *yard) traced(id string, specs ...step.Spec) {
	y.t.Helper()
	g, err := step.NewGraph(specs)
	if err == nil {
		_, _, err = y.step.Submit(y.t.Context(), y.runs, id, run.Spec{Traceparent: traceparent, Tracestate: "vendor=1"}, g)
	}
	if err != nil {
		y.t.Fatal(err)
	}
}

// environments keeps those of the commands that a stage was to run, by step.
func environments(s *stage) func(of string) string {
	var mu sync.Mutex
	all := map[string]string{}
	s.onRun = func(t *step.Taken) {
		mu.Lock()
		defer mu.Unlock()
		all[t.Run+" "+t.Text()] = strings.Join(environment(t), "\n")
	}
	return func(of string) string {
		mu.Lock()
		defer mu.Unlock()
		return all[of]
	}
}

func TestAStepBelongsToTheTraceOfItsRun(t *testing.T) {
	all := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(all))
	defer func() { _ = p.Shutdown(context.Background()) }()
	y := newYard(t)
	y.tracer = trace.New(p)
	y.pool("db", 1)
	s := newStage()
	s.auto = true
	env := environments(s)
	c := y.worker("one", "", 1, s)
	y.traced("a", fan("plain", 0, 0), fan("slotted", 0, 0, func(s *step.Spec) { s.Pools = map[string]int{"db": 1} }))
	y.is("a", run.Succeeded)
	c.close(t)

	spans := all.GetSpans()
	named := func(name string) []tracetest.SpanStub {
		return slices.DeleteFunc(slices.Clone(spans), func(one tracetest.SpanStub) bool { return one.Name != name })
	}
	steps := named("berth.step")
	if len(steps) != 2 {
		t.Fatalf("there are %d spans of steps", len(steps))
	}
	for _, one := range steps {
		if one.SpanContext.TraceID().String() != callerTrace || one.Parent.SpanID().String() != "00f067aa0ba902b7" {
			t.Errorf("a step is in trace %s, with parent %s", one.SpanContext.TraceID(), one.Parent.SpanID())
		}
		if i := slices.Index(one.Attributes, attribute.String("berth.status", "succeeded")); i < 0 {
			t.Errorf("its attributes are %v", one.Attributes)
		}
		of := ""
		for _, a := range one.Attributes {
			if a.Key == "berth.step" {
				of = "a " + a.Value.AsString()
			}
		}
		for _, want := range []string{"TRACEPARENT=00-" + callerTrace + "-" + one.SpanContext.SpanID().String() + "-01", "TRACESTATE=vendor=1"} {
			if !strings.Contains(env(of), want) {
				t.Errorf("the environment of %s has no %s:\n%s", of, want, env(of))
			}
		}
	}
	claims, releases := named("berth.claim"), named("berth.release")
	if len(claims) != 1 || len(releases) != 1 || claims[0].Parent.SpanID() != releases[0].Parent.SpanID() || claims[0].Parent.TraceID().String() != callerTrace {
		t.Errorf("the spans of its claim are %+v and %+v", claims, releases)
	}
}

func TestACommandHasTheTraceContextOfItsRunWithoutTracing(t *testing.T) {
	y, s := newYard(t), newStage()
	s.auto = true
	env := environments(s)
	c := y.worker("one", "", 1, s)
	y.traced("a", fan("x", 0, 0))
	y.submit("b", fan("x", 0, 0))
	y.is("a", run.Succeeded)
	y.is("b", run.Succeeded)
	c.close(t)
	if got := env("a x[0]"); !strings.Contains(got, "TRACEPARENT="+traceparent+"\nTRACESTATE=vendor=1") {
		t.Errorf("its environment is\n%s", got)
	}
	if got := env("b x[0]"); got == "" || strings.Contains(got, "TRACE") {
		t.Errorf("that of a run without one is\n%s", got)
	}
}

func TestAnAttemptThatIsLeftEndsItsSpanAndTheNextProcessHasAnother(t *testing.T) {
	all := tracetest.NewInMemoryExporter()
	p := sdk.NewTracerProvider(sdk.WithSyncer(all))
	defer func() { _ = p.Shutdown(context.Background()) }()
	y, s, dir := newYard(t), newStage(), t.TempDir()
	y.tracer = trace.New(p)
	c := y.worker("one", dir, 1, s)
	y.traced("a", fan("x", 0, 0))
	const name = "a/x/000000"
	s.runs(t, name)
	c.leave()
	c = y.worker("one", dir, 1, s)
	eventually(t, "it is taken over", func() bool { return c.Active() == 1 })
	s.end(name, step.Outcome{Status: step.Failed, ExitCode: 3, Error: "it has ended with exit code 3"})
	y.is("a", run.Failed)
	c.close(t)
	var got []string
	for _, one := range all.GetSpans() {
		if one.Name != "berth.step" || one.SpanContext.TraceID().String() != callerTrace {
			continue
		}
		for _, a := range one.Attributes {
			if a.Key == "berth.status" {
				got = append(got, a.Value.AsString()+" "+one.Status.Description)
			}
		}
	}
	if want := []string{"interrupted ", "failed it has ended with exit code 3"}; !slices.Equal(got, want) {
		t.Errorf("the spans say %q, want %q", got, want)
	}
}
