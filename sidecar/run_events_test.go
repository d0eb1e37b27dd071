package sidecar_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// frame is an event of a stream, as its reader gets it.
type frame struct{ id, event, data string }

// openStream asks for the events of a run as a stream.
func (d *dock) openStream(id, last string) (next func() frame, end func()) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), "GET", d.base+"/v1/runs/"+id+"/events", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html;q=0.1, text/event-stream")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		d.t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		d.t.Fatalf("%d, %s", resp.StatusCode, got)
	}
	lines := bufio.NewScanner(resp.Body)
	next = func() (f frame) {
		d.t.Helper()
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				f.id = value
			case "event":
				f.event = value
			case "data":
				f.data = value
			case "":
				if f.event != "" {
					return f
				}
			}
		}
		return frame{event: "closed"}
	}
	return next, func() { _ = resp.Body.Close() }
}

func TestTheEventsOfARunAreStreamedUntilItHasEnded(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	d.submit(api.RunRequest{ID: "a"})
	next, end := d.openStream("a", "")
	defer end()
	first := next()
	if first.event != "RunQueued" || !strings.HasPrefix(first.data, `{"type":"RunQueued",`) || first.id == "" {
		t.Errorf("%+v", first)
	}
	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{Reason: "not today"}); err != nil {
		t.Fatal(err)
	}
	second := next()
	if second.event != "RunCanceled" || !strings.Contains(second.data, `"reason":"not today"`) {
		t.Errorf("%+v", second)
	}
	if last := next(); last != (frame{event: "end", data: `{"type":"end"}`}) {
		t.Errorf("%+v", last)
	}
	if after := next(); after.event != "closed" {
		t.Errorf("after the end: %+v", after)
	}

	revision, _, _ := strings.Cut(first.id, "-")
	for _, last := range []string{first.id, revision} {
		again, end := d.openStream("a", last)
		if got := again(); got != second {
			t.Errorf("after %s: %+v", last, got)
		}
		end()
	}
}

func TestTheListOfARunsEventsStaysAList(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a"})
	for _, accept := range []string{"", "application/json", "*/*", "text/event-stream;q=0", "text/event-stream;q=0.0, */*"} {
		a := d.raw(request{method: "GET", path: "/v1/runs/a/events", change: func(r *http.Request) { r.Header.Set("Accept", accept) }})
		var list api.List[api.RunEvent]
		decode(t, a, &list)
		if len(list.Items) != 1 || a.header.Get("Content-Type") != "application/json" || a.header.Get("Vary") != "Accept" {
			t.Errorf("Accept %q: %s %v", accept, a.body, a.header)
		}
	}
}

func TestStreamsThatCantBegin(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	d.submit(api.RunRequest{ID: "a"})
	ask := func(id, last string) answer {
		return d.raw(request{method: "GET", path: "/v1/runs/" + id + "/events", change: func(r *http.Request) {
			r.Header.Set("Accept", "text/event-stream")
			r.Header.Set("Last-Event-ID", last)
		}})
	}
	d.wantRefused(ask("nobody", ""), problem.RunNotFound)
	d.wantRefused(ask("no%20id", ""), problem.Invalid, "id")
	d.wantRefused(ask("a", "yesterday"), problem.Invalid, "Last-Event-ID")
	d.put(d.store.Keys.Event("a", "x"), "{")
	d.wantRefused(ask("a", ""), problem.CorruptValue)
}

func TestAStreamOfARunEndsWithItsServer(t *testing.T) {
	d := newDock(t)
	d.submit(api.RunRequest{ID: "a"})
	next, end := d.openStream("a", "")
	defer end()
	next()
	d.server.Stop(sidecar.Leave)
	if last := next(); last != (frame{event: "stopping", data: `{"type":"stopping"}`}) {
		t.Errorf("%+v", last)
	}
	if after := next(); after.event != "closed" {
		t.Errorf("after the end: %+v", after)
	}
}

func TestAStreamTellsWhatCantBeRead(t *testing.T) {
	d := newDock(t)
	d.submit(api.RunRequest{ID: "a"})
	next, end := d.openStream("a", "")
	defer end()
	next()
	d.put(d.store.Keys.Event("a", "x"), "{")
	if last := next(); last.event != "failed" || !strings.Contains(last.data, `"code":"corrupt_value"`) {
		t.Errorf("%+v", last)
	}
}

// A client follows on over a restart of the sidecar, and over a compaction of what
// happened meanwhile.
func TestAClientReceivesEachEventOnce(t *testing.T) {
	t.Parallel()
	d := newDock(t)
	d.submit(api.RunRequest{ID: "a"})
	received, done := make(chan string, 16), make(chan error, 1)
	go func() {
		done <- d.client.FollowRunEvents(t.Context(), "a", func(ev api.RunEvent) error {
			received <- ev.Type
			return nil
		})
	}()
	var all []string
	select {
	case ev := <-received:
		all = append(all, ev)
	case err := <-done:
		t.Fatal(err)
	}
	d.server.Stop(sidecar.Leave)
	if err := d.wait(); err != nil {
		t.Fatal(err)
	}
	op, err := d.store.Journal.Op(t.Context(), "a", run.Event{Type: run.StepSlotWaiting, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	rev, err := store.Commit(t.Context(), d.store.Backend, nil, op)
	if err == nil {
		err = d.store.Backend.(store.Compacter).Compact(t.Context(), rev)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.cfg.Logger = nil
	d.running = start(t, d.cfg)
	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(received)
	for ev := range received {
		all = append(all, ev)
	}
	if want := []string{"RunQueued", "StepSlotWaiting", "RunCanceled"}; !slices.Equal(all, want) {
		t.Errorf("%v were reported, want %v", all, want)
	}

	enough := errors.New("enough")
	for want, why := range map[error]error{enough: enough, nil: io.EOF} {
		if err := d.client.FollowRunEvents(t.Context(), "a", func(api.RunEvent) error { return why }); err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	wantCode(t, d.client.FollowRunEvents(t.Context(), "nobody", nil), problem.RunNotFound)
	ctx, cancel := context.WithCancel(t.Context())
	d.submit(api.RunRequest{ID: "b"})
	if err := d.client.FollowRunEvents(ctx, "b", func(api.RunEvent) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
