package ui_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

func TestTheQueueIsShownAsItIs(t *testing.T) {
	d := newQueueSite(t)
	one := 1
	if _, err := d.client.SetPool(t.Context(), "db", api.PoolChange{Limit: &one}); err != nil {
		t.Fatal(err)
	}
	d.limit(2, api.TagLimit{Key: "env", Value: "prod", Limit: 1}, api.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: 3})
	prod := map[string]string{"env": "prod", "tenant": "acme"}
	d.submit(api.RunRequest{ID: "goes", Tags: prod, Pools: map[string]int{"db": 1}})
	d.leads("one")
	d.eventually("a run was admitted", func() bool {
		r, err := d.store.Get(t.Context(), "goes")
		return err == nil && r.Status == run.NotStarted
	})
	d.submit(api.RunRequest{ID: "tagged", Name: "Nightly load", Tags: prod, Owner: "ann"})
	d.submit(api.RunRequest{ID: "pooled", Priority: -5, Pools: map[string]int{"db": 1}})
	d.submit(api.RunRequest{ID: "urgent", Name: "Report", Priority: 7, Tags: prod, Steps: api.RunSteps{
		{Name: "extract", External: true, Items: &step.Items{Range: &step.Range{From: 1, To: 20, By: 1}}}, {Name: "load", External: true, Needs: []string{"extract"}},
	}})

	page := d.until("/queue", "all reasons are known", func(page *document) bool {
		cells, _ := page.rows()
		return len(cells) == 3 && cells["tagged"][5] != "the coordinator has not checked it yet" &&
			cells["pooled"][5] != "the coordinator has not checked it yet" && cells["urgent"][5] != "the coordinator has not checked it yet"
	})
	cells, order := page.rows()
	if want := []string{"urgent", "tagged", "pooled"}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
	now := "just now"
	for id, want := range map[string][]string{
		"urgent": {"1", "urgent", "Report", "▲ 7", now, "tag limit: env=prod (1/1)", "extract ×20 load", "env=prod tenant=acme", "Cancel…"},
		"tagged": {"2", "tagged", "Nightly load of ann", "= 0", now, "tag limit: env=prod (1/1)", "–", "env=prod tenant=acme", "Cancel…"},
		"pooled": {"3", "pooled", "–", "▽ -5", now, "pool 'db' full (1/1 slots)", "needs 1 slot of db", "–", "Cancel…"},
	} {
		got := cells[id]
		got[4] = now // a time, of which the exact one is at hand
		if !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", id, got, want)
		}
	}
	for _, row := range page.tags("time") {
		at, err := time.Parse(time.RFC3339, attr(row, "datetime"))
		if err != nil || time.Since(at) > time.Hour {
			t.Errorf("the time %q: %v", attr(row, "datetime"), err)
		}
	}
	if got := page.link("urgent"); got != "/runs/urgent" {
		t.Errorf("the run is at %q", got)
	}
	if got := page.link("Cancel…"); got != "/actions/cancel?back=%2Fqueue&run=urgent" {
		t.Errorf("it is canceled at %q", got)
	}
	var limits []string
	for _, ul := range page.all(func(n *html.Node) bool { return classed(n, "limits") }) {
		limits = texts(page.within(ul).tags("li"))
	}
	if want := []string{"all runs in progress 1/2", "env=prod 1/1", "tenant=acme of tenant=* 1/3"}; !slices.Equal(limits, want) {
		t.Errorf("the limits are %q, want %q", limits, want)
	}
	sums := page.all(func(n *html.Node) bool { return classed(n, "sums") })
	if got := text(sums[0]); got != "3 queued runs 1 in progress one/coordinator admits runs" {
		t.Error(got)
	}
	if page.id("leaderless") != nil || page.id("unreadable") != nil {
		t.Error("it tells of trouble that there is not")
	}
}

// Who may not act is not asked to.
func TestAQueueThatIsOnlyToBeReadHasNoActions(t *testing.T) {
	d := newQueueSite(t, func(cfg *sidecar.Config) { cfg.Policy.Open = false })
	d.submit(api.RunRequest{ID: "a"})
	page := d.until("/queue", "the run is shown", listing("a"))
	if got := page.link("Cancel…"); got != "" {
		t.Errorf("it is canceled at %q", got)
	}
	if cells, _ := page.rows(); len(cells["a"]) != 8 {
		t.Errorf("%q", cells["a"])
	}
}

func TestAQueueThatNobodyAdmitsFromSaysSo(t *testing.T) {
	t.Parallel()
	d := newQueueSite(t)
	page := d.page("/queue")
	if got := text(page.must("leaderless")); !strings.Contains(got, "No coordinator admits runs") || !strings.Contains(got, "berth coordinator") {
		t.Error(got)
	}
	if got := text(page.root); !strings.Contains(got, "No runs are queued. Submit one: berth submit") {
		t.Error(got)
	}
	d.submit(api.RunRequest{ID: "a"})
	page = d.until("/queue", "the run is shown", listing("a"))
	if cells, _ := page.rows(); cells["a"][5] != "the coordinator has not checked it yet" {
		t.Errorf("%q", cells["a"])
	}
	stop := d.leads("two")
	d.until("/queue", "the run has left, and a coordinator leads", func(page *document) bool {
		return page.id("leaderless") == nil && len(page.runs()) == 0 && strings.Contains(text(page.root), "two/coordinator admits runs")
	})
	stop()
	d.until("/queue", "no coordinator leads", func(page *document) bool { return page.id("leaderless") != nil })
}

func TestTheQueueIsFilteredAndPaged(t *testing.T) {
	d := newQueueSite(t)
	values := map[string][]byte{}
	for i := range 120 {
		values[d.store.Keys.Run(fmt.Sprintf("run-%03d", i))] = queuedRecord(func(r *run.Record) {
			r.Name, r.Tags = fmt.Sprintf("Job %03d", i), map[string]string{"third": fmt.Sprint(i%3 == 0)}
		})
	}
	fill(t, d.store.Backend, values)
	path, seen, pages := "/queue", []string{}, 0
	for path != "" {
		page := d.page(path)
		seen, pages = append(seen, page.runs()...), pages+1
		if cells, order := page.rows(); cells[order[0]][0] != fmt.Sprint(len(seen)-len(order)+1) {
			t.Errorf("the first of page %d is at %s", pages, cells[order[0]][0])
		}
		path = page.link("Next page")
	}
	if len(seen) != 120 || !slices.IsSorted(seen) || len(slices.Compact(seen)) != 120 || pages != 3 {
		t.Errorf("%d pages of %v", pages, seen)
	}
	page := d.page("/queue?tag=" + url.QueryEscape("third=true"))
	if got := page.runs(); len(got) != 40 || got[39] != "run-117" {
		t.Errorf("%v", got)
	}
	cells, _ := page.rows()
	if cells["run-117"][0] != "118" {
		t.Errorf("its position is %s", cells["run-117"][0])
	}
	if page := d.page("/queue?q=JOB+11"); len(page.runs()) != 10 {
		t.Errorf("%v", page.runs())
	} else if got := d.page(page.link("Clear")); len(got.runs()) != 50 {
		t.Errorf("%v", got.runs())
	}
	if got := text(d.page("/queue?q=nothing").root); !strings.Contains(got, "No queued run matches. Show all 120") {
		t.Error(got)
	}
	if got := text(d.page("/queue?tag=third").must("filter-wrong")); !strings.Contains(got, `"third" is not a tag: write KEY=VALUE`) {
		t.Error(got)
	}
	if got := d.get("/queue?after=9"); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "is not a place in this list") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if page := d.page("/queue?after=" + url.QueryEscape("-1000~9~0~0~z")); len(page.runs()) != 0 || page.link("Go to its first page") != "/queue" {
		t.Errorf("%v", page.runs())
	}
}

// hostile are texts that would do something if they were not only shown.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' autofocus onfocus='alert(1)`,
	`javascript:alert(1)`, `{{.}}`, `</title></textarea><svg onload=alert(1)>`, `&lt;b&gt; &amp;`, `?a=b&c=d#e`, `../../pools`,
}

func TestHostileTextsAreShownAndNothingElse(t *testing.T) {
	d := newQueueSite(t)
	values := map[string][]byte{}
	for i, text := range hostile {
		for _, status := range []run.Status{run.Queued, run.Failed} {
			block := run.TagLimitBlock(text, text, 1, 1)
			values[d.store.Keys.Run(fmt.Sprintf("%s-%d", status, i))] = run.Record{
				Status: status, Block: &block, Error: text, QueuedAt: time.Now(), Executor: &run.Executor{Host: text, Instance: text},
				Spec: run.Spec{Name: text, Owner: text, Tags: map[string]string{strings.ReplaceAll(text, "=", "-"): text}, Labels: map[string]string{text: text}},
			}.Encode()
		}
	}
	values[d.store.Keys.Runs()+hostile[1]] = []byte(hostile[0])
	fill(t, d.store.Backend, values)
	var tags []api.TagLimit
	for _, text := range hostile {
		tags = append(tags, api.TagLimit{Key: strings.ReplaceAll(text, "=", "-"), Value: text, Limit: 2})
	}
	d.limit(5, tags...)

	for _, path := range []string{"/queue?limits=all", "/runs", "/runs?status=failed"} {
		page := d.page(path) // which has no script of anybody else's, nor handlers
		if n := len(page.all(func(n *html.Node) bool {
			return n.Data == "img" || n.Data == "b" || n.Data == "textarea" || has(n, "autofocus")
		})); n > 0 {
			t.Errorf("%s has %d unintended elements", path, n)
		}
		for _, want := range hostile {
			shown := strings.Join(strings.Fields(want), " ")
			if n := strings.Count(text(page.root), shown); n < 4 { // name, owner, tag, reason or error
				t.Errorf("%s shows %s %d times", path, want, n)
			}
		}
		if got := text(page.must("unreadable")); !strings.Contains(got, "1 record of a run can't be read") || !strings.Contains(got, `onerror=alert(1)`) {
			t.Error(got)
		}
	}
	for i, want := range hostile {
		tag := strings.ReplaceAll(want, "=", "-") + "=" + want
		for path, id := range map[string]string{"/queue": fmt.Sprint("queued-", i), "/runs?status=failed": fmt.Sprint("failed-", i)} {
			href := d.page(path).link(strings.Join(strings.Fields(tag), " "))
			page := d.page(href)
			if !slices.Equal(page.runs(), []string{id}) || !strings.HasPrefix(href, strings.Split(path, "?")[0]+"?") {
				t.Errorf("%s leads by %q to %v", tag, href, page.runs())
			}
		}
		page := d.page("/runs?q=" + url.QueryEscape(want))
		if len(page.runs()) != 2 || attr(page.must("filter-q"), "value") != want {
			t.Errorf("%v are found by %s, and the field has %q", page.runs(), want, attr(page.must("filter-q"), "value"))
		}
		for _, query := range []string{"tag=", "status="} {
			if got := text(d.page("/runs?" + query + url.QueryEscape(want+"\x00")).must("filter-wrong")); got == "" {
				t.Errorf("%s%s is taken", query, want)
			}
		}
	}
}

func TestLimitsThatCantBeReadAreReported(t *testing.T) {
	d := newQueueSite(t)
	d.put(store.Put(d.store.Keys.Limits(), []byte("<b>"), 0))
	d.put(store.Put(d.store.Keys.Run("a"), queuedRecord(func(r *run.Record) { r.Steps = 3 }), 0)) // whose graph is gone
	page := d.page("/queue")
	if got := text(page.root); !strings.Contains(got, "The limits can't be read: the limits could not be read: value of key \"/berth/limits\"") {
		t.Error(got)
	}
	if cells, _ := page.rows(); cells["a"][6] != "its steps can't be read: they are gone" {
		t.Errorf("%q", cells["a"])
	}
}

// Changes are sent to open pages.
func TestTheQueueIsKeptNew(t *testing.T) {
	t.Parallel()
	d := newQueueSite(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", d.base+"/queue", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	until := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("%s was never shown: %v", want, lines.Err())
	}
	until("No runs are queued")
	d.submit(api.RunRequest{ID: "a"})
	until(`id="run-a"`)
	d.change("a", func(r *run.Record) {
		block := run.RunLimitBlock(3, 3)
		r.Block = &block
	})
	until("global run limit (3/3)")
	if _, err := d.client.CancelRun(t.Context(), "a", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	until("No runs are queued")
}
