package browser

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
)

// violation is the function by which a page tells of violations of its policy.
const violation = "berthTellsOfAViolation"

const violationScript = `document.addEventListener("securitypolicyviolation", e =>
  ` + violation + `("policy: " + e.effectiveDirective + " forbids " + (e.blockedURI || "it") + " " + e.sample +
    " in " + e.sourceFile + ":" + e.lineNumber))`

// skippable is what the browser has about pages that go on by themselves, as those
// do that a test sends away.
const skippable = "NavigationEntryMarkedSkippable"

// witness sees what happens in a tab. Its events come one by one, from the
// goroutine that reads them.
type witness struct {
	mu         sync.Mutex // guards what follows
	hosts      []string   // that may be asked
	complaints []string
	urls       map[network.RequestID]string
	loads      int
	status     int           // of the last document
	changed    chan struct{} // closed at the next event
}

func newWitness() *witness {
	return &witness{urls: map[network.RequestID]string{}, changed: make(chan struct{})}
}

// see takes an event.
func (w *witness) see(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *page.EventLoadEventFired:
		w.loads++
	case *network.EventRequestWillBeSent:
		w.asked(e)
	case *network.EventResponseReceived:
		w.answered(e)
	case *network.EventLoadingFailed:
		// What the page itself breaks off, as by leaving, is no failure.
		if !e.Canceled || e.BlockedReason != "" {
			w.complain("%s failed: %s %s", w.urls[e.RequestID], e.ErrorText, e.BlockedReason)
		}
	default:
		w.note(event)
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// note takes what the page or the browser says of it.
func (w *witness) note(event any) {
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		w.complain("console.%s: %s", e.Type, texts(e.Args))
	case *runtime.EventExceptionThrown:
		w.complain("uncaught: %s", exception(e.ExceptionDetails))
	case *runtime.EventBindingCalled:
		if e.Name == violation {
			w.complain("%s", e.Payload)
		}
	case *log.EventEntryAdded:
		// Those of the network come with its own events.
		if e.Entry.Source != log.EntrySourceNetwork && e.Entry.Level != log.EntryLevelVerbose {
			w.complain("log of %s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *audits.EventIssueAdded:
		if details, err := json.Marshal(e.Issue.Details); err == nil && !strings.Contains(string(details), skippable) {
			w.complain("issue %s: %s", e.Issue.Code, details)
		}
	}
}

func (w *witness) asked(e *network.EventRequestWillBeSent) {
	w.urls[e.RequestID] = e.Request.Method + " " + e.Request.URL
	u, err := url.Parse(e.Request.URL)
	switch {
	case err != nil:
		w.complain("%q was asked for: %v", e.Request.URL, err)
	case u.Scheme == "data" || u.Scheme == "about" || slices.Contains(w.hosts, u.Host):
	default:
		w.complain("another host was asked: %s", e.Request.URL)
	}
}

func (w *witness) answered(e *network.EventResponseReceived) {
	if e.Type == network.ResourceTypeDocument {
		w.status = int(e.Response.Status)
	}
	if e.Response.Status >= 400 {
		w.complain("%s: status %d", w.urls[e.RequestID], e.Response.Status)
	}
}

func (w *witness) complain(format string, args ...any) {
	w.complaints = append(w.complaints, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// texts are the arguments of a call of the console.
func texts(args []*runtime.RemoteObject) string {
	var all []string
	for _, a := range args {
		switch {
		case a.Description != "":
			all = append(all, a.Description)
		case a.UnserializableValue != "":
			all = append(all, string(a.UnserializableValue))
		default:
			all = append(all, string(a.Value))
		}
	}
	return strings.Join(all, " ")
}

func exception(d *runtime.ExceptionDetails) string {
	text := d.Text
	if d.Exception != nil {
		text = texts([]*runtime.RemoteObject{d.Exception})
	}
	return fmt.Sprintf("%s at %s:%d", text, d.URL, d.LineNumber+1)
}

// next returns a channel that is closed at the next event.
func (w *witness) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// loaded is how many documents have been loaded.
func (w *witness) loaded() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loads
}

// take returns the complaints so far, and forgets them.
func (w *witness) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.complaints
	w.complaints = nil
	return all
}

// blame gives back complaints that were taken.
func (w *witness) blame(complaints []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complaints = append(complaints, w.complaints...)
}
