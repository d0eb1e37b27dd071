package ui

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/server"
)

// Config is what the pages need.
type Config struct {
	// Ready returns what the pages show, or a problem why there is nothing yet. It
	// returns the same session each time.
	Ready func() (*Session, error)
	// API reports whether the API answers a request; nil: none. What neither the API nor a
	// page answers is an unknown address, and the pages say so.
	API func(*http.Request) bool
	// Tokens returns the tokens that one can sign in with; nil if there are none.
	Tokens func() access.Tokens
	// Attempts slow down the guessing of tokens; nil are those of the pages alone.
	Attempts *access.Attempts
	// Open reports that everyone may do everything.
	Open bool
	// Secure has cookies sent over TLS alone.
	Secure bool
	// Logger is silent if nil.
	Logger hclog.Logger
	// Reads bounds what is read for one identity at the same time; nil bounds nothing.
	Reads *server.Turns
	// HTTP counts the live streams that are open, and those that are refused; nil counts nothing.
	HTTP *server.Metrics
}

// Session is what pages read.
type Session struct {
	Client *instance.Client
	Runs   run.Store
	Steps  step.Store
	// Bounds are of the actions, of the API too; nil for none.
	Bounds *audit.Bounds
}

// reader reads what a session shows. It logs actions to log, which may be nil.
func (s *Session) reader(log hclog.Logger) *inspect.Reader {
	r := inspect.NewReader(s.Client, s.Runs, s.Steps, log)
	r.Audit.Bounds = s.Bounds
	return r
}

// Pages serves the pages.
type Pages struct {
	cfg     Config
	log     hclog.Logger
	seal    []byte // of messages
	all     []page
	posts   []form
	sets    *templates
	routes  *http.ServeMux // for Owns
	streams *server.Limiter
	trouble trouble
	// old reports whether etcd has been silent for too long: see [tooOld].
	old     func(context.Context, *Session) error
	history *history
	ends    *expiries
	runs    *runCache
	fleet   *fleetCache

	closed context.Context // ended by close
	close  context.CancelFunc

	// mu guards what follows: the context of Run while it runs, and its goroutines.
	mu    sync.Mutex
	alive context.Context
	tasks sync.WaitGroup
}

// page is one page: where it is, its template, and how what it shows is read.
type page struct {
	pattern string // "GET /pools"
	name    string // templates/<name>.html, which defines "main"
	nav     string // what the navigation calls it; empty: it is not there
	under   string // the page that the navigation shows as the current one; empty: itself
	// every is how often a live page is read again; 0 is never.
	every time.Duration
	// view reads what the page shows.
	view func(ctx context.Context, s *Session, r *http.Request) (*view, error)
	// takesTurns reports that view takes its turns itself, since it also waits for others.
	takesTurns bool
}

// turn waits for a turn to read for who sent a request.
func (p *Pages) turn(ctx context.Context) (leave func(), err error) {
	if p.cfg.Reads == nil {
		return func() {}, nil
	}
	return p.cfg.Reads.Enter(ctx)
}

// view is what a page shows now.
type view struct {
	Title string
	Data  any
}

// form is a POST. What it does checks whether the visitor may do that.
type form struct {
	pattern string // "POST /actions/cancel"
	// do does it, and returns the page to show then; [Pages.withMessage] adds a message to
	// its address.
	do func(ctx context.Context, s *Session, r *http.Request) (to string, err error)
}

// everySecond is how often most live pages are read.
const everySecond = time.Second

// pages is the one list of pages.
func (p *Pages) pages() []page {
	return []page{
		{pattern: "GET /pools", name: "pools", nav: "Pools", every: everySecond, view: p.viewPools},
		{pattern: "GET /queue", name: "queue", nav: "Queue", every: everySecond, view: p.viewQueue},
		{pattern: "GET /runs", name: "runs", nav: "Runs", every: everySecond, view: p.viewRuns},
		p.runPage(),
		{pattern: "GET /hosts", name: "hosts", nav: "Hosts", every: hostsEvery, view: p.fleet.view},
		{pattern: "GET " + actionsPath, name: "actions", nav: "Actions", every: actionsEvery, view: p.viewActions},
		{pattern: "GET " + actionsPath + "/{action}", name: "action", under: "actions", view: p.viewAction},
	}
}

// forms is the one list of POSTs, except for signing in and out.
func (p *Pages) forms() []form {
	return []form{
		{pattern: "POST " + actionsPath + "/{action}", do: p.act},
	}
}

// maxStreams bounds the live streams: each renders its page every second. One identity has half
// of them.
const maxStreams = 256

func newStreams(m *server.Metrics) *server.Limiter {
	return server.NewLimiter(server.LimiterConfig{
		Bound: "pages", What: "live pages", Todo: "this one is not updated", Total: maxStreams, Each: maxStreams / 2, Metrics: m,
	})
}

// New returns the pages. They do nothing until they are registered.
func New(cfg Config) *Pages {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Attempts == nil {
		cfg.Attempts = new(access.Attempts)
	}
	p := &Pages{
		cfg: cfg, log: cfg.Logger.Named("pages"), seal: newSeal(),
		routes: http.NewServeMux(), streams: newStreams(cfg.HTTP), old: tooOld,
		history: newHistory(), ends: newExpiries(),
	}
	p.closed, p.close = context.WithCancel(context.Background())
	p.runs, p.fleet = newRunCache(p.log, p.background), newFleetCache()
	p.trouble.born = time.Now()
	p.all, p.posts = p.pages(), p.forms()
	p.sets = newTemplates()
	p.register(p.routes)
	return p
}

// Register registers the pages, what they load, and what they send.
func (p *Pages) Register(mux *http.ServeMux) { p.register(mux) }

func (p *Pages) register(mux *http.ServeMux) {
	handle := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			secure(w.Header())
			h(w, r)
		})
	}
	handle("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, home, http.StatusSeeOther) })
	handle("GET "+assetsPath+"{version}/{file}", p.asset)
	handle("GET "+signinPath, p.askToSignIn)
	handle("POST "+signinPath, p.signIn)
	handle("POST "+signoutPath, p.signOut)
	for i := range p.all {
		handle(p.all[i].pattern, func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, &p.all[i]) })
	}
	for _, f := range p.posts {
		handle(f.pattern, func(w http.ResponseWriter, r *http.Request) { p.take(w, r, f) })
	}
}

// home is the first page.
const home = "/pools"

// Owns reports whether the pages answer a request: it is for a page, for what belongs to
// the pages, or for an unknown address.
func (p *Pages) Owns(r *http.Request) bool {
	_, pattern := p.routes.Handler(r)
	return pattern != "" || p.cfg.API != nil && !p.cfg.API(r)
}

// Run samples the use of pools and keeps watched copies, until ctx ends. It is called
// while there is a session.
func (p *Pages) Run(ctx context.Context) {
	p.mu.Lock()
	p.alive = ctx
	p.mu.Unlock()
	p.sample(ctx)
	p.mu.Lock()
	p.alive = nil
	p.mu.Unlock()
	p.tasks.Wait()
}

// background runs f asynchronously until Run ends, and reports whether Run runs. Run waits
// for it.
func (p *Pages) background(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive == nil || p.alive.Err() != nil {
		return false
	}
	ctx := p.alive
	p.tasks.Go(func() { f(ctx) })
	return true
}

// Close ends the live streams. Pages are still answered.
func (p *Pages) Close() { p.close() }

// viewTimeout bounds the reading of what a page shows.
const viewTimeout = 10 * time.Second

// secure sets the headers of every answer: only files of this server run and are loaded, and
// no page is framed or cached.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // without any, a form would not send its origin
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

const (
	htmlType   = "text/html"
	streamType = server.StreamType
)

// serve answers with a page, or with a stream of what it shows.
func (p *Pages) serve(w http.ResponseWriter, r *http.Request, pg *page) {
	w.Header().Set("Vary", "Accept, Cookie")
	if err := access.Allow(r.Context(), access.View); err != nil {
		p.mayNotView(w, r, err)
		return
	}
	if pg.every > 0 && r.Method == http.MethodGet && accepts(r, streamType) {
		p.live(w, r, pg)
		return
	}
	_, body, status := p.render(r, pg, false)
	p.write(w, status, body)
}

// write answers with HTML.
func (p *Pages) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", htmlType+"; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// render renders a page as it is now, or why that is not known, and returns the status that goes
// with it.
func (p *Pages) render(r *http.Request, pg *page, live bool) (f *frame, body []byte, status int) {
	f = p.frameOf(r, pg.name, live)
	if pg.every > 0 {
		f.LiveURL = f.Refresh
	}
	v, err := p.readView(r, pg)
	if err == nil {
		p.trouble.over()
		f.Title, f.Data = v.Title, v.Data
		if body, err = p.sets.render(pg.name, f); err == nil {
			return f, body, http.StatusOK
		}
	}
	body, status = p.renderProblem(f, p.problemOf(r, err))
	return f, body, status
}

// readView reads what a page shows.
func (p *Pages) readView(r *http.Request, pg *page) (*view, error) {
	s, err := p.cfg.Ready()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), viewTimeout)
	defer cancel()
	if err := p.old(ctx, s); err != nil {
		return nil, err
	}
	leave := func() {}
	if !pg.takesTurns {
		if leave, err = p.turn(ctx); err != nil {
			return nil, err
		}
	}
	v, err := pg.view(ctx, s, r)
	leave()
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.Is(err, context.DeadlineExceeded):
		err = problem.New(problem.EtcdUnavailable, "what the page shows could not be read within %s", viewTimeout)
	case errors.Is(err, store.ErrUnavailable):
		err = silent(s.Client.Age(ctx))
	}
	return v, err
}

// maxAge is how long etcd may be silent before what was read or watched is too old to be shown.
// Claims are granted for at most 2 s.
const maxAge = 3 * time.Second

// oldError reports that etcd does not answer, and since when.
type oldError struct {
	why   *problem.Error
	since time.Time
}

// Error says what is not known.
func (e *oldError) Error() string { return e.why.Error() }

// Unwrap returns the problem.
func (e *oldError) Unwrap() error { return e.why }

// silent is the error of an etcd that has been silent for some time.
func silent(age time.Duration) error {
	return &oldError{
		why:   problem.New(problem.EtcdUnavailable, "etcd does not answer: the state of pools, runs and hosts is not known"),
		since: time.Now().Add(-age),
	}
}

// tooOld returns an error if etcd has been silent for so long that what was read before may
// not be shown.
func tooOld(ctx context.Context, s *Session) error {
	if age := s.Client.Age(ctx); age > maxAge {
		return silent(age)
	}
	return nil
}

// take carries out a form, and redirects to the next page.
func (p *Pages) take(w http.ResponseWriter, r *http.Request, f form) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	s, err := p.cfg.Ready()
	var to string
	if err == nil {
		err = r.ParseForm()
		if err != nil {
			err = problem.New(problem.Malformed, "the form can't be read: %w", err)
		}
	}
	if err == nil {
		to, err = p.do(r, s, f)
	}
	if err != nil {
		why := p.problemOf(r, err)
		if back := r.PostForm.Get(backKey); back != "" {
			why.Link, why.LinkText = OwnPath(back), "Back"
		}
		body, status := p.renderProblem(p.frameOf(r, "error", false), why)
		p.write(w, status, body)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// do carries out a form in turn: what it acts on can be large.
func (p *Pages) do(r *http.Request, s *Session, f form) (to string, err error) {
	leave, err := p.turn(r.Context())
	if err != nil {
		return "", err
	}
	defer leave()
	return f.do(r.Context(), s, r)
}

// accepts reports whether a client accepts a type by name.
func accepts(r *http.Request, kind string) bool { return server.Accepts(r.Header.Get("Accept"), kind) }
