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
	// Var is the environment variable with the path of the browser. If it is empty,
	// [Open] searches PATH.
	Var = "BERTH_BROWSER"
	// RequiredVar is the environment variable that CI systems set to "true". Then
	// tests fail if the browser or axe-core is missing, instead of being skipped.
	RequiredVar = "CI"

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
	dark    bool
}

// Open opens a tab for a test, which ends with it. If there is no browser, the
// test is skipped, or fails if [RequiredVar] is "true".
func Open(t testing.TB) *Browser {
	t.Helper()
	path, err := find(os.Getenv(Var), exec.LookPath)
	need(t, err)
	parent, err := shared.start(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, seen: newWitness(), scripts: true}
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
	b.Viewport(1280, 900)
	b.Dark(false)
}

// errMissing reports that something that a test needs is not installed.
var errMissing = errors.New("not installed")

// need ends the test if there is an error. If something is not installed, it skips
// the test, or fails it if [RequiredVar] is "true".
func need(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, errMissing) && os.Getenv(RequiredVar) != "true":
		t.Skip(err.Error() + "; with " + RequiredVar + "=true the test would fail")
	case err != nil:
		t.Fatal(err)
	}
}

// names of the browsers to look for.
var names = []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome"}

// find returns the path of the browser. setting is the value of [Var].
func find(setting string, look func(string) (string, error)) (string, error) {
	if setting != "" {
		path, err := look(setting)
		if err != nil {
			return "", fmt.Errorf("%s=%s is not a browser: %w", Var, setting, err)
		}
		return path, nil
	}
	for _, name := range names {
		if path, err := look(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("a browser is %w: run `apt-get install chromium` (Debian), or set %s to the path of a browser", errMissing, Var)
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
	all := []chromedp.ExecAllocatorOption{chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.DisableGPU,
		chromedp.Flag("enable-blink-features", "ComputedAccessibilityInfo"), // the computedName of elements, see Focus
	}
	for _, name := range []string{
		"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync",
		"disable-default-apps", "disable-extensions", "disable-breakpad", "disable-dev-shm-usage",
		"metrics-recording-only", "no-pings", "disable-domain-reliability", "disable-client-side-phishing-detection",
		// Tabs behind the one in front are not to be slower.
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
