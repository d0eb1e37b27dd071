//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// span is one that a collector has taken, with the service that has sent it.
type span struct {
	service string
	*tracepb.Span
}

func (s span) trace() string  { return hex.EncodeToString(s.TraceId) }
func (s span) id() string     { return hex.EncodeToString(s.SpanId) }
func (s span) parent() string { return hex.EncodeToString(s.ParentSpanId) }

func (s span) attr(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// collector takes spans by OTLP over HTTP.
type collector struct {
	url string

	mu  sync.Mutex // guards what follows
	all []span
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		var req coltrace.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(data, &req) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range req.ResourceSpans {
			service := span{Span: &tracepb.Span{Attributes: of.Resource.Attributes}}.attr("service.name")
			for _, scope := range of.ScopeSpans {
				for _, one := range scope.Spans {
					c.all = append(c.all, span{service, one})
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// one returns the only span with a name, of a service, in a trace.
func (c *collector) one(t *testing.T, service, name, trace string) span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []span
	for _, s := range c.all {
		if s.service == service && s.Name == name && s.trace() == trace {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("there are %d spans %s of %s in trace %s, of %d in all", len(found), name, service, trace, len(c.all))
	}
	return found[0]
}

// rig starts processes of berth with an environment.
type rig struct {
	t   *testing.T
	env []string
}

func (r rig) command(args ...string) *exec.Cmd {
	r.t.Helper()
	path, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Args[0] = "berth"
	cmd.Env = append(os.Environ(), r.env...)
	return cmd
}

// service starts a process that prints a line of JSON when it is ready, and returns how to end it.
func (r rig) service(into any, args ...string) (end func()) {
	r.t.Helper()
	cmd := r.command(append(args, "-o", "json")...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = json.NewDecoder(out).Decode(into)
	}
	if err != nil {
		r.t.Fatalf("%v\n%s", err, &log)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			r.t.Errorf("%s: %v\n%s", args[0], err, &log)
		}
	})
	r.t.Cleanup(end)
	return end
}

// TestTracesOfExecAndOfARun runs berth dev and a worker, which send their spans to a collector, and
// reads the traces of an exec that waits and of a run that was submitted.
func TestTracesOfExecAndOfARun(t *testing.T) {
	const callers, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	c, dir := newCollector(t), t.TempDir()
	r := rig{t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_TRACES_SAMPLER=parentbased_always_off"}}
	traced := rig{t, append(slices.Clone(r.env), "TRACEPARENT=00-"+callers+"-"+parent+"-01", "TRACESTATE=vendor=1")}
	var at addresses
	endDev := r.service(&at, "dev", "--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "dev"), "--pool", "demo=1")
	var worker worksRecord
	endWorker := traced.service(&worker, "worker", "--endpoints", at.Etcd, "--state-dir", filepath.Join(dir, "worker"), "--host", "worker")

	// The first exec holds the slot until its input ends.
	next := follow(t, at.HTTP)
	first := r.command("exec", "--sidecar", at.HTTP, "--pool", "demo", "--", "cat")
	in, err := first.StdinPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	next(api.EventClaimGranted)
	second := traced.command("exec", "--sidecar", at.HTTP, "--pool", "demo", "--id", "second", "--", "sh", "-c", `echo "$TRACEPARENT $TRACESTATE"`)
	var out bytes.Buffer
	second.Stdout, second.Stderr = &out, os.Stderr
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	next(api.EventClaimWaiting) // lists show it before it has its place in the wait queue
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{first, second} {
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	const others = "0af7651916cd43dd8448eb211c80319c"
	direct := rig{t, append(slices.Clone(r.env), "TRACEPARENT=00-"+others+"-"+parent+"-01")}.command("exec", "--endpoints", at.Etcd, "--pool", "demo", "--", "false")
	if err := direct.Run(); direct.ProcessState.ExitCode() != 1 {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "seen")
	submit := traced.command("submit", "--endpoints", at.Etcd, "--id", "a", "--wait", "1m", "--", "sh", "-c", `echo "$TRACEPARENT $OTEL_EXPORTER_OTLP_HEADERS" >"$0"`, file)
	if out, err := submit.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	endWorker()
	endDev()

	exec := c.one(t, "berth-exec", "berth.exec", callers)
	if exec.parent() != parent || exec.TraceState != "vendor=1" || exec.attr("berth.command") != "sh" {
		t.Errorf("exec is %v", exec)
	}
	if want := "00-" + callers + "-" + exec.id() + "-01 vendor=1\n"; out.String() != want {
		t.Errorf("its command has %q, want %q", &out, want)
	}
	post := c.one(t, "berth-sidecar", "POST /v1/claims", callers)
	claim, wait := c.one(t, "berth-sidecar", "berth.claim", callers), c.one(t, "berth-sidecar", "berth.wait", callers)
	if post.parent() != exec.id() || claim.parent() != post.id() || wait.parent() != claim.id() || claim.attr("berth.claim.id") != "second" {
		t.Error("the spans are not exec, request, claim and wait")
	}
	if len(claim.Links) != 1 {
		t.Fatalf("the claim refers to %v", claim.Links)
	}
	grant := c.one(t, "berth-sidecar", "berth.grant", hex.EncodeToString(claim.Links[0].TraceId))
	if grant.parent() != "" || len(grant.Links) != 1 || !bytes.Equal(grant.Links[0].SpanId, claim.SpanId) {
		t.Errorf("the transaction is %v", grant)
	}
	exec = c.one(t, "berth-exec", "berth.exec", others)
	if exec.parent() != parent || c.one(t, "berth-exec", "berth.claim", others).parent() != exec.id() ||
		c.one(t, "berth-exec", "berth.release", others).parent() != exec.id() {
		t.Error("the claim and the release of an exec without a sidecar are no children of its span")
	}
	step := c.one(t, "berth-worker", "berth.step", callers)
	if step.parent() != parent || step.attr("berth.run.id") != "a" || step.attr("berth.status") != "succeeded" {
		t.Errorf("the step is %v", step)
	}
	if seen, err := os.ReadFile(file); err != nil || string(seen) != "00-"+callers+"-"+step.id()+"-01 \n" {
		t.Errorf("its command has %q, %v", seen, err)
	}
}

// follow follows the events of a sidecar. The function it returns waits for the next one of a type.
func follow(t *testing.T, addr string) (next func(kind string)) {
	t.Helper()
	c, err := client.Dial(addr, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scriptDeadline)
	events, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- c.Events(ctx, "", "", func(ev api.Event) error {
			events <- ev.Type
			return nil
		})
		close(events)
	}()
	t.Cleanup(func() { cancel(); <-ended; c.Close() })
	next = func(kind string) {
		t.Helper()
		for got := range events {
			if got == kind {
				return
			}
		}
		t.Fatalf("no %s comes", kind)
	}
	next(api.EventHello)
	return next
}

// TestWrongTracingIsRefusedByServicesOnly has a variable that a command may understand, but not berth.
func TestWrongTracingIsRefusedByServicesOnly(t *testing.T) {
	r := rig{t, []string{"OTEL_TRACES_EXPORTER=zipkin"}}
	dir := t.TempDir()
	out, err := r.command("dev", "--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0", "--data-dir", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "OTEL_TRACES_EXPORTER: \"zipkin\" is not supported: use otlp and none") {
		t.Errorf("dev: %v\n%s", err, out)
	}
	addr, c := serveTCP(t)
	out, err = r.command("exec", "--sidecar", addr, "--pool", "demo", "--", "echo", "ran").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ran\n") || !strings.Contains(string(out), "no traces are sent") {
		t.Errorf("exec: %v\n%s", err, out)
	}
	if p, err := c.Pool(t.Context(), "demo"); err != nil || p.Claimed != 0 {
		t.Errorf("the pool is %+v, %v", p, err)
	}
}
