package ui_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/sidecar/api"
)

// stays has the page note that it is this one, and returns what checks that it is
// still: that it was not loaded again.
func (h *browserSite) stays() (check func()) {
	h.t.Helper()
	h.Eval(`window.same = true`)
	return func() {
		h.t.Helper()
		if h.Eval(`window.same === true`) != true {
			h.t.Error("the page was loaded again")
		}
	}
}

func TestABarChangesItsColourAsClaimsAreMade(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 20)
	h.to("/pools")
	same := h.stays()
	colours := map[string]string{}
	for _, c := range []struct {
		claims, used int
		level        string
	}{{0, 0, "ok"}, {11, 11, "ok"}, {1, 12, "busy"}, {5, 17, "busy"}, {1, 18, "full"}, {2, 20, "full"}} {
		for range c.claims {
			h.claim(api.ClaimRequest{Pools: api.Slots{"db": 1}})
		}
		h.WaitText("#pool-db .use-text", fmt.Sprintf("%d/20", c.used))
		h.WaitCount("#pool-db .use.is-"+c.level, 1)
		colours[c.level] = h.Computed("#pool-db .bar-used", "fill")
		if width, _ := h.Attr("#pool-db .bar-used", "width"); width != fmt.Sprint(c.used*5) {
			t.Errorf("with %d of 20 the bar is %s %% wide", c.used, width)
		}
	}
	for level, is := range map[string]func(r, g, b int) bool{
		"ok":   func(r, g, b int) bool { return g > r+40 && g > b+40 },
		"busy": func(r, g, b int) bool { return r > b+80 && g > b+80 },
		"full": func(r, g, b int) bool { return r > g+80 && r > b+80 },
	} {
		var r, g, b int
		if _, err := fmt.Sscanf(colours[level], "rgb(%d, %d, %d)", &r, &g, &b); err != nil || !is(r, g, b) {
			t.Errorf("%s is %s", level, colours[level])
		}
	}
	same()
}

// A holder whose process is gone: the row says that its lease comes to its end, and
// goes with it. Leases are those of etcd, and nothing is loaded again.
func TestTheRowOfAHolderThatHasDiedTurnsAndGoes(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 2, lasting(5*time.Second))
	dying, err := instance.Open(t.Context(), instance.Options{Endpoints: []string{h.etcd.Endpoint()}, Host: "doomed"})
	if err != nil {
		t.Fatal(err)
	}
	h.holds(dying, "dying", instance.Slots{"db": 1}, instance.WithRun("r-1", "load"), instance.WithPID(77))
	h.holds(h.instance(instance.Options{Host: "hale"}), "living", instance.Slots{"db": 1})
	h.to("/pools")
	same := h.stays()
	h.Click("#open-db")
	h.WaitFor("the ends of both leases are shown", `document.querySelectorAll("td.ends time").length === 2`)
	h.wantText("#holds-db-dying", "dying", "process 77", "r-1", "load", "doomed", "in ")
	// What is seen is kept by the page: a moment later its end may be another.
	const look = `(() => { const s = getComputedStyle(document.querySelector("#holds-db-dying .ends")); return s.backgroundColor + s.color })()`
	h.WaitFor("it is far from its end", `document.querySelector("#holds-db-dying:not(.is-near)") && (window.far = `+look+`)`)
	_ = dying.Leave() // as a process that is killed: its leases are not renewed

	h.WaitFor("it is near its end", `document.querySelector("#holds-db-dying.is-near") && (window.near = `+look+`) &&
		(window.said = document.querySelector("#holds-db-dying .ends").innerText)`)
	if said := h.Eval("window.said"); !strings.Contains(fmt.Sprint(said), "near") {
		t.Errorf("near its end it says %q", said)
	}
	if far, near := h.Eval("window.far"), h.Eval("window.near"); near == far {
		t.Errorf("near its end the row has the same colours: %s", near)
	}
	h.WaitCount("#holds-db-dying", 0)
	h.WaitText("#pool-db .use-text", "1/2")
	if h.Count("#holds-db-living") != 1 {
		t.Error("another one went with it")
	}
	same()
}

func TestAPoolShowsAllThatIsKnownOfIt(t *testing.T) {
	inFull(t)
	t.Parallel()
	s := newScene(t)
	s.to("/pools")
	s.WaitText("#pool-gpu", "3 waiting") // the worker has come into line, too
	s.WaitText("#pool-warehouse", "12/12")
	s.wantText("#sums", "7 pools, 1 paused", "38 / 78 slots claimed, and 6 without a limit", "4 claims wait")
	for _, c := range []struct {
		name string
		says []string
	}{
		{"gpu", []string{"4/4", "Lease 10m", "3 waiting", "Pause…", "Limit…"}},
		{"warehouse", []string{"12/12", "Lease 5m"}},
		{"licence", []string{"2/10", "Lease 1m"}},
		{"sftp", []string{"‖ paused", "1 waiting", "Resume…"}},
		{"archive", []string{"closed"}},
		{"scratch", []string{"6 claimed, unlimited"}},
	} {
		s.wantText("#pool-"+c.name, c.says...)
	}
	if names := s.Texts("#pool-list h2"); names[0] != "gpu" {
		t.Errorf("the fullest is not first: %q", names)
	}
	s.WaitFor("its recent use is drawn", `document.querySelector("#pool-gpu svg.recent polyline").points.length >= 2`)
	if text, _ := s.Attr("#pool-gpu svg.recent", "aria-label"); text == "" {
		t.Error("the picture of the recent use has no text")
	}

	s.Click("#open-gpu")
	s.WaitShown("#waiters-of-gpu")
	s.WaitFor("the ends of the leases are shown", `document.querySelectorAll("#holders-of-gpu td.ends time").length === 2`)
	if heads, want := s.Texts("#holders-of-gpu th[scope=col]"), []string{"Claim", "Run", "Step", "Host", "Slots", "Since", "Fence", "Lease ends", "Action"}; !slices.Equal(heads, want) {
		t.Errorf("holders: %q", heads)
	}
	s.wantText("#holds-gpu-train-a", "train-a", "team=ml", "train-resnet", "train", "etl-2", "2", "ago", "in 9 min", "Revoke…")
	if href, _ := s.Attr("#holds-gpu-train-a td a", "href"); href != "/runs/train-resnet" {
		t.Errorf("the run leads to %s", href)
	}
	if heads, want := s.Texts("#waiters-of-gpu th[scope=col]"), []string{"Position", "Claim", "Run", "Step", "Host", "Priority", "Slots", "Since", "Reason"}; !slices.Equal(heads, want) {
		t.Errorf("line: %q", heads)
	}
	s.wantText("#waits-gpu-train-c", "1", "train-c", "train-vit", "5", "2", "pool 'gpu' full (4/4 slots)")
	s.wantText("#waits-gpu-render", "2", "render", "0", "1")
	if title, _ := s.Attr("#holds-gpu-train-a time", "title"); !strings.HasSuffix(title, " UTC") {
		t.Errorf("a time has %q as its title", title)
	}
	if !strings.Contains(s.URL(), "open=gpu") {
		t.Errorf("what is open is not in the address: %s", s.URL())
	}
	s.Reload()
	s.WaitShown("#waiters-of-gpu")
	s.Click("#open-gpu")
	s.WaitGone("#waiters-of-gpu")

	s.Type("#q", "ARE")
	s.Follow("#filter button")
	if got := s.Texts("#pool-list h2"); !slices.Equal(got, []string{"warehouse"}) {
		t.Errorf("named like that are %q", got)
	}
	s.Follow("#filter .action")
	s.Choose("#sort", "name")
	s.Follow("#filter button")
	if got := s.Texts("#pool-list h2"); !slices.IsSorted(got) || len(got) != 7 {
		t.Errorf("by name: %q", got)
	}
}
