package executor

import (
	"context"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/trace"
)

// interruptedStatus is the status of the span of an attempt that is left to the next server.
const interruptedStatus = "interrupted"

// traced starts the span of an attempt that a request has begun. It belongs to the trace in which
// the run was submitted, or to that of the request if the run has none.
func (x *Executors) traced(request context.Context, e *Executor, begun time.Time) *Executor {
	name := "berth.run"
	if e.step != nil {
		name = "berth.step"
	}
	in := e.parent().With(context.Background())
	if trace.Of(in) == (trace.Parent{}) {
		in = trace.Detach(in, request)
	}
	in, e.span = x.tracer.StartAt(in, name, begun)
	if !e.span.Recorded() {
		return e
	}
	e.trace = trace.Of(in)
	e.span.LinkTo(request)
	var by *run.Executor
	if e.step != nil {
		by = e.step.Executor
		e.span.Set(stepAttrs(e.step)...)
	} else if e.run != nil {
		by = e.run.Executor
		e.span.Set(trace.String("berth.run.id", e.run.ID), trace.Int("berth.attempt", e.run.Attempt), trace.Int("berth.priority", e.run.Priority))
	}
	if by != nil {
		e.span.Set(trace.String("berth.executor", by.Name))
	}
	e.span.Set(trace.String("berth.host", x.host), trace.String("berth.instance", x.instance))
	return e
}

// parent returns the trace context in which the run of an attempt was submitted.
func (e *Executor) parent() (p trace.Parent) {
	switch {
	case e.step != nil:
		p.Traceparent, p.Tracestate = e.step.Ready.Traceparent, e.step.Ready.Tracestate
	case e.run != nil:
		p.Traceparent, p.Tracestate = e.run.Traceparent, e.run.Tracestate
	}
	return p
}

func stepAttrs(t *step.Taken) []trace.Attr {
	return []trace.Attr{
		trace.String("berth.run.id", t.Run), trace.String("berth.step", t.Text()), trace.Int("berth.attempt", t.Attempt),
		trace.String("berth.queue", t.Ready.Queue), trace.Int("berth.priority", t.Ready.Priority),
	}
}

// endSpan ends the span of an attempt. Executors.mu is held.
func (e *Executor) endSpan() {
	if !e.span.Recorded() {
		return
	}
	status := e.status
	switch {
	case e.why != nil:
		if status = "lost"; e.failed { // it took too long
			status = string(run.Failed)
		}
		e.span.Fail(e.why.Message)
	case status == "":
		status = interruptedStatus
	case status == string(run.Failed):
		e.span.Fail("it has failed")
	}
	e.span.Set(trace.String("berth.status", status))
	e.span.End(nil)
}
