package ui_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/wire"
	"github.com/berthhq/berth/sidecar"
)

// joins has an instance be seen, until the test ends.
func (s *site) joins(o instance.Options) *instance.Client {
	s.t.Helper()
	o.Endpoints = []string{s.etcd.Endpoint()}
	c, err := instance.Open(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Leave() })
	return c
}

func TestThePageOfHostsShowsWhoIsThere(t *testing.T) {
	t.Parallel()
	d := newRunSite(t, func(c *sidecar.Config) { c.Options.Version = "1.2.0" })
	d.joins(instance.Options{Host: "two", Instance: "worker", Role: "worker", Version: "1.2.0", Capacity: 4})
	d.joins(instance.Options{Host: "three", Instance: "p1", Role: "exec", Version: "1.2.0"})

	page := d.until("/hosts", "all are seen", func(p *document) bool {
		return p.id("worker-two/worker") != nil && p.id("other-three/p1") != nil && p.id("sidecar-one/sidecar") != nil
	})
	page.says("There is none: no claim waits for an offer.")
	page.says("There is no leader.", "No run is admitted", "3 hosts", "3 instances present", "0 / 4 step instances on workers")
	if page.id("no-leader") == nil || page.id("versions") != nil || page.id("candidates") != nil {
		t.Error("a fleet without a leader, of one version, is not shown as one")
	}
	if row := text(page.must("worker-two/worker")); !strings.Contains(row, "0/4") || !strings.Contains(row, "1.2.0") {
		t.Errorf("the worker: %q", row)
	}
	d.put(store.Put(d.store.Keys.Worker("two", "worker"), step.WorkerState{Mode: step.Drained, At: time.Now(), By: "ann", Reason: "new disk"}.Encode(), 0))
	page = d.until("/hosts", "the worker is drained", func(p *document) bool {
		return strings.Contains(text(p.must("worker-two/worker")), "drained new disk")
	})
	if row := text(page.must("other-three/p1")); !strings.Contains(row, "exec") {
		t.Errorf("the other: %q", row)
	}
	if current := page.all(func(n *html.Node) bool { return attr(n, "aria-current") == "page" }); len(current) != 1 || text(current[0]) != "Hosts" {
		t.Errorf("the current page is %q", texts(current))
	}

	// Something is taken there, and by an instance that is not present.
	graph, err := step.NewGraph([]step.Spec{{Name: "a", Command: []string{"true"}}, {Name: "b", Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	stop := d.leads("lead")
	if _, _, err := d.steps.Submit(t.Context(), d.store, "r", run.Spec{}, graph); err != nil {
		t.Fatal(err)
	}
	d.takes(store.StepID{Run: "r", Step: "a"})
	page = d.until("/hosts", "the leader has reported a tick, and the step instance is seen", func(p *document) bool {
		return p.id("tick") != nil && p.fact("Number") != "" && strings.Contains(text(p.must("worker-two/worker")), "1/4")
	})
	leader := text(page.must("leader"))
	if page.id("no-leader") != nil || !strings.Contains(leader, "★") || !strings.Contains(leader, "lead") || !strings.Contains(leader, "coordinator") {
		t.Errorf("the leader: %q", leader)
	}
	for _, name := range []string{"Last tick", "Took", "Queued", "In progress", "Admitted", "Lost", "Blocked"} {
		if page.fact(name) == "" {
			t.Errorf("the tick does not say %s", name)
		}
	}
	page.says("none would take over")
	d.leads("next")
	page = d.until("/hosts", "the next one stands", func(p *document) bool { return p.id("candidate-next/coordinator") != nil })
	if row := text(page.must("candidate-next/coordinator")); !strings.Contains(row, "candidate") || !strings.Contains(row, "number 1 to take over") {
		t.Errorf("the next: %q", row)
	}
	stop()
	d.until("/hosts", "the next one leads", func(p *document) bool {
		return p.id("leader") != nil && strings.Contains(text(p.must("leader")), "next")
	})
}

func TestThePageOfHostsShowsWhoDispatches(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	keys := wire.Keys{Keys: d.store.Keys}
	d.put(store.Put(keys.Pending("db"), wire.EncodeEmpty(), 0))
	page := d.until("/hosts", "nobody dispatches", func(p *document) bool {
		return strings.Contains(text(p.must("dispatcher-part")), "Nobody dispatches")
	})
	page.says("claims wait in 1 pool, and no process dispatches: each instance serves its own waiting claims, every few seconds.")
	d.put(store.Put(keys.Role(), wire.EncodeRole(wire.Role{Host: "two", Instance: "<i>", Kind: wire.Service, Since: time.Now().Add(-time.Hour)}), 0))
	d.until("/hosts", "the role can't be read", func(p *document) bool { return p.id("unreadable") != nil })
	d.put(store.Put(keys.Role(), wire.EncodeRole(wire.Role{Host: "two", Instance: "i", Kind: wire.Service, Since: time.Now().Add(-time.Hour)}), 0))
	page = d.until("/hosts", "one dispatches", func(p *document) bool { return p.id("dispatches") != nil })
	page.says("two i offers slots to the waiting claims of all hosts, since 1 h ago")
}

func TestHostsAreFilteredAndVersionsPointedOut(t *testing.T) {
	s := newSite(t, func(c *sidecar.Config) { c.Options.Version = "1.2.0" })
	s.joins(instance.Options{Host: "two", Instance: "p1", Role: "exec", Version: "1.3.0"})
	page := s.until("/hosts", "both are seen", func(p *document) bool { return p.id("other-two/p1") != nil })
	if got := text(page.must("versions")); !strings.Contains(got, "1.2.0 : 1 instance") || !strings.Contains(got, "1.3.0 : 1 instance") {
		t.Errorf("versions: %q", got)
	}
	page = s.page("/hosts?q=TWO")
	if page.id("other-two/p1") == nil || page.id("sidecar-one/sidecar") != nil || attr(page.must("q"), "value") != "two" {
		t.Error("it does not show what has \"two\" alone")
	}
	page.says("No sidecar matches.", "2 hosts")
}

func TestWhatHostsTellOfThemselvesIsShownAndNeverInterpreted(t *testing.T) {
	const evil = `<script>alert(1)</script>"'&amp;{{.}}<img src=x onerror=alert(2)>`
	d := newRunSite(t)
	d.joins(instance.Options{Host: "two", Instance: "p1", Role: "role " + evil, Version: "version " + evil})
	d.put(store.Put(d.store.Keys.Coordinator(0x4711), []byte(evil), 0))
	d.put(store.Put(d.store.Keys.Presence("three", "x"), []byte(`{"v":1,"`+`bad":"<img src=x>"}`), 0))
	d.put(store.Put(d.store.Keys.Worker("four", "w"), []byte(`{"v":1,"worse":"<img src=x>"}`), 0))
	page := d.until("/hosts", "it is seen", func(p *document) bool { return p.id("other-two/p1") != nil })
	page.shows("role "+evil, "version "+evil, "Keys of hosts that can't be read", `unknown field "bad"`, `unknown field "worse"`)
	page = d.page("/hosts?q=" + "%3Cscript%3E")
	if got := attr(page.must("q"), "value"); got != "<script>" || len(page.cells()) != 0 && page.id("other-two/p1") == nil {
		t.Errorf("looked for %q", got)
	}
}

// Who looks is served what was just read for others, so that many who look cost etcd what one does.
func TestManyWhoLookAtHostsCostEtcdWhatOneDoes(t *testing.T) {
	d := newRunSite(t)
	begun := time.Now()
	const looks = 200
	before := counterOf(t, d.get("/metrics").body, `berth_etcd_request_duration_seconds_count{op="range",outcome="ok"}`)
	for range looks {
		d.page("/hosts")
	}
	took := time.Since(begun)
	after := counterOf(t, d.get("/metrics").body, `berth_etcd_request_duration_seconds_count{op="range",outcome="ok"}`)
	// A look is of three reads; others read meanwhile, about ten times a second.
	if most := 3*(1+took.Seconds()/2) + 10*(1+took.Seconds()); after-before > most {
		t.Errorf("%d looks in %s took %v reads of etcd, more than %v", looks, took, after-before, most)
	}
}

// counterOf is the value of a series of metrics.
func counterOf(t testing.TB, metrics, series string) float64 {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("there is no series %s", series)
	return 0
}
