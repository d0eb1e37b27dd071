package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/trace"
	"github.com/berthhq/berth/internal/trace/otlp"
)

// collector takes spans over HTTP and gRPC.
type collector struct {
	coltrace.UnimplementedTraceServiceServer
	mu   sync.Mutex
	got  []*tracepb.ResourceSpans
	auth string
}

// Export takes spans over gRPC.
func (c *collector) Export(_ context.Context, r *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, r.ResourceSpans...)
	return &coltrace.ExportTraceServiceResponse{}, nil
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	data, err := io.ReadAll(body)
	var req coltrace.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(data, &req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.auth = r.Header.Get("Authorization")
	c.mu.Unlock()
	_, _ = c.Export(r.Context(), &req)
}

// names returns the names of the spans, behind those of their services.
func (c *collector) names() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.got {
		service := ""
		for _, a := range r.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, s := range r.ScopeSpans {
			for _, span := range s.Spans {
				all = append(all, service+"/"+span.Name)
			}
		}
	}
	return all
}

func one(t *testing.T) {
	t.Helper()
	tracer, end, err := otlp.Start(t.Context(), otlp.Config{Service: "berth-test", Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if tracer == nil {
		t.Fatal("no traces are sent")
	}
	_, span := tracer.Start(t.Context(), "hello", trace.Internal)
	span.End(nil)
	end()
}

func TestTheEndSendsWhatIsLeftOverHTTP(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	one(t)
	if got := c.names(); len(got) != 1 || got[0] != "berth-test/hello" || c.auth != "secret" {
		t.Errorf("the collector has %q, with authorization %q", got, c.auth)
	}
}

func TestTheEndSendsWhatIsLeftOverGRPC(t *testing.T) {
	c, s := &collector{}, grpc.NewServer()
	coltrace.RegisterTraceServiceServer(s, c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	one(t)
	if got := c.names(); len(got) != 1 || got[0] != "mine/hello" {
		t.Errorf("the collector has %q", got)
	}
}

func TestTracesAreOffUnlessTheEnvironmentAsksForThem(t *testing.T) {
	const at = "http://127.0.0.1:1"
	for name, env := range map[string]map[string]string{
		"nothing is set":  {},
		"only a protocol": {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		"disabled":        {"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_SDK_DISABLED": "true"},
		"no exporter":     {"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range env {
				t.Setenv(variable, value)
			}
			tracer, end, err := otlp.Start(t.Context(), otlp.Config{Logger: hclog.NewNullLogger()})
			if tracer != nil || err != nil {
				t.Errorf("there is a tracer, %v", err)
			}
			end()
		})
	}
}

func TestWrongVariablesAreNamed(t *testing.T) {
	for variable, bad := range map[string]struct{ value, says string }{
		"OTEL_TRACES_EXPORTER":               {"zipkin", "otlp and none"},
		"OTEL_EXPORTER_OTLP_ENDPOINT":        {"collector:4318", "http://HOST:PORT"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": {"ftp://collector", "http://HOST:PORT"},
		"OTEL_EXPORTER_OTLP_PROTOCOL":        {"http/json", "http/protobuf and grpc"},
		"OTEL_EXPORTER_OTLP_HEADERS":         {"secret", "KEY=VALUE"},
		"OTEL_EXPORTER_OTLP_TIMEOUT":         {"10s", "milliseconds"},
		"OTEL_EXPORTER_OTLP_COMPRESSION":     {"zip", "gzip and none"},
		"OTEL_EXPORTER_OTLP_CERTIFICATE":     {"/nowhere", "file"},
		"OTEL_TRACES_SAMPLER":                {"sometimes", "parentbased_traceidratio"},
		"OTEL_TRACES_SAMPLER_ARG":            {"2", "0 to 1"},
		"OTEL_BSP_MAX_QUEUE_SIZE":            {"0", "1 to"},
		"OTEL_RESOURCE_ATTRIBUTES":           {"region", "KEY=VALUE"},
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			if variable == "OTEL_TRACES_SAMPLER_ARG" {
				t.Setenv("OTEL_TRACES_SAMPLER", "traceidratio")
			}
			t.Setenv(variable, bad.value)
			_, end, err := otlp.Start(t.Context(), otlp.Config{Logger: hclog.NewNullLogger()})
			end()
			if err == nil || problem.Of(err).Field != variable || !strings.Contains(err.Error(), bad.says) {
				t.Fatalf("the error is %v", err)
			}
			if strings.HasSuffix(variable, "HEADERS") && strings.Contains(err.Error(), bad.value) {
				t.Error("the error has the secret")
			}
		})
	}
}

// TestACollectorThatHangsHoldsUpNothing has a collector that takes requests and never answers.
func TestACollectorThatHangsHoldsUpNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes the time of the last flush")
	}
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer s.Close()
	defer close(over)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	tracer, end, err := otlp.Start(t.Context(), otlp.Config{Logger: hclog.New(&hclog.LoggerOptions{Output: &log, Mutex: &sync.Mutex{}}), Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for range 1000 {
		_, span := tracer.Start(t.Context(), "hello", trace.Internal)
		span.End(nil)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("1000 spans took %s", took)
	}
	const want = `# HELP berth_trace_spans_total Spans that were sent to the trace collector, that it did not accept, and that were dropped because the queue was full.
# TYPE berth_trace_spans_total counter
berth_trace_spans_total{result="dropped"} 990
berth_trace_spans_total{result="failed"} 0
berth_trace_spans_total{result="sent"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	begun = time.Now()
	end()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("the end took %s", took)
	}
	if n := strings.Count(log.String(), "spans are dropped"); n != 1 {
		t.Errorf("the log says %d times that spans are dropped:\n%s", n, &log)
	}
}

// TestTheTransactionOfARecordedClaimIsRecorded has a sampler that begins no traces.
func TestTheTransactionOfARecordedClaimIsRecorded(t *testing.T) {
	c := &collector{}
	s := httptest.NewServer(c)
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
	tracer, end, err := otlp.Start(t.Context(), otlp.Config{Service: "s", Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	_, none := tracer.Start(t.Context(), "none", trace.Internal)
	none.End(nil)
	in := trace.Parent{Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}.With(t.Context())
	_, claim := tracer.Start(in, "claim", trace.Internal)
	claim.Root("grant", time.Now(), []trace.Span{claim}).EndAt(time.Now())
	claim.End(nil)
	end()
	if got := strings.Join(c.names(), " "); got != "s/grant s/claim" {
		t.Errorf("the collector has %q", got)
	}
}
