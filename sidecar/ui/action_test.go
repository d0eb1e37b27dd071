package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// confirm fills in the form of a confirmation as it is, with what else is said, and sends it.
func (s *site) confirm(path string, more ...string) answer {
	s.t.Helper()
	d := s.page(path)
	form := url.Values{}
	at := d.must("confirm")
	for _, in := range d.within(at).tags("input") {
		if attr(in, "type") == "hidden" {
			form.Set(attr(in, "name"), attr(in, "value"))
		}
	}
	for i := 0; i+1 < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return s.post(attr(at, "action"), form)
}

// follow gets the page that an answer leads to, and returns it with the message there.
func (s *site) follow(got answer) (page *document, path, message string) {
	s.t.Helper()
	to := got.header.Get("Location")
	if got.status != http.StatusSeeOther || !strings.HasPrefix(to, "/") {
		s.t.Fatalf("%d to %q: %s", got.status, to, got.body)
	}
	d := s.page(to)
	path, _, _ = strings.Cut(to, "?")
	if m := d.id("message"); m != nil {
		message = text(m)
	}
	return d, path, message
}

// actions returns what was recorded of the pages, the newest first: without times and
// addresses.
func (d *runSite) actions() []string {
	d.t.Helper()
	found, err := store.ReadAll(d.t.Context(), d.store.Backend, d.store.Keys.Actions())
	if err != nil {
		d.t.Fatal(err)
	}
	var all []string
	for _, kv := range found.KVs {
		a, err := audit.Decode(d.store.Keys, kv)
		if err != nil {
			d.t.Fatal(err)
		}
		if strings.HasPrefix(a.Who, "user:") { // the arrangement of the test, over the socket
			continue
		}
		if a.At.IsZero() || !strings.HasPrefix(a.From, "127.0.0.1:") || kv.Lease == 0 {
			d.t.Errorf("%+v on lease %x", a, kv.Lease)
		}
		all = append(all, fmt.Sprintf("%s: %s %s (%s) %s: %s -> %s. %s", a.Who, a.Action.Action, a.Object, a.Detail, a.Outcome, a.Before, a.After, a.Result))
	}
	slices.Reverse(all)
	return all
}

func (d *runSite) wantActions(want ...string) {
	d.t.Helper()
	if got := d.actions(); !slices.Equal(got, want) {
		d.t.Errorf("recorded are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// hold makes a claim that is released at the end of the test: the server does not have to wait for
// its holder then.
func (s *site) hold(req api.ClaimRequest) *api.Claim {
	s.t.Helper()
	c := s.claim(req)
	s.t.Cleanup(func() { _ = s.client.Release(context.Background(), c.ID) })
	return c
}

// refused wants an answer that is a page with a problem.
func (s *site) refused(got answer, code problem.Code, says string) {
	s.t.Helper()
	checkPage(s.t, "a refusal", got)
	d := parse(s.t, got.body)
	if got.status != code.Status() || !strings.Contains(text(d.root), says) || !strings.Contains(text(d.root), string(code)) {
		s.t.Errorf("%d %s, want %d %s: %s", got.status, text(d.root), code.Status(), code, says)
	}
}

func TestARunIsCanceledFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r", Name: "load"})
	if links := d.page("/runs/r").all(func(n *html.Node) bool { return attr(n, "href") == "/actions/cancel?back=%2Fruns%2Fr&run=r" }); len(links) != 1 {
		t.Errorf("the page of the run has %d links to cancel it", len(links))
	}
	page := d.page("/actions/cancel?run=r&back=/queue")
	page.says("Cancel run r?", "load", "It leaves the queue, and does not run.", "recorded with the name anonymous")
	if page.id("stopped") != nil {
		t.Error("it lists stopped holders, and none is stopped")
	}
	if got, _ := d.store.Get(t.Context(), "r"); got.Status != run.Queued {
		t.Fatalf("looking has made the run %s", got.Status)
	}
	_, path, message := d.follow(d.confirm("/actions/cancel?run=r&back=/queue", "reason", "  no\tlonger <b>needed</b> "))
	if path != "/queue" || message != "Run r is canceled." {
		t.Errorf("came to %s: %q", path, message)
	}
	const why = "canceled by anonymous: no longer <b>needed</b>"
	if got, err := d.store.Get(t.Context(), "r"); err != nil || got.Status != run.Canceled || got.Error != why {
		t.Errorf("%+v, %v", got, err)
	}
	events, err := d.store.Events(t.Context(), "r")
	if err != nil || len(events) != 2 || events[1].Type != run.RunCanceled || events[1].Reason != why {
		t.Errorf("%+v, %v", events, err)
	}
	d.wantActions("anonymous: cancel-run r (canceled by anonymous: no longer <b>needed</b>) done: queued -> canceled. ")
	page = d.page("/actions")
	page.shows("cancel run", "no longer <b>needed</b>", "✓ done", "anonymous", "127.0.0.1:")

	page = d.page("/actions/cancel?run=r")
	page.says("It has ended already, and there is nothing to cancel: it was canceled")
	if page.id("confirm") != nil {
		t.Error("what has ended can be canceled")
	}
	_, path, message = d.follow(d.post("/actions/cancel", url.Values{"run": {"r"}}))
	if path != "/runs/r" || message != "Run r was canceled already: "+why {
		t.Errorf("again: came to %s: %q", path, message)
	}
}

func TestARunThatHasEndedMeanwhileIsReported(t *testing.T) {
	d := newRunSite(t)
	d.submit(api.RunRequest{ID: "r"})
	d.page("/actions/cancel?run=r").must("confirm")
	d.change("r", func(r *run.Record) { *r, _ = r.End(run.Succeeded, "", time.Now()) })
	d.refused(d.post("/actions/cancel", url.Values{"run": {"r"}}), problem.RunEnded, `run "r" has already ended: its status is succeeded`)
	d.refused(d.post("/actions/cancel", url.Values{"run": {"none"}}), problem.RunNotFound, `there is no run "none"`)
	d.refused(d.get("/actions/cancel?run=none"), problem.RunNotFound, `there is no run "none"`)
	d.refused(d.get("/actions/dance"), problem.NotFound, "dance")
	d.refused(d.post("/actions/dance", nil), problem.NotFound, "dance")
	d.refused(d.post("/actions/cancel", url.Values{"run": {"a/b"}}), problem.Invalid, "id")
	d.wantActions(
		`anonymous: cancel-run none (canceled by anonymous) failed:  -> . there is no run "none"`,
		`anonymous: cancel-run r (canceled by anonymous) failed: succeeded -> . run "r" has already ended: its status is succeeded`,
	)
}

func TestACanceledRunSaysWhoIsStopped(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 2}, RunID: "r", StepKey: "load"})
	d.submit(api.RunRequest{ID: "r"})
	page := d.page("/actions/cancel?run=r")
	page.says("It holds 2 slots by 1 claim")
	if rows := page.lines("stopped"); len(rows) != 1 || !slices.Equal(rows[0][:4], []string{"held", "db=2", "r", "load"}) {
		t.Errorf("stopped are %q", rows)
	}
}

func TestAPoolIsPausedAndResumedFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 2}})
	d.page("/actions/pause?pool=db").says("Pause pool db?", "2 slots by 1 claim", "It grants no slots until it is resumed.", "Its holders keep 2 slots")
	page, path, message := d.follow(d.confirm("/actions/pause?pool=db"))
	if path != "/pools" || message != "Pool db is paused." || !strings.Contains(text(page.must("pool-db")), "paused") {
		t.Errorf("came to %s: %q", path, message)
	}
	d.page("/actions/pause?pool=db").says("It is paused already.")
	d.page("/actions/resume?pool=db").says("Resume pool db?", "1 slot is free: 0 claims wait.")
	page, _, message = d.follow(d.confirm("/actions/resume?pool=db"))
	if message != "Pool db is resumed." || strings.Contains(text(page.must("pool-db")), "paused") {
		t.Errorf("%q: %s", message, text(page.must("pool-db")))
	}
	d.page("/actions/resume?pool=db").says("It is not paused.")
	d.wantActions(
		"anonymous: resume-pool db () done: limit 3, lease 5m, reserve after 1m, paused -> limit 3, lease 5m, reserve after 1m. ",
		"anonymous: pause-pool db () done: limit 3, lease 5m, reserve after 1m -> limit 3, lease 5m, reserve after 1m, paused. ",
	)
	for _, name := range []string{"pause", "resume", "limit"} {
		d.refused(d.get("/actions/"+name+"?pool=none"), problem.PoolNotFound, `no pool "none"`)
		d.refused(d.get("/actions/"+name+"?pool=N"), problem.Invalid, "N")
		d.refused(d.get("/actions/"+name), problem.Invalid, "pool")
	}
	d.refused(d.post("/actions/pause", url.Values{"pool": {"none"}}), problem.PoolNotFound, `no pool "none"`)
	d.refused(d.get("/actions/pause?pool=dbb"), problem.PoolNotFound, `there is no pool "dbb": did you mean "db"?`)
}

// What is asked for is on record before anything is done, and what came of it after.
func TestAnActionIsRecordedBeforeItIsTaken(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.follow(d.confirm("/actions/pause?pool=db"))
	found, err := store.ReadAll(t.Context(), d.store.Backend, d.store.Keys.Actions())
	if err != nil || len(found.KVs) != 2 {
		t.Fatalf("%d actions, %v", len(found.KVs), err)
	}
	record := found.KVs[1] // the first is of the pool's creation
	spec, err := d.store.Backend.Range(t.Context(), &pb.RangeRequest{Key: []byte(d.store.Keys.Spec("db"))})
	if err != nil || len(spec.Kvs) != 1 {
		t.Fatalf("%v, %v", spec, err)
	}
	if paused := spec.Kvs[0].ModRevision; record.CreateRevision >= paused || record.ModRevision <= paused || record.Version != 2 {
		t.Errorf("asked for at %d, paused at %d, done at %d", record.CreateRevision, paused, record.ModRevision)
	}
	first, err := d.store.Backend.Range(t.Context(), &pb.RangeRequest{Key: record.Key, Revision: record.CreateRevision})
	if err != nil || len(first.Kvs) != 1 {
		t.Fatalf("%v, %v", first, err)
	}
	a, err := audit.Decode(d.store.Keys, first.Kvs[0])
	if err != nil || a.Outcome != audit.Asked || a.Who != "anonymous" || a.Object != "db" || a.Action.Action != audit.PausePool || !a.EndedAt.IsZero() {
		t.Errorf("%+v, %v", a, err)
	}
	if !strings.Contains(d.log.String(), "an action was carried out") {
		t.Error("the log does not tell of it")
	}
}

func TestALimitIsChangedFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 3}})
	page := d.page("/actions/limit?pool=db&back=/pools?sort=name")
	if in := page.must("limit"); attr(in, "value") != "3" || page.id("confirm") != nil {
		t.Errorf("it asks with %v", in.Attr)
	}
	page = d.page("/actions/limit?pool=db&limit=%3Cb%3E")
	if in := page.must("limit"); attr(in, "aria-invalid") != "true" || !strings.Contains(text(page.must("limit-problem")), `"<b>" is not one: it must be a number`) {
		t.Errorf("%v: %s", in.Attr, text(page.must("limit-problem")))
	}
	const to1 = "/actions/limit?pool=db&limit=1&back=/pools?sort=name"
	d.page(to1).says("Set the limit of pool db to 1?", "Its holders keep 3 slots until they release them. It grants no slots until 2 slots are released.")
	_, path, message := d.follow(d.confirm(to1))
	if path != "/pools" || message != "The limit of pool db is 1 now; it was 3." {
		t.Errorf("came to %s: %q", path, message)
	}
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Limit != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	d.wantActions("anonymous: set-pool db (limit 1) done: limit 3, lease 5m, reserve after 1m -> limit 1, lease 5m, reserve after 1m. ")
}

func TestAConfirmationOfWhatIsNoLongerSoIsAskedForAgain(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	form := url.Values{"pool": {"db"}, "limit": {"5"}, "from": {"3"}, "back": {"/pools?sort=name"}}
	d.pool("db", 4) // by another operator
	page, path, message := d.follow(d.post("/actions/limit", form))
	if path != "/actions/limit" || message != "Nothing was done: the limit of pool db was set to 4 meanwhile; it was 3" {
		t.Errorf("came to %s: %q", path, message)
	}
	page.says("Its limit goes from 4 to 5.")
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Limit != 4 {
		t.Errorf("%+v, %v", p, err)
	}
	if back := attr(page.must("back"), "href"); back != "/pools?sort=name" {
		t.Errorf("back is %q", back)
	}
	if err := d.client.DeletePool(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	d.refused(d.post("/actions/limit", url.Values{"pool": {"db"}, "limit": {"5"}, "from": {"4"}}), problem.PoolNotFound, `no pool "db"`)
	if _, err := d.client.Pool(t.Context(), "db"); problem.CodeOf(err) != problem.PoolNotFound {
		t.Errorf("the pool is there again: %v", err)
	}
	d.wantActions() // nothing was asked for of the pool as it is
}

func TestNobodyActsWithoutTheRight(t *testing.T) {
	d := newRunSite(t, func(c *sidecar.Config) { c.Policy.Open = false })
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "c", Pools: api.Slots{"db": 1}})
	d.submit(api.RunRequest{ID: "r"})
	for _, path := range []string{"/pools?open=db", "/runs/r", "/queue", "/hosts", "/actions"} {
		links := d.page(path).all(func(n *html.Node) bool { return strings.HasPrefix(attr(n, "href"), "/actions/") })
		if len(links) > 0 {
			t.Errorf("%s has links to act: %v", path, links[0].Attr)
		}
	}
	for path, form := range map[string]url.Values{
		"cancel": {"run": {"r"}},
		"pause":  {"pool": {"db"}},
		"resume": {"pool": {"db"}},
		"limit":  {"pool": {"db"}, "limit": {"5"}, "from": {"3"}},
		"revoke": {"claim": {"c"}, "fence": {"1"}},
	} {
		d.refused(d.get("/actions/"+path+"?"+form.Encode()), problem.Unauthorized, "This needs the role operate")
		d.refused(d.post("/actions/"+path, form), problem.Unauthorized, "This needs the role operate")
	}
	d.wantActions()
	if r, err := d.store.Get(t.Context(), "r"); err != nil || r.Status != run.Queued {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestActionsAreThoseOfWhoHasSignedIn(t *testing.T) {
	d := newRunSite(t, withToken)
	limit := 3
	if _, err := (registry.Registry{Backend: d.store.Backend, Keys: d.store.Keys}).Set(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	form := url.Values{"pool": {"db"}}
	if got := d.post("/actions/pause", form); got.status != http.StatusUnauthorized {
		t.Errorf("without signing in: %d %s", got.status, got.body)
	}
	in := d.post("/signin", url.Values{"token": {token}})
	for _, line := range in.header.Values("Set-Cookie") {
		c, err := http.ParseSetCookie(line)
		if err != nil {
			t.Fatal(err)
		}
		d.cookie = c
	}
	if d.cookie == nil {
		t.Fatalf("no cookie: %d %s", in.status, in.body)
	}
	d.eventually("the pool is seen", func() bool { return d.get("/actions/pause?pool=db").status == http.StatusOK })
	d.page("/actions/pause?pool=db").shows("recorded with the name token:ann<b>")
	for name, change := range map[string]func(*http.Request){
		"another site": func(r *http.Request) {
			r.Header.Set("Origin", "http://example.com")
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		},
		"nowhere": func(r *http.Request) {
			r.Header.Del("Origin")
			r.Header.Del("Sec-Fetch-Site")
		},
	} {
		if got := d.post("/actions/pause", form, change); got.status != http.StatusForbidden {
			t.Errorf("from %s: %d", name, got.status)
		}
	}
	d.wantActions()
	if _, _, message := d.follow(d.confirm("/actions/pause?pool=db")); message != "Pool db is paused." {
		t.Errorf("%q", message)
	}
	d.wantActions("token:ann<b>: pause-pool db () done: limit 3, lease 5m, reserve after 1m -> limit 3, lease 5m, reserve after 1m, paused. ")
	d.page("/actions").shows("token:ann<b>")
}

func TestActionsAreListedTheNewestFirstInPages(t *testing.T) {
	d := newRunSite(t)
	if d.page("/actions").id("none") == nil {
		t.Error("it does not say that there are none")
	}
	const evil = `<script>alert(1)</script>"'&amp;{{.}}<img src=x onerror=alert(2)>`
	begun := time.Now().Add(-time.Hour)
	values := map[string][]byte{}
	for i := range 250 {
		at := begun.Add(time.Duration(i) * time.Second)
		id := ulid.MustNewDefault(at).String()
		a := audit.Action{Who: "ann", From: evil, At: at, Action: evil, Object: fmt.Sprintf("%03d %s", i, evil), Detail: evil, Before: evil, After: evil, Outcome: audit.Failed, Result: evil, EndedAt: at}
		if i == 7 {
			a.Outcome, a.EndedAt = audit.Asked, time.Time{}
		}
		values[d.store.Keys.Action(id)] = a.Encode()
	}
	fill(t, d.store.Backend, values)
	var got []string
	pages := 0
	for path := "/actions"; path != ""; pages++ {
		page := d.page(path)
		for _, row := range page.lines("list") {
			got = append(got, row[4][:3])
			if want := []string{"ann", evil, evil, row[4][:4] + evil, evil, evil, evil}; !slices.Equal(row[1:8], want) {
				t.Fatalf("%q, want %q", row, want)
			}
			if row[4][:3] == "007" && !strings.Contains(row[8], "not known") {
				t.Errorf("its outcome is not shown: %q", row)
			}
		}
		if imgs := page.tags("img"); len(imgs) > 0 {
			t.Fatal("a text became an image")
		}
		path = page.link("Older")
	}
	var want []string
	for i := range 250 {
		want = append(want, fmt.Sprintf("%03d", 249-i))
	}
	if !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d pages list %q", pages, got)
	}
	d.put(store.Put(d.store.Keys.Action(ulid.Make().String()), []byte(`{"v":1,"<b>":1}`), 0))
	d.page("/actions").shows("Actions that can't be read", `unknown field "<b>"`)
	d.refused(d.get("/actions?before=x"), problem.Invalid, `"x" is not the id of an action`)
}
