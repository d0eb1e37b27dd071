// Package otlp sends the spans of a process to a collector, as configured by the environment
// variables of OpenTelemetry. Only cmd/berth imports it.
//
// Spans wait in a queue of limited length. Spans that do not fit are dropped and counted. Only the
// end of the process waits for the collector, for at most [flushTimeout].
package otlp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/net/http/httpproxy"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/internal/trace"
)

const (
	// flushTimeout is the longest wait for the collector at the end of the process.
	flushTimeout = 5 * time.Second
	// queueSize is the length of the queue in spans, unless OTEL_BSP_MAX_QUEUE_SIZE is set.
	queueSize = sdk.DefaultMaxQueueSize
)

// Config describes the process whose spans are sent.
type Config struct {
	// Service is the name of the service, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES sets
	// another.
	Service string
	// Version is the version of the process, Host the name of its host.
	Version, Host string
	Logger        hclog.Logger
	// Registerer registers the metrics; nil keeps none.
	Registerer prometheus.Registerer
}

// Start returns the tracer of this process, and a function that sends the remaining spans and ends
// tracing. The tracer is nil if the environment does not switch traces on: see
// docs/how-to/tracing.md. An error names the invalid variable.
func Start(ctx context.Context, cfg Config) (_ *trace.Tracer, end func(), err error) {
	end = func() {}
	if on, err := wanted(); err != nil || !on {
		return nil, end, err
	}
	sampler, err := samplerOf(lookup("OTEL_TRACES_SAMPLER"), lookup("OTEL_TRACES_SAMPLER_ARG"))
	if err != nil {
		return nil, end, err
	}
	length, err := queueLength()
	if err != nil {
		return nil, end, err
	}
	if err := check(); err != nil {
		return nil, end, err
	}
	client, err := newClient()
	if err != nil {
		return nil, end, err
	}
	// Both are global in OpenTelemetry. Its own log could contain the values of headers, which are
	// secrets. Its errors are not needed: [check] has already refused invalid values.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Debug("OpenTelemetry reports", "error", err) }))
	out := otlptrace.NewUnstarted(client)
	if err := out.Start(ctx); err != nil {
		return nil, end, problem.New(problem.Invalid, "traces can't be sent: %w", err)
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version), attribute.String("host.name", cfg.Host),
	), resource.WithFromEnv())
	if err != nil {
		return nil, end, problem.Field("OTEL_RESOURCE_ATTRIBUTES", "%q can't be read: expected KEY=VALUE,KEY=VALUE", lookup("OTEL_RESOURCE_ATTRIBUTES"))
	}
	q := newQueue(out, length, cfg)
	provider := sdk.NewTracerProvider(sdk.WithSampler(linked{sampler}), sdk.WithResource(res), sdk.WithSpanProcessor(q))
	return trace.New(provider), func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			cfg.Logger.Warn("the last traces could not be sent", "error", err)
		}
	}, nil
}

// lookup returns a variable of the environment.
func lookup(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// ofTraces returns the value and the name of the OTLP variable for traces, or else of the variable
// for all signals.
func ofTraces(name string) (value, from string) {
	for _, from = range []string{"OTEL_EXPORTER_OTLP_TRACES_" + name, "OTEL_EXPORTER_OTLP_" + name} {
		if value = lookup(from); value != "" {
			return value, from
		}
	}
	return "", from
}

// wanted reports whether the environment switches traces on.
func wanted() (bool, error) {
	if strings.EqualFold(lookup("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	endpoint, from := ofTraces("ENDPOINT")
	switch exporter := lookup("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "":
		if endpoint == "" {
			return false, nil
		}
	case "otlp":
	default:
		return false, problem.Field("OTEL_TRACES_EXPORTER", "%q is not supported: use otlp and none", problem.Clip(exporter))
	}
	if endpoint == "" {
		return true, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false, problem.Field(from, "%q is not the address of a collector: write http://HOST:PORT or https://HOST:PORT", problem.Clip(endpoint))
	}
	return true, nil
}

// checks holds a check for each OTLP variable that the client reads itself, since the client
// ignores invalid values. A check returns a description of the allowed values, or an empty text if
// the value is valid. Errors must not contain values, since the values of headers are secrets.
var checks = map[string]func(value string) (allowed string){
	"HEADERS": func(value string) string {
		for pair := range strings.SplitSeq(value, ",") {
			if name, _, ok := strings.Cut(pair, "="); !ok || strings.TrimSpace(name) == "" {
				return "KEY=VALUE,KEY=VALUE"
			}
		}
		return ""
	},
	"TIMEOUT": func(value string) string {
		if ms, err := strconv.Atoi(value); err != nil || ms < 1 {
			return "a number of milliseconds, at least 1"
		}
		return ""
	},
	"COMPRESSION": func(value string) string {
		if value != "gzip" && value != "none" {
			return "gzip and none"
		}
		return ""
	},
	"CERTIFICATE": readable, "CLIENT_CERTIFICATE": readable, "CLIENT_KEY": readable,
}

// readable checks that the value names a readable file.
func readable(value string) string {
	if _, err := os.ReadFile(value); err != nil {
		return "the name of a file that can be read"
	}
	return ""
}

// check checks the OTLP variables that the client reads.
func check() error {
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		value, from := ofTraces(name)
		if value == "" {
			continue
		}
		if allowed := checks[name](value); allowed != "" {
			return problem.Field(from, "the value can't be used: use %s", allowed)
		}
	}
	return nil
}

// newClient returns the client for the configured protocol. The client reads the other OTLP
// variables itself.
func newClient() (otlptrace.Client, error) {
	switch protocol, from := ofTraces("PROTOCOL"); protocol {
	case "", "http/protobuf":
		// The default would not be the environment's proxy in a process with an etcd member.
		proxy := httpproxy.FromEnvironment().ProxyFunc()
		return otlptracehttp.NewClient(otlptracehttp.WithProxy(func(r *http.Request) (*url.URL, error) { return proxy(r.URL) })), nil
	case "grpc":
		return otlptracegrpc.NewClient(), nil
	default:
		return nil, problem.Field(from, "%q is not supported: use http/protobuf and grpc", problem.Clip(protocol))
	}
}

// samplers are the allowed values of OTEL_TRACES_SAMPLER; the default is the first.
var samplers = []string{"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio", "always_on", "always_off", "traceidratio"}

// samplerOf returns the sampler that the environment names.
func samplerOf(name, arg string) (sdk.Sampler, error) {
	if name == "" {
		name = samplers[0]
	}
	if !slices.Contains(samplers, name) {
		return nil, problem.Field("OTEL_TRACES_SAMPLER", "%q is not a sampler: use %s", problem.Clip(name), strings.Join(samplers, ", "))
	}
	kind, byParent := strings.CutPrefix(name, "parentbased_")
	var s sdk.Sampler
	switch kind {
	case "always_on":
		s = sdk.AlwaysSample()
	case "always_off":
		s = sdk.NeverSample()
	default:
		ratio := 1.0
		if arg != "" {
			var err error
			if ratio, err = strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
				return nil, problem.Field("OTEL_TRACES_SAMPLER_ARG", "%q is not a ratio: use 0 to 1, such as 0.1", problem.Clip(arg))
			}
		}
		s = sdk.TraceIDRatioBased(ratio)
	}
	if byParent {
		s = sdk.ParentBased(s)
	}
	return s, nil
}

// linked is a sampler that also samples a span with a link to a span that this process has sampled:
// the transaction of a claim belongs to the trace of the claim.
type linked struct{ sdk.Sampler }

// ShouldSample implements [sdk.Sampler].
func (l linked) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	for _, link := range p.Links {
		if link.SpanContext.IsSampled() && !link.SpanContext.IsRemote() {
			return sdk.AlwaysSample().ShouldSample(p)
		}
	}
	return l.Sampler.ShouldSample(p)
}

// queueLength returns the value of OTEL_BSP_MAX_QUEUE_SIZE, or [queueSize].
func queueLength() (int, error) {
	const name = "OTEL_BSP_MAX_QUEUE_SIZE"
	text := lookup(name)
	if text == "" {
		return queueSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<20 {
		return 0, problem.Field(name, "%q is not a queue length: use 1 to %d spans", problem.Clip(text), 1<<20)
	}
	return n, nil
}

// queue is a batch processor that never gets more spans than it can hold, so that dropped spans can
// be counted. It is also the exporter behind that processor.
type queue struct {
	sdk.SpanProcessor
	out    sdk.SpanExporter
	log    hclog.Logger
	length int64
	held   atomic.Int64 // spans in the queue or being sent
	full   sync.Once
	failed sync.Once
	spans  *prometheus.CounterVec
}

func newQueue(out sdk.SpanExporter, length int, cfg Config) *queue {
	q := &queue{out: out, log: cfg.Logger, length: int64(length), spans: promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "berth_trace_spans_total", Help: "Spans that were sent to the trace collector, that it did not accept, and that were dropped because the queue was full.",
	}, []string{"result"})}
	for _, result := range []string{"sent", "failed", "dropped"} {
		q.spans.WithLabelValues(result)
	}
	q.SpanProcessor = sdk.NewBatchSpanProcessor(exporter{q}, sdk.WithMaxQueueSize(length), sdk.WithMaxExportBatchSize(min(length, sdk.DefaultMaxExportBatchSize)))
	return q
}

// OnEnd queues a span that has ended, or drops it. It never waits.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.held.Add(1) > q.length {
		q.held.Add(-1)
		q.spans.WithLabelValues("dropped").Inc()
		q.full.Do(func() {
			q.log.Warn("spans are dropped, because the trace collector does not accept them fast enough; berth_trace_spans_total counts them")
		})
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// exporter sends the spans of a queue to the collector.
type exporter struct{ *queue }

// ExportSpans implements [sdk.SpanExporter].
func (e exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer e.held.Add(-int64(len(spans)))
	err := e.out.ExportSpans(ctx, spans)
	result := "sent"
	if err != nil {
		result = "failed"
		e.failed.Do(func() {
			e.log.Warn("traces can't be sent, and berth tries again with the next ones; berth_trace_spans_total counts them", "error", err)
		})
	}
	e.spans.WithLabelValues(result).Add(float64(len(spans)))
	if err != nil {
		return fmt.Errorf("%s: %w", text.Count(len(spans), "span"), err)
	}
	return nil
}

// Shutdown implements [sdk.SpanExporter].
func (e exporter) Shutdown(ctx context.Context) error {
	if err := e.out.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
