package ui_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
)

// wicked is text that a page must show, and never interpret.
const wicked = `<script>alert(1)</script>"'&amp;{{.}}<img src=x onerror=alert(2)>`

// runSite is a site with runs whose steps are done by hand.
type runSite struct{ *queueSite }

func newRunSite(t testing.TB, change ...func(*sidecar.Config)) *runSite {
	return &runSite{newQueueSite(t, change...)}
}

// begin admits a run and lets it begin, as a coordinator would.
func (d *runSite) begin(id string) {
	d.t.Helper()
	d.change(id, func(r *run.Record) {
		*r, _ = r.Admit("claim-of-"+id, time.Now())
		*r, _ = r.Begin(time.Now())
	})
}

// is writes the state of an instance.
func (d *runSite) is(id, name string, index int, rec step.Record) {
	d.t.Helper()
	d.put(store.Put(d.store.Keys.Step(store.StepID{Run: id, Step: name, Index: index}), rec.Encode(), 0))
}

// takes takes an instance that a coordinator has published, as a worker would.
func (d *runSite) takes(id store.StepID) *step.Taken {
	d.t.Helper()
	var found *step.Published
	d.eventually(id.String()+" is published", func() bool {
		all, err := store.ReadAll(d.t.Context(), d.store.Backend, d.store.Keys.ReadyAll())
		if err != nil {
			d.t.Fatal(err)
		}
		for _, kv := range all.KVs {
			if p, err := step.DecodeReady(d.store.Keys, kv); err == nil && p.ID() == id {
				found = p
			}
		}
		return found != nil
	})
	lease, _, err := d.store.Backend.Grant(d.t.Context(), time.Hour)
	if err != nil {
		d.t.Fatal(err)
	}
	taken, err := d.steps.Take(d.t.Context(), found, run.Executor{Host: "two", Instance: "worker"}, lease)
	if err != nil {
		d.t.Fatal(err)
	}
	return taken
}

// ends finishes an instance as its worker would.
func (d *runSite) ends(t *step.Taken, o step.Outcome) {
	d.t.Helper()
	if _, err := d.steps.Finish(d.t.Context(), t, o, nil); err != nil {
		d.t.Fatal(err)
	}
}

// tells writes an event of a run.
func (d *runSite) tells(id string, e run.Event) {
	d.t.Helper()
	op, err := d.store.Journal.Op(d.t.Context(), id, e)
	if err != nil {
		d.t.Fatal(err)
	}
	d.put(op)
}

// line is the row of a table with an id: the texts of its cells.
func (d *document) line(id string) []string {
	d.t.Helper()
	return texts(d.within(d.must(id)).all(func(n *html.Node) bool { return n.Data == "td" || n.Data == "th" }))
}

// lines are the rows of a table's body: the texts of their cells.
func (d *document) lines(table string) [][]string {
	d.t.Helper()
	return d.within(d.must(table)).cells()
}

// fact is what the head of a run says of something.
func (d *document) fact(name string) string {
	for _, div := range d.all(func(n *html.Node) bool { return n.Data == "div" }) {
		if dt := d.within(div).tags("dt"); len(dt) == 1 && strings.EqualFold(text(dt[0]), name) {
			return text(d.within(div).tags("dd")[0])
		}
	}
	return ""
}

// says wants a text to be read on a page.
func (d *document) says(wants ...string) {
	d.t.Helper()
	got := text(d.root)
	for _, want := range wants {
		if !strings.Contains(got, want) {
			d.t.Errorf("the page does not say %q:\n%s", want, got)
		}
	}
}

// shows wants a hostile text to be read as it is, and nothing of it to have become a
// part of the page. checkPage has looked for scripts and handlers.
func (d *document) shows(texts ...string) {
	d.t.Helper()
	d.says(texts...)
	for _, img := range d.tags("img") {
		d.t.Errorf("a text became an image: %v", img.Attr)
	}
}

// watched is a page as it is streamed.
type watched struct {
	t     testing.TB
	lines *bufio.Scanner
}

// stream shows a page until the test ends.
func (d *runSite) stream(path string) *watched {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), "GET", d.base+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	tr := &http.Transport{}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		resp.Body.Close()
		tr.CloseIdleConnections()
	})
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return &watched{t: d.t, lines: lines}
}

// main is the next main part that is sent.
func (w *watched) main() *document {
	w.t.Helper()
	event, data := "", []string{}
	for w.lines.Scan() {
		name, value, _ := strings.Cut(w.lines.Text(), ": ")
		switch {
		case name == "event":
			event = value
		case name == "data":
			data = append(data, value)
		case name == "" && event == "main":
			return parse(w.t, strings.Join(data, "\n"))
		case name == "":
			event, data = "", nil
		}
	}
	w.t.Fatalf("the stream has ended: %v", w.lines.Err())
	return nil
}
