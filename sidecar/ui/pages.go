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
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
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
	// Token is what the API asks for; empty: none.
	Token string
	// Dev allows actions without a token, where none is asked for.
	Dev bool
	// Secure has cookies sent over TLS alone.
	Secure bool
	// Logger is silent if nil.
	Logger hclog.Logger
	// Streams counts the live streams that are open; nil counts nothing.
	Streams Gauge
}

// Gauge goes up and down.
type Gauge interface {
	Inc()
	Dec()
}

// Session is the fleet as pages reach it.
type Session struct {
	Client *instance.Client
	Runs   run.Store
	Steps  step.Store
}

// reader reads what a session shows. It logs actions to log, which may be nil.
func (s *Session) reader(log hclog.Logger) *inspect.Reader {
	return inspect.NewReader(s.Client, s.Runs, s.Steps, log)
}

// Pages serves the pages.
type Pages struct {
	cfg     Config
	log     hclog.Logger
	key     []byte // of cookies
	seal    []byte // of messages
	all     []page
	posts   []form
	sets    *templates
	routes  *http.ServeMux // what Owns looks at
	streams chan struct{}  // holds one for each live stream that is open
	trouble trouble
	// old tells whether etcd has not been heard of: see [tooOld].
	old     func(context.Context, *Session) error
	history *history
	ends    *expiries
	board   *board // of the runs
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
	// every is how often what it shows is looked at again while it is live; 0 is
	// never.
	every time.Duration
	// act tells that it is for those alone who may act.
	act bool
	// view reads what the page shows.
	view func(ctx context.Context, s *Session, r *http.Request) (*view, error)
}

// view is what a page shows now.
type view struct {
	Title string
	Data  any
}

// form is what is done by a POST, by those alone who may act: see [mayOf] and [whoOf].
type form struct {
	pattern string // "POST /actions/cancel"
	// do does it, and returns the page to show then; [Pages.withMessage] adds a message to
	// its address.
	do func(ctx context.Context, s *Session, r *http.Request) (to string, err error)
}

// everySecond is how often most pages look.
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
		{pattern: "GET " + actionsPath + "/{action}", name: "action", under: "actions", act: true, view: p.viewAction},
	}
}

// forms is the one list of what is done by a POST, signing in and out aside.
func (p *Pages) forms() []form {
	return []form{
		{pattern: "POST " + actionsPath + "/{action}", do: p.act},
	}
}

// maxStreams bounds the live streams: each renders its page every second.
const maxStreams = 256

// New returns the pages. They do nothing until they are registered.
func New(cfg Config) *Pages {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	p := &Pages{
		cfg: cfg, log: cfg.Logger.Named("pages"), key: cookieKey(cfg.Token), seal: newSeal(),
		routes: http.NewServeMux(), streams: make(chan struct{}, maxStreams), old: tooOld,
		history: newHistory(), ends: newExpiries(),
	}
	p.closed, p.close = context.WithCancel(context.Background())
	p.board, p.fleet = newBoard(p.log, p.background), newFleetCache()
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

// home is the page that one comes to first.
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

// background has f run beside Run, whose end ends its context, and tells whether Run
// runs. Run waits for it.
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

// secure sets the headers of every answer: nothing runs, and nothing is loaded, that is not
// ours; nobody frames a page, and nobody keeps one.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with none at all, a form would not say whose it is
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
	if pg.act && !p.may(r) {
		p.refuse(w, r, p.mayNot())
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
	v, err := p.look(r, pg)
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

// look reads what a page shows.
func (p *Pages) look(r *http.Request, pg *page) (*view, error) {
	s, err := p.cfg.Ready()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(p.withLooker(r), viewTimeout)
	defer cancel()
	if err := p.old(ctx, s); err != nil {
		return nil, err
	}
	v, err := pg.view(ctx, s, r)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil {
		err = problem.New(problem.EtcdUnavailable, "what the page shows could not be read within %s", viewTimeout)
	}
	return v, err
}

// maxAge is from what age on the watched copy of the pools is not shown as what they are. A claim
// is granted by one of 2 s at most.
const maxAge = 3 * time.Second

// oldError tells that etcd is not heard of any more, and since when.
type oldError struct {
	why   *problem.Error
	since time.Time
}

// Error says what is not known.
func (e *oldError) Error() string { return e.why.Error() }

// Unwrap returns the problem.
func (e *oldError) Unwrap() error { return e.why }

// tooOld tells whether etcd has not been heard of for so long that nothing can be shown.
func tooOld(ctx context.Context, s *Session) error {
	age, err := s.Client.Age(ctx)
	if err != nil || age <= maxAge {
		return err
	}
	return &oldError{
		why:   problem.New(problem.EtcdUnavailable, "etcd does not answer: what pools, runs and hosts are like now is not known"),
		since: time.Now().Add(-age),
	}
}

// take does what a form asks for, and shows the page that comes then.
func (p *Pages) take(w http.ResponseWriter, r *http.Request, f form) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	if !p.may(r) {
		p.refuse(w, r, p.mayNot())
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
		to, err = f.do(p.withLooker(r), s, r)
	}
	if err != nil {
		why := p.problemOf(r, err)
		if back := r.PostForm.Get(backKey); back != "" {
			why.Link, why.LinkText = ownPath(back), "Back"
		}
		body, status := p.renderProblem(p.frameOf(r, "error", false), why)
		p.write(w, status, body)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// accepts tells whether a type is named among those that a client takes.
func accepts(r *http.Request, kind string) bool { return server.Accepts(r.Header.Get("Accept"), kind) }
