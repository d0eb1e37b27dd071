package sidecar

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/lograte"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/claims"
	"github.com/berthhq/berth/sidecar/executor"
	"github.com/berthhq/berth/sidecar/server"
	"github.com/berthhq/berth/sidecar/ui"
)

// apiServer has the endpoints of the API.
type apiServer struct {
	cfg     *Config
	log     hclog.Logger
	metrics *metrics
	waits   *waits
	// streams bounds the streams of events of pools and claims, watching those and the waits
	// of which each has a watch in etcd.
	streams, watching *server.Limiter
	// reads bounds the reads whose cost depends on what users have stored.
	reads *server.Turns
	// attempts are those to guess tokens, of requests and on the pages.
	attempts access.Attempts
	faults   lograte.Limit // of the log of failed requests

	// ifUnread is [server.IfUnread].
	ifUnread func(ctx context.Context, f func())

	// session is nil until the instance is open; missing says what that waits for.
	session atomic.Pointer[session]
	missing atomic.Pointer[problem.Error]
	// stopping is why the server ends; nil while it does not.
	stopping atomic.Pointer[problem.Error]

	pages *ui.Pages
	mux   *endpoints
	// yaml and json return the OpenAPI document. It is rendered at the first request, because
	// that takes longer than everything else at the start of a server.
	yaml, json func() ([]byte, error)
}

// session is what there is once etcd has answered.
type session struct {
	client  *instance.Client
	reader  *inspect.Reader
	runs    run.Store
	steps   step.Store
	holders *claims.Holders
	procs   *proc.Watcher
	// hasEnded is [claims.Holders.HasEnded].
	hasEnded  func(id string, fence store.Fence) bool
	executors *executor.Executors
	hub       *server.Hub
	shown     *ui.Session // what the pages show
	dispatch  *dispatchView
}

// stores returns the stores of runs and of steps behind a client.
func (a *apiServer) stores(client *instance.Client) (run.Store, step.Store) {
	backend, keys := client.Store()
	journal := run.NewJournal(backend, keys, client.Host()+"/"+client.Instance(), a.cfg.RunRetention).Bound(a.cfg.MaxRunEvents)
	quota := &run.Quota{Unfinished: a.cfg.MaxUnfinishedRuns, Stored: a.cfg.MaxStoredRunData, Ahead: a.cfg.MaxNotBefore, Refused: a.metrics.tooMany}
	return run.Store{Backend: backend, Keys: keys, Journal: journal, Quota: quota},
		step.Store{Backend: backend, Keys: keys, Journal: journal, Group: &store.Group{}, Flights: step.NewFlights()}
}

// newSession returns the session of a client, with its executors.
func (a *apiServer) newSession(client *instance.Client, hs *claims.Holders, procs *proc.Watcher, h *server.Hub) *session {
	runs, steps := a.stores(client)
	bounds := &audit.Bounds{Refused: func() { a.metrics.http.Refused("actions") }}
	reader := inspect.NewReader(client, runs, steps, a.log)
	reader.Audit.Bounds = bounds
	return &session{
		client: client, reader: reader, runs: runs, steps: steps,
		holders: hs, procs: procs, hasEnded: hs.HasEnded, hub: h,
		executors: executor.New(executor.Config{
			Client: client, Runs: runs, Steps: steps, StateDir: a.cfg.Options.StateDir, Tracer: a.cfg.Tracer, Log: a.log, Metrics: a.metrics.executors,
		}),
		dispatch: &dispatchView{reader: reader},
		shown:    &ui.Session{Client: client, Runs: runs, Steps: steps, Bounds: bounds},
	}
}

const (
	// maxStreams bounds the streams of events of pools and claims. Each takes some 30 KB, and
	// each claim of a client of this server can have one. One identity has half of them.
	maxStreams = 4096
	// maxWatching bounds the streams of events of runs, and the waits for queues, sources and
	// outputs: each has a watch in etcd. One identity has three quarters of them: the executors
	// of a host are often one identity.
	maxWatching = 256
)

// newWatching returns the limiter of what has a watch in etcd.
func newWatching(m *server.Metrics, most int) *server.Limiter {
	return server.NewLimiter(server.LimiterConfig{
		Bound: "watches", What: "streams of runs and waits for queues, sources and outputs",
		Todo: "close some, or ask for the list or without wait", Total: most, Each: max(most*3/4, 1), Metrics: m,
	})
}

const (
	// maxReads bounds the large reads at the same time: each can take some 30 MB, for a page of
	// what is in etcd and for its answer. One identity has a quarter of them.
	maxReads = 16
	// maxReadsWaiting bounds those of one identity that wait for their turn, and readPatience
	// for how long.
	maxReadsWaiting = 64
	readPatience    = 30 * time.Second
)

// newReads returns the turns of large reads.
func newReads(m *server.Metrics) *server.Turns {
	return server.NewTurns(server.TurnsConfig{
		Bound: "reads", What: "large reads", Todo: "try again later, with fewer at a time",
		Total: maxReads, Each: maxReads / 4, Waiting: maxReadsWaiting, Patience: readPatience, Metrics: m,
	})
}

// large are the operations whose cost depends on what users have stored. They take a turn, from
// before they read until their answer is written.
var large = map[string]bool{
	"list-claims": true, "why-claim": true, "list-pools": true, "get-pool": true,
	"list-runs": true, "why-run": true, "list-steps": true, "list-step-instances": true, "get-step-instance": true,
	"retry-run": true, "retry-step": true,
	"list-hosts": true, "list-workers": true, "get-coordinator": true, "list-actions": true,
	"list-sources": true, "get-source": true, "get-limits": true,
}

// inTurn is the middleware of large operations.
func (a *apiServer) inTurn(op string) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		leave, err := a.reads.Enter(ctx.Context())
		if err != nil {
			_, w := humago.Unwrap(ctx)
			a.fail(ctx.Context(), op, hungUp(ctx.Context(), err)).Write(w)
			return
		}
		defer leave()
		next(ctx)
	}
}

func newAPI(cfg *Config, m *metrics) (*apiServer, error) {
	a := &apiServer{cfg: cfg, log: cfg.Logger, metrics: m, waits: newWaits(m.http), ifUnread: server.IfUnread, mux: newEndpoints()}
	a.streams = server.NewLimiter(server.LimiterConfig{
		Bound: "streams", What: "streams of events", Todo: "close some, or read the state instead", Total: maxStreams, Each: maxStreams / 2, Metrics: m.http,
	})
	a.watching = newWatching(m.http, maxWatching)
	a.reads = newReads(m.http)
	a.missing.Store(problem.New(problem.EtcdUnavailable, "etcd has not answered yet"))
	a.mux.mayOwn = func(r *http.Request, pattern string, need access.Need) error {
		s, err := a.ready()
		if err != nil {
			return err
		}
		return owners{a, s, need}.mayOwn(r, pattern)
	}
	h := humago.New(a.mux, api.Config(cfg.Options.Version))
	a.registerClaims(h)
	a.registerPools(h)
	a.registerRuns(h)
	a.registerRunEvents(h)
	a.registerSteps(h)
	a.registerTaking(h)
	a.registerLimits(h)
	a.registerCoordinator(h)
	a.registerHosts(h)
	a.registerWorkers(h)
	a.registerActions(h)
	a.registerSources(h)
	a.registerEvents(h)
	a.registerHealth(h)
	a.registerAccess(h)
	if err := api.Finish(h.OpenAPI()); err != nil {
		return nil, err
	}
	a.yaml = sync.OnceValues(h.OpenAPI().YAML)
	a.json = sync.OnceValues(h.OpenAPI().MarshalJSON)
	a.registerDocument()
	a.pages = a.newPages()
	a.pages.Register(a.mux.ServeMux)
	return a, nil
}

// ready returns the session, or why there is none.
func (a *apiServer) ready() (*session, error) {
	if s := a.session.Load(); s != nil {
		return s, nil
	}
	if why := a.stopping.Load(); why != nil {
		return nil, why
	}
	if why := a.cfg.etcdWaits(); why != nil {
		return nil, why
	}
	return nil, a.missing.Load()
}

// suggester is [instance.Client.Suggest].
type suggester func(ctx context.Context, err error, may func(name string) bool) error

// suggest adds the name of the pool that was probably meant to an error about one that does not exist, if the
// caller may know that name.
func suggest(ctx context.Context, by suggester, reads *server.Turns, op string, err error) error {
	if problem.CodeOf(err) != problem.PoolNotFound {
		return err
	}
	if !large[op] { // it has no turn yet
		leave, refused := reads.Enter(ctx)
		if refused != nil {
			return err
		}
		defer leave()
	}
	id := access.Of(ctx)
	return by(ctx, err, func(name string) bool {
		return id.Allow(access.View, access.Everything) == nil || id.Allow(access.Claim, name) == nil
	})
}

// fail returns an error as a problem, and logs faults, and that etcd does not answer, at a bounded rate.
func (a *apiServer) fail(ctx context.Context, op string, err error) *api.Problem {
	if s := a.session.Load(); s != nil {
		err = suggest(ctx, s.client.Suggest, a.reads, op, err)
	}
	p := api.ProblemOf(err)
	p.RequestID = server.RequestIDOf(ctx)
	switch {
	case p.Status == http.StatusInternalServerError:
		a.faults.Log(a.log, hclog.Error, p.Code, "a request failed", server.LogArgs(ctx, keyOp, op, keyCode, p.Code, keyError, err)...)
	case p.Status > http.StatusInternalServerError && p.Code != string(problem.Stopping):
		a.faults.Log(a.log, hclog.Warn, p.Code, "a request failed", server.LogArgs(ctx, keyOp, op, keyCode, p.Code, keyError, err)...)
	}
	return p
}

// registerDocument serves the OpenAPI document.
func (a *apiServer) registerDocument() {
	serve := func(path, kind string, read func() ([]byte, error)) {
		a.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			body, err := read()
			if err != nil {
				a.fail(r.Context(), "read-document", err).Write(w)
				return
			}
			w.Header().Set("Content-Type", kind)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
		})
	}
	serve("/openapi.yaml", "application/openapi+yaml;version=3.1", a.yaml)
	serve("/openapi.json", "application/openapi+json;version=3.1", a.json)
}

// operation describes an endpoint. Errors of all kinds are problems.
func operation(h huma.API, id, method, path, tag, summary string) huma.Operation {
	schema := h.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[api.Problem](), true, "")
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Responses: map[string]*huma.Response{
			"default": {
				Description: "A problem, by its code.",
				Content:     map[string]*huma.MediaType{api.ProblemType: {Schema: schema}},
				Headers: map[string]*huma.Header{
					api.RetryAfter: {
						Description: "After how many seconds to repeat the request, if that may help.",
						Schema:      &huma.Schema{Type: huma.TypeInteger},
					},
					server.RequestIDHeader: {
						Description: "The id of the request, which every answer has: that of the same header of the request, or a generated one.",
						Schema:      &huma.Schema{Type: huma.TypeString},
					},
				},
			},
		},
	}
}

// output is an answer with a body.
type output[T any] struct{ Body T }

// tagged is an answer with a state that has an entity tag.
type tagged[T any] struct {
	ETag string `header:"ETag" doc:"Of the state in this answer: send it in If-Match to change nothing else."`
	Body T
}

// outputOf answers with a body, or with an error.
func outputOf[T any](v T, err error) (*output[T], error) {
	if err != nil {
		return nil, err
	}
	return &output[T]{Body: v}, nil
}

// handle registers an endpoint without a body, with what it needs of its callers: see
// [endpoints.permit]. Until etcd has answered it is refused. The answer that handle returns is that of
// the endpoint; its error is a [*api.Problem].
func handle[I, O any](a *apiServer, h huma.API, op huma.Operation, f func(context.Context, *session, *I) (*O, error)) (answer func(context.Context, *I) (*O, error)) {
	a.mux.needs[patternOf(op)] = access.NeedOf(op.OperationID)
	answer = func(ctx context.Context, in *I) (out *O, err error) {
		s, err := a.ready()
		if err == nil {
			out, err = f(ctx, s, in)
		}
		if err != nil {
			return nil, a.fail(ctx, op.OperationID, hungUp(ctx, err))
		}
		return out, nil
	}
	if large[op.OperationID] {
		op.Middlewares = append(op.Middlewares, a.inTurn(op.OperationID))
	}
	huma.Register(h, op, answer)
	return answer
}

// hungUp returns one problem for the errors with which calls end whose client is gone: they
// are no fault, and no client reads them.
func hungUp(ctx context.Context, err error) error {
	gone := errors.Is(err, context.Canceled) || problem.CodeOf(err) == problem.EtcdUnavailable
	if ctx.Err() == nil || !gone {
		return err
	}
	return problem.New(problem.ClaimCanceled, "the request was canceled: its client has hung up")
}

// Payload is the body of a request that can be large. Unlike RawBody of huma, it is no copy.
type Payload struct{ body *server.Body }

// Resolve finds the body.
func (p *Payload) Resolve(ctx huma.Context) []error {
	r, _ := humago.Unwrap(ctx)
	p.body = server.BodyOf(r)
	return nil
}

func (p *Payload) bytes() []byte {
	if p.body == nil {
		return nil
	}
	return p.body.Bytes()
}

// decoded gives up the text, which was decoded.
func (p *Payload) decoded() {
	if p.body != nil {
		p.body.DropText()
	}
}

// withID is the input of an endpoint of one run, with a body.
type withID struct {
	ID      string `path:"id"`
	RawBody []byte `contentType:"application/json"`
}

// handleBody registers an endpoint with a body of type T. It is read by our own
// [decoder]: huma would take fields in other spellings, and names given twice.
func handleBody[T, I, O any](a *apiServer, h huma.API, op huma.Operation, optional bool, raw func(*I) []byte, f func(context.Context, *session, *I, T) (*O, error)) (answer func(context.Context, *I) (*O, error)) {
	d := api.NewDecoder[T](optional)
	op.RequestBody = &huma.RequestBody{}
	op.SkipValidateBody = true
	op.MaxBodyBytes = maxRunBody + 1 // package server has checked it
	op.BodyReadTimeout = -1          // as well
	answer = handle(a, h, op, func(ctx context.Context, s *session, in *I) (*O, error) {
		v, err := d.Decode(raw(in))
		if err != nil {
			return nil, err
		}
		if large, ok := any(in).(interface{ decoded() }); ok {
			large.decoded()
		}
		return f(ctx, s, in, v)
	})
	t := reflect.TypeFor[T]()
	op.RequestBody.Required = !optional
	op.RequestBody.Content = map[string]*huma.MediaType{
		"application/json": {Schema: h.OpenAPI().Components.Schemas.Schema(t, true, "")},
	}
	return answer
}
