package ui_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
)

// pool makes a pool, or changes it.
func (s *site) pool(name string, limit int, change ...func(*api.PoolChange)) {
	s.t.Helper()
	c := api.PoolChange{Limit: &limit}
	for _, f := range change {
		f(&c)
	}
	if _, err := s.client.SetPool(s.t.Context(), name, c); err != nil {
		s.t.Fatal(err)
	}
}

// lasting sets a pool's lease duration.
func lasting(d time.Duration) func(*api.PoolChange) {
	return func(c *api.PoolChange) { c.LeaseDuration = api.DurationOf(d) }
}

func (s *site) claim(req api.ClaimRequest) *api.Claim {
	s.t.Helper()
	c, err := s.client.Claim(s.t.Context(), req)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// wait makes a claim wait, and ends that at the end of the test.
func (s *site) wait(req api.ClaimRequest) {
	s.t.Helper()
	req.Wait = api.DurationOf(time.Hour)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := s.client.Claim(s.t.Context(), req); err == nil { // which ends with the test
			_ = s.client.Release(s.t.Context(), c.ID)
		}
	}()
	s.t.Cleanup(func() { <-done })
	s.eventually("claim "+req.ID+" waits", func() bool {
		why, err := s.client.Why(s.t.Context(), req.ID)
		return err == nil && why.Claim.Status == api.ClaimWaiting
	})
}

// card is the card of a pool.
func (d *document) card(name string) *document {
	d.t.Helper()
	return d.within(d.must("pool-" + name))
}

func TestWithoutPoolsThePageSaysHowToMakeOne(t *testing.T) {
	s := newSite(t)
	d := s.page("/pools")
	if got := text(d.must("no-pools")); !strings.Contains(got, "berth pools set db 3") {
		t.Error(got)
	}
	if d.id("sums") != nil || d.id("pool-list") != nil {
		t.Error("it shows a summary of nothing")
	}
	if got := s.get("/"); got.status != 303 || got.header.Get("Location") != "/pools" {
		t.Errorf("the root: %d to %q", got.status, got.header.Get("Location"))
	}
}

func TestAPoolIsShownAsItIs(t *testing.T) {
	s := newSite(t)
	s.pool("db", 5, lasting(time.Minute))
	s.pool("free", -1)
	s.pool("shut", 0)
	s.pool("held", 2)
	if _, err := s.client.PausePool(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	s.claim(api.ClaimRequest{Pools: api.Slots{"free": 7}})
	for n, level := range []string{"is-ok", "is-ok", "is-ok", "is-busy", "is-busy", "is-full"} {
		if n > 0 {
			s.claim(api.ClaimRequest{ID: fmt.Sprint("c", n), Pools: api.Slots{"db": 1}})
		}
		card := s.page("/pools").card("db")
		bars := card.all(func(e *html.Node) bool { return classed(e, "use") })
		if len(bars) != 1 || !classed(bars[0], level) || text(bars[0]) != fmt.Sprintf("%d/5", n) {
			t.Errorf("with %d claimed: %q, %v", n, texts(bars), bars[0].Attr)
		}
	}
	s.wait(api.ClaimRequest{ID: "late", Pools: api.Slots{"db": 2}})
	d := s.until("/pools", "the waiter is seen", func(d *document) bool { return strings.Contains(text(d.must("sums")), "1 claim waits") })
	for name, want := range map[string][]string{
		"db":   {"1 waiting", "Lease 1m", "5/5"},
		"free": {"7 claimed, unlimited", "Lease 5m", "after 1m"},
		"shut": {"closed", "0/0"},
		"held": {"paused", "0/2", "Resume…"},
	} {
		got := text(d.must("pool-" + name))
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s is shown as %q, without %q", name, got, w)
			}
		}
	}
	if got, want := text(d.must("sums")), "4 pools, 1 paused 5 / 7 slots claimed, and 7 without a limit 1 claim waits"; got != want {
		t.Errorf("the summary is %q, want %q", got, want)
	}
	if got := text(d.must("pool-db")); strings.Contains(got, "paused") || strings.Contains(got, "c1") {
		t.Errorf("it shows what it is not, or what is not expanded: %q", got)
	}
}

func TestAPoolExpandsToItsHoldersAndItsLine(t *testing.T) {
	s := newSite(t)
	s.pool("db", 3)
	first := s.claim(api.ClaimRequest{ID: "first", Pools: api.Slots{"db": 2}, RunID: "r-1", StepKey: "load", PID: os.Getppid(), Labels: map[string]string{"team": "data"}})
	s.claim(api.ClaimRequest{ID: "second", Pools: api.Slots{"db": 1}})
	s.wait(api.ClaimRequest{ID: "low", Pools: api.Slots{"db": 3}, Priority: -5})
	s.wait(api.ClaimRequest{ID: "high", Pools: api.Slots{"db": 1}, Priority: 7, RunID: "r-2", StepKey: "save"})

	d := s.page("/pools")
	link := d.must("open-db")
	if attr(link, "aria-expanded") != "false" || !has(link, "data-soft") || len(d.tags("table")) != 0 {
		t.Errorf("before: %v", link.Attr)
	}
	d = s.until(attr(link, "href"), "the ends of the leases are known", func(d *document) bool {
		return !strings.Contains(text(d.must("holders-of-db")), "not known")
	})
	if link := d.must("open-db"); attr(link, "aria-expanded") != "true" || attr(link, "href") != "/pools" {
		t.Errorf("after: %v", link.Attr)
	}
	holders, line := d.within(d.must("holders-of-db")), d.within(d.must("waiters-of-db"))
	rows := holders.cells()
	if len(rows) != 2 || len(rows[0]) != 9 {
		t.Fatalf("holders: %q", rows)
	}
	for i, want := range []string{fmt.Sprintf("first process %d claimed by %s team=data", os.Getppid(), first.ClaimedBy), "r-1", "load", "one sidecar", "2", "", fmt.Sprint(first.Fence), "in ", "Revoke…"} {
		if got := rows[0][i]; !strings.Contains(got, want) {
			t.Errorf("column %d is %q, want %q", i, got, want)
		}
	}
	if got := rows[1]; got[1] != "–" || got[2] != "–" || got[4] != "1" {
		t.Errorf("the second: %q", got)
	}
	for _, a := range holders.tags("a") {
		if text(a) == "r-1" && attr(a, "href") != "/runs/r-1" {
			t.Errorf("the run leads to %q", attr(a, "href"))
		}
	}
	rows = line.cells()
	if len(rows) != 2 || len(rows[0]) != 9 {
		t.Fatalf("line: %q", rows)
	}
	for i, want := range []string{"1", "high", "r-2", "save", "one sidecar", "7", "1", "", "pool 'db' full (3/3 slots)"} {
		if got := rows[0][i]; !strings.Contains(got, want) {
			t.Errorf("column %d is %q, want %q", i, got, want)
		}
	}
	if rows[1][0] != "2" || rows[1][1] != "low claimed by "+first.ClaimedBy || rows[1][5] != "-5" {
		t.Errorf("behind: %q", rows[1])
	}
	for _, region := range []string{"holders-of-db", "waiters-of-db"} {
		n := d.must(region)
		if attr(n, "role") != "region" || attr(n, "tabindex") != "0" || attr(n, "aria-label") == "" || len(d.within(n).tags("caption")) != 1 {
			t.Errorf("#%s can't be used by keyboard: %v", region, n.Attr)
		}
	}
	if times := d.within(d.must("holders-of-db")).tags("time"); len(times) != 4 || attr(times[0], "title") == "" || attr(times[0], "datetime") == "" {
		t.Errorf("%d times in two rows", len(times))
	}
}

func TestAClaimThatReservesSaysSo(t *testing.T) {
	s := newSite(t)
	s.pool("db", 1, func(c *api.PoolChange) { c.ReserveAfter = api.DurationOf(0) })
	s.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	s.wait(api.ClaimRequest{ID: "wide", Pools: api.Slots{"db": 1}})
	s.until("/pools?open=db", "it reserves", func(d *document) bool {
		return strings.Contains(text(d.must("waits-db-wide")), "reserves")
	})
}

func TestWhatUsersSayIsShownAndNeverInterpreted(t *testing.T) {
	const hostile = `<img src=x onerror=alert(1)>"'&{{.}}</script>`
	s := newSite(t)
	s.pool("db", 1)
	s.claim(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 1}, RunID: hostile, StepKey: "step " + hostile, Labels: map[string]string{"k" + hostile: "v" + hostile}})
	s.wait(api.ClaimRequest{ID: "waits", Pools: api.Slots{"db": 1}, RunID: "../../" + hostile, StepKey: hostile, Labels: map[string]string{"k": hostile}})
	d := s.page("/pools?open=db&q=" + "%20")
	for id, want := range map[string][]string{
		"holds-db-held":  {hostile, "step " + hostile, "k" + hostile + "=v" + hostile},
		"waits-db-waits": {"../../" + hostile, "k=" + hostile},
	} {
		for _, w := range want {
			if got := text(d.must(id)); !strings.Contains(got, w) {
				t.Errorf("#%s is %q, without %q", id, got, w)
			}
		}
		for _, a := range d.within(d.must(id)).tags("a") {
			if href := attr(a, "href"); !strings.HasPrefix(href, "/runs/") && !strings.HasPrefix(href, "/actions/") || strings.ContainsAny(href, "<>\"' ") || strings.HasPrefix(href, "/runs/..") && !strings.HasPrefix(href, "/runs/..%2F") {
				t.Errorf("a run leads to %q", href)
			}
		}
	}
	if got := d.tags("img"); len(got) != 0 {
		t.Error("it is interpreted")
	}
	d = s.page("/pools?q=%3Cimg%20src%3Dx%3E%22")
	if got := text(d.must("none-found")); !strings.Contains(got, `<img src=x>"`) {
		t.Errorf("what was looked for is shown as %q", got)
	}
	if got := attr(d.must("q"), "value"); got != `<img src=x>"` {
		t.Errorf("what was looked for is kept as %q", got)
	}
}

func TestAPoolThatCannotBeReadSaysWhy(t *testing.T) {
	s := newSite(t)
	s.pool("db", 1)
	etcd, keys := embedtest.Client(t, s.etcd), store.NewKeys(store.DefaultPrefix)
	if _, err := store.Commit(t.Context(), etcd, nil, store.Put(keys.Spec("db"), []byte(`<script>{`), 0)); err != nil {
		t.Fatal(err)
	}
	d := s.until("/pools", "the pool is seen to be broken", func(d *document) bool {
		return strings.Contains(text(d.must("pool-db")), "grants nothing")
	})
	if got := text(d.must("sums")); !strings.Contains(got, "1 with a problem") {
		t.Errorf("%q", got)
	}
	if got := text(d.must("pool-db")); !strings.Contains(got, "! unreadable") || strings.Contains(got, "Pause…") {
		t.Errorf("%q", got)
	}
}

func TestADeletedPoolIsShownWhileItIsHeld(t *testing.T) {
	s := newSite(t)
	s.pool("db", 2)
	c := s.claim(api.ClaimRequest{ID: "last", Pools: api.Slots{"db": 2}})
	if err := s.client.DeletePool(t.Context(), "db"); err != nil {
		t.Fatal(err)
	}
	d := s.page("/pools?open=db")
	if got := text(d.must("pool-db")); !strings.Contains(got, "deleted") || !strings.Contains(got, "2 slots are still held") || !strings.Contains(got, "last") || strings.Contains(got, "Limit…") {
		t.Errorf("%q", got)
	}
	if err := s.client.Release(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	s.until("/pools?open=db", "it is gone", func(d *document) bool { return d.id("pool-db") == nil })
}

// another is an instance on another host, which can't leave its claims to a next process.
func (s *site) another(host string) *instance.Client {
	s.t.Helper()
	c, err := instance.Open(s.t.Context(), instance.Options{
		Endpoints: []string{s.etcd.Endpoint()}, Host: host, Instance: "job", StateDir: s.t.TempDir(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func TestAHolderThatDiedTurnsNearItsEndAndGoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.pool("db", 1, lasting(5*time.Second))
	dead := s.another("two")
	if _, err := dead.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithID("orphan")); err != nil {
		t.Fatal(err)
	}
	const at = "/pools?open=db"
	d := s.until(at, "the holder is there", func(d *document) bool { return d.id("holds-db-orphan") != nil })
	if row := d.must("holds-db-orphan"); classed(row, "is-near") || classed(row, "is-past") {
		t.Errorf("a renewed lease is near its end: %s", text(row))
	}
	if err := dead.Leave(); err != nil {
		t.Fatal(err)
	}
	d = s.until(at, "its lease is near its end", func(d *document) bool {
		row := d.must("holds-db-orphan")
		return classed(row, "is-near") || classed(row, "is-past")
	})
	if got := text(d.must("holds-db-orphan")); !strings.Contains(got, "! near") && !strings.Contains(got, "past") {
		t.Errorf("it is shown by a colour alone: %q", got)
	}
	s.until(at, "it is gone", func(d *document) bool { return d.id("holds-db-orphan") == nil })
}

func TestManyPoolsArePagedFilteredAndOrdered(t *testing.T) {
	s := newSite(t)
	b, keys, err := instance.Connect(t.Context(), instance.Options{Endpoints: []string{s.etcd.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	etcd := inspect.Snapshot{Backend: b, Keys: keys}
	const many = 500
	for i := range many {
		limit := 1
		if _, err := etcd.SetPool(t.Context(), fmt.Sprintf("pool-%03d", i), pool.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
	}
	s.until("/pools", "all pools are seen", func(d *document) bool {
		return strings.HasPrefix(text(d.must("sums")), "500 pools 0 / 500 slots claimed")
	})
	s.claim(api.ClaimRequest{Pools: api.Slots{"pool-321": 1}})
	got := s.get("/pools")
	if len(got.body) > 100<<10 {
		t.Errorf("a page of %d pools has %d bytes", many, len(got.body))
	}
	cards := func(path string) (names []string) {
		t.Helper()
		for _, n := range s.page(path).tags("h2") {
			names = append(names, text(n))
		}
		return names
	}
	if got := cards("/pools"); len(got) != 50 || got[0] != "pool-321" || got[1] != "pool-000" {
		t.Errorf("fullest first: %d, %q", len(got), got)
	}
	if got := cards("/pools?sort=name&page=10"); len(got) != 50 || got[0] != "pool-450" || got[49] != "pool-499" {
		t.Errorf("the last page by name: %d, %q", len(got), got)
	}
	if got := cards("/pools?q=POOL-32&sort=name"); len(got) != 10 || got[0] != "pool-320" {
		t.Errorf("by name: %q", got)
	}
	// Following the links of one page after the other shows each once.
	seen := map[string]bool{}
	for at := "/pools?sort=name&q=pool-"; at != ""; {
		d := s.page(at)
		for _, n := range d.tags("h2") {
			seen[text(n)] = true
		}
		at = ""
		for _, a := range d.tags("a") {
			if attr(a, "rel") == "next" {
				at = attr(a, "href")
			}
		}
	}
	if len(seen) != many {
		t.Errorf("%d pools are on all pages", len(seen))
	}
	for _, bad := range []string{"/pools?page=0", "/pools?sort=best"} {
		if got := s.get(bad); got.status != 422 || !strings.Contains(got.body, "must be") {
			t.Errorf("%s: %d %s", bad, got.status, got.body)
		}
	}
}

func TestNoMoreHoldersThanCanBeReadAreShown(t *testing.T) {
	s := newSite(t)
	s.pool("db", -1)
	s.pool("gpu", -1)
	c := s.another("two")
	defer func() { _ = c.Leave() }()
	const many = 1003
	var errs []chan error
	for i := range many {
		done := make(chan error, 1)
		errs = append(errs, done)
		go func() {
			_, err := c.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithID(fmt.Sprintf("c-%04d", i)))
			done <- err
		}()
	}
	for _, done := range errs {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	d := s.until("/pools?open=db", "all are seen", func(d *document) bool {
		return strings.Contains(text(d.must("pool-db")), "1,003 claimed")
	})
	if n := len(d.card("db").cells()); n != 1000 || !strings.Contains(text(d.must("pool-db")), "3 holders are not shown") {
		t.Errorf("%d holders are shown", n)
	}
	d = s.page("/pools?open=db&open=gpu")
	if n := len(d.card("db").cells()); n != 500 || !strings.Contains(text(d.must("pool-db")), "503 holders are not shown") {
		t.Errorf("next to another pool, %d holders are shown", n)
	}
	if got := text(d.must("pool-gpu")); !strings.Contains(got, "No holders.") || !strings.Contains(got, "No waiters.") {
		t.Errorf("%q", got)
	}
}

func TestRecentUseIsDrawn(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes two samples, 5 s apart")
	}
	t.Parallel()
	s := newSite(t)
	s.pool("db", 2)
	s.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
	d := s.until("/pools", "there are samples", func(d *document) bool { return len(d.card("db").tags("polyline")) > 0 })
	svg := d.card("db").all(func(n *html.Node) bool { return n.Data == "svg" && classed(n, "recent") })
	if len(svg) != 1 || attr(svg[0], "role") != "img" || !strings.Contains(attr(svg[0], "aria-label"), "claimed in the last") {
		t.Errorf("%v", svg)
	}
	if !slices.ContainsFunc(d.card("db").tags("line"), func(n *html.Node) bool { return classed(n, "recent-limit") }) {
		t.Error("the limit is not drawn")
	}
}
