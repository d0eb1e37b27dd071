package worker

import (
	"context"
	"time"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/trace"
)

// span starts the span of an attempt at an instance, which belongs to the trace in which its run
// was submitted.
func (w *Worker) span(p *step.Published, begun time.Time) trace.Span {
	in := trace.Parent{Traceparent: p.Traceparent, Tracestate: p.Tracestate}.With(context.Background())
	_, span := w.cfg.Tracer.StartAt(in, "berth.step", begun)
	if span.Recorded() {
		span.Set(
			trace.String("berth.run.id", p.Run), trace.String("berth.step", p.ID().Text()), trace.Int("berth.attempt", p.Attempt+1),
			trace.String("berth.queue", p.Queue), trace.Int("berth.priority", p.Priority),
			trace.String("berth.host", w.by.Host), trace.String("berth.instance", w.by.Instance),
		)
	}
	return span
}

// traced gives the execution its span, of which the spans of its command are children.
func (e *execution) traced(span trace.Span) *execution {
	if e.span = span; span.Recorded() {
		in := trace.Of(span.With(context.Background()))
		e.t.Ready.Traceparent, e.t.Ready.Tracestate = in.Traceparent, in.Tracestate
	}
	return e
}

// The statuses of spans of attempts that an instance does not have.
const (
	notTakenStatus    = "not_taken"   // its slots were not granted, or another worker has taken it
	handedBackStatus  = "handed_back" // it was not started
	lostStatus        = "lost"
	forgedStatus      = "forged"      // its publication is not what was submitted
	interruptedStatus = "interrupted" // to the next process of the worker
)

// endSpan ends the span of an attempt whose instance has that status now; why it failed is empty
// if it has not.
func endSpan(span trace.Span, status, why string) {
	if !span.Recorded() {
		return
	}
	span.Set(trace.String("berth.status", status))
	if why != "" {
		span.Fail(why)
	}
	span.End(nil)
}
