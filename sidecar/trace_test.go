package sidecar_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

const (
	callerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerSpan  = "00f067aa0ba902b7"
	traceparent = "00-" + callerTrace + "-" + callerSpan + "-01"
)

// spans are what a sidecar has recorded.
type spans struct{ *tracetest.InMemoryExporter }

// recorded has a sidecar record its spans.
func recorded(t *testing.T) (func(*sidecar.Config), spans) {
	t.Helper()
	all := spans{tracetest.NewInMemoryExporter()}
	p := sdk.NewTracerProvider(sdk.WithSyncer(all))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return func(c *sidecar.Config) { c.Tracer = trace.New(p) }, all
}

// one waits for the only span with a name, in a trace unless that is empty.
func (s spans) one(t *testing.T, name, trace string) (found tracetest.SpanStub) {
	t.Helper()
	eventually(t, "there is one span "+name, func() bool {
		all := slices.DeleteFunc(slices.Clone(s.GetSpans()), func(one tracetest.SpanStub) bool {
			return one.Name != name || trace != "" && one.SpanContext.TraceID().String() != trace
		})
		if len(all) != 1 {
			return false
		}
		found = all[0]
		return true
	})
	return found
}

func attr(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if a.Key == attribute.Key(key) {
			return a.Value.String()
		}
	}
	return ""
}

// within reports whether a span is a child of another.
func within(child, parent tracetest.SpanStub) bool {
	return child.Parent.SpanID() == parent.SpanContext.SpanID() && child.SpanContext.TraceID() == parent.SpanContext.TraceID()
}

func TestAClaimBelongsToTheTraceOfItsCaller(t *testing.T) {
	on, all := recorded(t)
	r := single(t, on)
	r.pool("db", 1)
	held := r.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}, TTL: api.DurationOf(0)})

	in := trace.Parent{Traceparent: traceparent, Tracestate: "vendor=1"}.With(t.Context())
	events, done := r.follow("second", ""), make(chan error, 1)
	go func() {
		_, err := r.client.Claim(in, api.ClaimRequest{ID: "second", Pools: api.Slots{"db": 1}, Priority: 5, TTL: api.DurationOf(0)})
		done <- err
	}()
	next(t, events, api.EventClaimWaiting) // it has its place from now on
	if err := r.client.Release(t.Context(), held.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := r.client.Release(in, "second"); err != nil {
		t.Fatal(err)
	}

	post, claim, wait := all.one(t, "POST /v1/claims", callerTrace), all.one(t, "berth.claim", callerTrace), all.one(t, "berth.wait", callerTrace)
	if post.Parent.SpanID().String() != callerSpan || !post.Parent.IsRemote() || post.SpanContext.TraceState().String() != "vendor=1" {
		t.Errorf("the parent of the request is %v", post.Parent)
	}
	if !within(claim, post) || !within(wait, claim) {
		t.Error("the spans are not request, claim and wait")
	}
	if len(claim.Links) != 1 {
		t.Fatalf("the claim refers to %v", claim.Links)
	}
	grant := all.one(t, "berth.grant", claim.Links[0].SpanContext.TraceID().String())
	if grant.Parent.IsValid() || len(grant.Links) != 1 || grant.Links[0].SpanContext.SpanID() != claim.SpanContext.SpanID() {
		t.Errorf("the transaction refers to %v", grant.Links)
	}
	if !within(all.one(t, "berth.release", callerTrace), all.one(t, "DELETE /v1/claims/{id}", callerTrace)) {
		t.Error("the release is no child of its request")
	}
	if attr(post, "http.request.method") != "POST" || attr(post, "http.route") != "/v1/claims" || attr(post, "http.response.status_code") != "201" ||
		attr(post, "berth.request_id") == "" || attr(claim, "berth.claim.id") != "second" || attr(claim, "berth.priority") != "5" {
		t.Errorf("the attributes are %v and %v", post.Attributes, claim.Attributes)
	}
	if n := slices.IndexFunc(all.GetSpans(), func(s tracetest.SpanStub) bool { return strings.HasSuffix(s.Name, "/readyz") }); n >= 0 {
		t.Error("a probe has a span")
	}
}

func TestABadTraceparentIsIgnored(t *testing.T) {
	on, all := recorded(t)
	r := single(t, on)
	for _, bad := range []string{"", "x", "00-" + callerTrace + "-0000000000000000-01", traceparent + "-more"} {
		all.Reset()
		a := r.raw(request{method: "GET", path: "/v1/pools", change: func(req *http.Request) { req.Header["Traceparent"] = []string{bad} }})
		if a.status != http.StatusOK {
			t.Errorf("with %q the status is %d", bad, a.status)
		}
		if get := all.one(t, "GET /v1/pools", ""); get.Parent.IsValid() || get.SpanContext.TraceID().String() == callerTrace {
			t.Errorf("with %q the parent is %v", bad, get.Parent)
		}
	}
	all.Reset()
	r.raw(request{method: "GET", path: "/v1/pools", change: func(req *http.Request) { req.Header["Traceparent"] = []string{traceparent, traceparent} }})
	if get := all.one(t, "GET /v1/pools", ""); get.Parent.IsValid() {
		t.Errorf("with two, the parent is %v", get.Parent)
	}
}

func TestARequestThatNoEndpointTakesHasASpanToo(t *testing.T) {
	on, all := recorded(t)
	r := single(t, on)
	for method, name := range map[string]string{"GET": "GET", "DELETE": "DELETE", "BREW": "HTTP"} {
		all.Reset()
		a := r.raw(request{method: method, path: "/v1/none"})
		if one := all.one(t, name, ""); attr(one, "http.route") != "" || attr(one, "http.response.status_code") != strconv.Itoa(a.status) || a.status < 400 {
			t.Errorf("%s: status %d, and the attributes are %v", method, a.status, one.Attributes)
		}
	}
}

func TestAStepBelongsToTheTraceOfItsRun(t *testing.T) {
	on, all := recorded(t)
	d := led(t, 1, on)
	d.pool("db", 1)
	in := trace.Parent{Traceparent: traceparent, Tracestate: "vendor=1"}.With(t.Context())
	req := api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 1, needs(map[string]int{"db": 1}))}}
	if _, err := d.client.SubmitRun(in, req); err != nil {
		t.Fatal(err)
	}
	if _, err := d.client.SubmitRun(t.Context(), req); err != nil {
		t.Errorf("the same run, without a trace: %v", err)
	}
	d.published(store.StepID{Run: "a", Step: "x"})
	taken := d.take("a", 0, api.StepTake{Executor: "ci"})
	d.finish(taken, api.StepFinish{Status: "succeeded"})
	d.ended("a", "succeeded")

	submit, step := all.one(t, "POST /v1/runs", callerTrace), all.one(t, "berth.step", "")
	if !within(step, submit) {
		t.Errorf("the step is in trace %s, with parent %s", step.SpanContext.TraceID(), step.Parent.SpanID())
	}
	if attr(step, "berth.run.id") != "a" || attr(step, "berth.step") != "x[0]" || attr(step, "berth.attempt") != "1" ||
		attr(step, "berth.status") != "succeeded" || attr(step, "berth.executor") != "ci" {
		t.Errorf("its attributes are %v", step.Attributes)
	}
	if len(step.Links) != 1 {
		t.Errorf("it refers to %v, want the request that took it", step.Links)
	}
	if want := "00-" + callerTrace + "-" + step.SpanContext.SpanID().String() + "-01"; taken.Traceparent != want || taken.Tracestate != "vendor=1" {
		t.Errorf("its executor gets %q, %q, want %q", taken.Traceparent, taken.Tracestate, want)
	}
}

// TestATraceContextIsPassedOnWithoutTracing has a sidecar that makes no spans.
func TestATraceContextIsPassedOnWithoutTracing(t *testing.T) {
	d := led(t, 1)
	in := trace.Parent{Traceparent: traceparent, Tracestate: "vendor=1"}.With(t.Context())
	if _, err := d.client.SubmitRun(in, api.RunRequest{ID: "a", Steps: api.RunSteps{fan("x", 1)}}); err != nil {
		t.Fatal(err)
	}
	d.published(store.StepID{Run: "a", Step: "x"})
	if taken := d.take("a", 0, api.StepTake{}); taken.Traceparent != traceparent || taken.Tracestate != "vendor=1" {
		t.Errorf("the executor gets %q, %q", taken.Traceparent, taken.Tracestate)
	}
	d.fanned("b", fan("x", 1))
	if taken := d.take("b", 0, api.StepTake{}); taken.Traceparent != "" {
		t.Errorf("the executor of a run without one gets %q", taken.Traceparent)
	}
}

func TestTheClientSendsTheTraceContextOfTheEnvironment(t *testing.T) {
	t.Setenv("TRACEPARENT", traceparent)
	t.Setenv("TRACESTATE", "vendor=1")
	on, all := recorded(t)
	r := single(t, on)
	if _, err := r.client.Hosts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if get := all.one(t, "GET /v1/hosts", ""); get.Parent.SpanID().String() != callerSpan || get.SpanContext.TraceState().String() != "vendor=1" {
		t.Errorf("the parent of the request is %v", get.Parent)
	}
}

func TestEachAnswerHasARequestID(t *testing.T) {
	on, _ := recorded(t)
	r := single(t, on)
	ask := func(path string, ids ...string) (id string, a answer) {
		a = r.raw(request{method: "GET", path: path, change: func(req *http.Request) { req.Header["X-Request-Id"] = ids }})
		return a.header.Get("X-Request-Id"), a
	}
	seen := map[string]bool{}
	for _, path := range []string{"/healthz", "/metrics", "/v1/pools", "/v1/pools/none", "/v1/claims?limit=x", "/none", "/pools", "/v1/claims?limit=1"} {
		long := strings.Repeat("x", 128)
		if id, _ := ask(path, long); id != long {
			t.Errorf("the answer of %s has id %q", path, id)
		}
		for _, bad := range [][]string{nil, {""}, {"with space"}, {"t\tab"}, {"ü"}, {long + "x"}, {"a", "b"}} {
			id, a := ask(path, bad...)
			if id == "" || seen[id] || slices.Contains(bad, id) {
				t.Errorf("the answer of %s to %q has id %q", path, bad, id)
			}
			seen[id] = true
			if a.header.Get("Content-Type") == api.ProblemType {
				if p := a.problem(t); p.RequestID != id {
					t.Errorf("the problem of %s has id %q, its answer %q: %s", path, p.RequestID, id, a.body)
				}
			}
		}
	}
	id, a := ask("/v1/claims?limit=x", "mine")
	if p := a.problem(t); id != "mine" || p.RequestID != "mine" || p.Code != "invalid" {
		t.Errorf("a refused parameter: %+v", p)
	}
}

func TestLogAndActionsHaveTheRequestID(t *testing.T) {
	on, all := recorded(t)
	r := single(t, on)
	r.pool("db", 1)
	a := r.raw(request{method: "POST", path: "/v1/pools/db/pause", body: `{}`, change: func(req *http.Request) {
		req.Header.Set("X-Request-Id", "mine")
		req.Header.Set("Traceparent", traceparent)
	}})
	if a.status != http.StatusOK {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	var list api.List[struct {
		Action    string `json:"action"`
		RequestID string `json:"request_id"`
	}]
	decode(t, r.raw(request{method: "GET", path: "/v1/actions"}), &list)
	if len(list.Items) == 0 || list.Items[0].Action != "pause-pool" || list.Items[0].RequestID != "mine" {
		t.Errorf("the actions are %+v", list.Items)
	}
	all.one(t, "POST /v1/pools/{pool}/pause", callerTrace)
	var lines int
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "request_id=mine") && strings.Contains(line, "trace_id="+callerTrace) {
			lines++
		}
	}
	if lines != 2 { // the action, and the request
		t.Errorf("%d lines of the log have both ids", lines)
	}
}
