package browser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const (
	// Var names the browser to use: a path, or [Required]. Empty looks for one.
	Var = "BERTH_BROWSER"
	// Required as the value of [Var] makes tests fail where there is no browser,
	// instead of being skipped.
	Required = "required"

	// patience bounds every wait, also on a busy machine.
	patience = 60 * time.Second
)

// Browser is a tab of the browser that the tests of a binary share. Its methods
// fail the test if what they are asked for can't be done, and are for the
// goroutine of the test.
type Browser struct {
	t       testing.TB
	ctx     context.Context // of the tab
	seen    *witness
	scripts bool // the page's scripts run
	width   int  // of the viewport
	height  int
	dark    bool
}

// Open opens a tab for a test, which ends with it. Where there is no browser, the
// test is skipped, or fails if [Var] is [Required].
func Open(t testing.TB) *Browser {
	t.Helper()
	path, err := find(os.Getenv(Var), exec.LookPath)
	switch {
	case errors.Is(err, errSkip):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	parent, err := shared.start(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, seen: newWitness(), scripts: true, width: 1280, height: 900}
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.seen.see))
	b.ctx = ctx
	t.Cleanup(func() {
		b.judge()
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("closing the tab: %v", err)
		}
		cancel()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("opening a tab: %v", err)
	}
	b.prepare()
	return b
}

// prepare has the tab tell what a [witness] wants to know.
func (b *Browser) prepare() {
	b.t.Helper()
	call(b, audits.Enable, cdp.Empty{})
	call(b, runtime.AddBinding, runtime.AddBindingParams{Name: violation})
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: violationScript})
	// A page in a tab that is not in front has no focus otherwise.
	call(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	b.Viewport(b.width, b.height)
	b.Dark(false)
}

// errSkip is that there is no browser, and nobody said that there must be.
var errSkip = errors.New("there is no browser: install Chromium (Debian: apt-get install chromium), or set " +
	Var + " to the path of one; with " + Var + "=" + Required + " this would be a failure")

// names of the browsers to look for.
var names = []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"}

// find returns the path of the browser that a setting means.
func find(setting string, look func(string) (string, error)) (string, error) {
	if setting != "" && setting != Required {
		path, err := look(setting)
		if err != nil {
			return "", fmt.Errorf("%s=%s is no browser: %w", Var, setting, err)
		}
		return path, nil
	}
	for _, name := range names {
		if path, err := look(name); err == nil {
			return path, nil
		}
	}
	if setting == Required {
		return "", fmt.Errorf("%s=%s, and there is none of %q: install Chromium (Debian: apt-get install chromium)", Var, Required, names)
	}
	return "", errSkip
}

// Closing wraps the tests of a package so that the browser ends after them.
func Closing(m interface{ Run() int }) interface{ Run() int } { return closing{m} }

type closing struct{ tests interface{ Run() int } }

func (c closing) Run() int {
	code := c.tests.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the browser:", err)
		return max(code, 1)
	}
	return code
}

// shared is the browser of this process.
var shared process

// process is a browser that runs.
type process struct {
	mu     sync.Mutex // guards what follows
	ctx    context.Context
	cancel context.CancelFunc
	err    error
}

// start starts the browser, or returns the one that runs.
func (p *process) start(path string) (context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx != nil || p.err != nil {
		return p.ctx, p.err
	}
	var said bytes.Buffer
	alloc, end := chromedp.NewExecAllocator(context.Background(), append(flags(), chromedp.ExecPath(path), chromedp.CombinedOutput(&said))...)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {}))
	started := make(chan error, 1)
	go func() { started <- chromedp.Do(ctx) }()
	select {
	case p.err = <-started:
	case <-time.After(patience):
		p.err = errors.New("it does not answer")
	}
	if p.err != nil {
		cancel()
		end()
		p.err = fmt.Errorf("starting %s: %w\n%s", path, p.err, said.Bytes())
		return nil, p.err
	}
	p.ctx = ctx
	p.cancel = func() { cancel(); end() }
	return ctx, nil
}

// close ends the browser, and what it has left on disk.
func (p *process) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	err := chromedp.Cancel(ctx)
	p.cancel()
	p.ctx = nil
	return err
}

// flags are those of the browser. It runs without its sandbox as root, which is
// what chromedp sees to.
func flags() []chromedp.ExecAllocatorOption {
	all := []chromedp.ExecAllocatorOption{chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.DisableGPU, chromedp.Flag("enable-blink-features", "ComputedAccessibilityInfo")}
	for _, name := range []string{
		"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"disable-default-apps", "disable-extensions", "disable-breakpad", "disable-dev-shm-usage",
		"metrics-recording-only", "no-pings", "disable-domain-reliability", "disable-client-side-phishing-detection",
		// Tabs beside the one in front are not to be slower.
		"disable-background-timer-throttling", "disable-backgrounding-occluded-windows", "disable-renderer-backgrounding",
		"disable-hang-monitor", "disable-ipc-flooding-protection",
	} {
		all = append(all, chromedp.Flag(name, true))
	}
	return append(all,
		chromedp.Flag("host-resolver-rules", "MAP *.test 127.0.0.1"), // for tests of other sites
		chromedp.Flag("disable-features", "Translate,OptimizationHints,MediaRouter,InterestFeedContentSuggestions"),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("password-store", "basic"), chromedp.Flag("lang", "en-GB"))
}
