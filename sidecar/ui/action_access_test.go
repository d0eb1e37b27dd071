package ui_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// visitors are tokens by their names, each with the secret NAME-secret.
var visitors = map[string][]string{
	"viewer":   {"view"},
	"ann":      {"view", "claim", "submit"},
	"bob":      {"view", "claim", "submit"},
	"etl":      {"operate:etl-*"},
	"operator": {"operate"},
}

// withVisitors has a site take the tokens of the visitors.
func withVisitors(c *sidecar.Config) {
	var tokens access.Tokens
	for name, roles := range visitors {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			panic(err)
		}
	}
	c.Policy.Open = false
	c.Tokens = func() access.Tokens { return tokens }
}

// enter signs a visitor in, in place of another.
func (s *site) enter(name string) {
	s.t.Helper()
	s.cookie = nil
	got := s.post("/signin", url.Values{"token": {name + "-secret"}})
	if got.status != http.StatusSeeOther {
		s.t.Fatalf("%s can't sign in: %d %s", name, got.status, got.body)
	}
	s.cookie = cookieOf(s.t, got)
}

// calls returns the HTTP API as a visitor has it.
func (s *site) calls(name string) *client.Client {
	s.t.Helper()
	c, err := client.Dial(s.base, name+"-secret")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// claims makes a claim as a visitor. It is released at the end.
func (s *site) claims(name string, req api.ClaimRequest) *api.Claim {
	s.t.Helper()
	own := s.client
	s.client = s.calls(name)
	defer func() { s.client = own }()
	return s.hold(req)
}

// neighbors returns a site with what visitors can act on.
func neighbors(t *testing.T) *runSite {
	t.Helper()
	d := newRunSite(t, withVisitors)
	d.pool("db", 9)
	d.pool("etl-a", 9)
	d.claims("ann", api.ClaimRequest{ID: "anns", Pools: api.Slots{"db": 1}})
	d.claims("bob", api.ClaimRequest{ID: "bobs", Pools: api.Slots{"etl-a": 1}})
	d.claims("ann", api.ClaimRequest{ID: "wide", Pools: api.Slots{"db": 1, "etl-a": 1}})
	for name, id := range map[string]string{"ann": "r-ann", "bob": "r-bob"} {
		if _, err := d.calls(name).SubmitRun(t.Context(), api.RunRequest{ID: id, Steps: api.RunSteps{{Name: "load", External: true}}}); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// The pages show an action only to visitors who may carry it out. A way that is not
// on a page leads nowhere.
func TestAVisitorFindsExactlyWhatTheirRolesAllow(t *testing.T) {
	t.Parallel()
	d := neighbors(t)
	ways := map[string][]string{}
	for name, want := range map[string][]string{
		"viewer": nil,
		"ann":    {"revoke claim=anns", "revoke claim=wide", "cancel run=r-ann", "cancel index=0&run=r-ann&step=load"},
		"bob":    {"revoke claim=bobs", "cancel run=r-bob", "cancel index=0&run=r-bob&step=load"},
		"etl":    {"pause pool=etl-a", "limit pool=etl-a", "delete pool=etl-a", "revoke claim=bobs"},
		"operator": {
			"pause pool=etl-a", "limit pool=etl-a", "delete pool=etl-a", "pause pool=db", "limit pool=db", "delete pool=db",
			"revoke claim=anns", "revoke claim=bobs", "revoke claim=wide", "cancel run=r-ann", "cancel run=r-bob",
			"cancel index=0&run=r-ann&step=load", "cancel index=0&run=r-bob&step=load",
		},
	} {
		ways[name] = want
		d.enter(name)
		found := map[string]bool{}
		for _, path := range []string{
			"/pools?open=db&open=etl-a", "/queue", "/runs", "/hosts", "/actions",
			"/runs/r-ann?step=load", "/runs/r-bob?step=load", "/runs/r-ann?tab=logs&step=load&index=0", "/runs/r-bob?tab=logs&step=load&index=0",
		} {
			page := d.page(path)
			for _, n := range page.all(func(n *html.Node) bool {
				return strings.HasPrefix(attr(n, "href"), "/actions/") || strings.HasPrefix(attr(n, "action"), "/actions/")
			}) {
				at, err := url.Parse(attr(n, "href") + attr(n, "action"))
				if err != nil {
					t.Fatal(err)
				}
				q := at.Query()
				q.Del("back")
				found[strings.TrimPrefix(at.Path, "/actions/")+" "+q.Encode()] = true
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
			t.Errorf("%s finds\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	for name := range visitors {
		d.enter(name)
		for _, way := range ways["operator"] {
			want := http.StatusForbidden
			if slices.Contains(ways[name], way) {
				want = http.StatusOK
			}
			if got := d.get("/actions/" + strings.Replace(way, " ", "?", 1)); got.status != want {
				t.Errorf("%s asks to %s: %d, want %d: %s", name, way, got.status, want, got.body)
			}
		}
	}
	d.wantActions() // asking has done nothing
}

// Neighbors attack each other with forms that no page has given them.
func TestNeighborsCanNotActOnWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	d := neighbors(t)
	fences := map[string]int64{}
	for _, id := range []string{"anns", "bobs", "wide"} {
		c, err := d.client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		fences[id] = c.Fence
	}
	revoke := func(claim, fence string, more ...string) url.Values {
		form := url.Values{"claim": {claim}, "fence": {fence}, "back": {"/pools"}, "who": {"token:operator"}, "claimed_by": {"token:bob"}}
		for i := 0; i+1 < len(more); i += 2 {
			form.Add(more[i], more[i+1])
		}
		return form
	}
	fence := func(id string) string { return strconv.FormatInt(fences[id], 10) }
	type attack struct {
		action string
		form   url.Values
	}
	all := map[string][]attack{
		"bob": {
			{"revoke", revoke("anns", fence("anns"))},
			{"revoke", revoke("anns", fence("anns"), "force", "yes", "sure", "yes")},
			{"revoke", revoke("anns", fence("bobs"), "force", "yes", "sure", "yes")}, // the fence of one's own
			{"revoke", revoke("anns", fence("anns"), "claim", "bobs")},
			{"revoke", revoke("one/sidecar/anns", fence("anns"))},
			{"revoke", revoke("wide", fence("wide"), "force", "yes", "sure", "yes")},
			{"cancel", url.Values{"run": {"r-ann"}, "submitted_by": {"token:bob"}}},
			{"cancel", url.Values{"run": {"r-ann", "r-bob"}}},
			{"cancel", url.Values{"run": {"r-ann"}, "step": {"load"}, "index": {"0"}}},
			{"retry", url.Values{"run": {"r-ann"}}},
			{"retry", url.Values{"run": {"r-ann"}, "step": {"load"}}},
			{"pause", url.Values{"pool": {"db"}}},
			{"limit", url.Values{"pool": {"db"}, "limit": {"1"}, "from": {"9"}}},
			{"limit", url.Values{"pool": {"db"}, "limit": {"1"}, "from": {"7"}}}, // a refusal does not say the limit
			{"delete", url.Values{"pool": {"db"}}},
			{"resume", url.Values{"pool": {"db"}}},
		},
		"etl": {
			{"revoke", revoke("anns", fence("anns"), "force", "yes", "sure", "yes")},
			{"revoke", revoke("wide", fence("wide"), "force", "yes", "sure", "yes")}, // of a pool of its own, too
			{"pause", url.Values{"pool": {"db", "etl-a"}}},
			{"delete", url.Values{"pool": {"db"}}},
			{"cancel", url.Values{"run": {"r-ann"}}},
		},
		"ann": {
			{"revoke", revoke("bobs", fence("bobs"), "force", "yes", "sure", "yes")},
			{"cancel", url.Values{"run": {"r-bob"}}},
		},
		"viewer": {{"revoke", revoke("bobs", fence("bobs"))}, {"cancel", url.Values{"run": {"r-bob"}}}},
	}
	for name, attacks := range all {
		d.enter(name)
		for _, a := range attacks {
			for _, change := range []func(*http.Request){
				func(*http.Request) {},
				func(r *http.Request) { r.Header.Set("Cookie", r.Header.Get("Cookie")+"; berth=x") },
			} {
				got := d.post("/actions/"+a.action, a.form, change)
				if got.status == http.StatusUnprocessableEntity && strings.Contains(a.form.Get("claim"), "/") {
					continue // the pages know no such claim
				}
				d.refused(got, problem.Forbidden, "which token:"+name+" does not have.")
			}
		}
		// The name of another on one's own cookie makes it none.
		parts := strings.SplitN(d.cookie.Value, ".", 2)
		own := d.cookie
		d.cookie = &http.Cookie{Name: own.Name, Value: "b3BlcmF0b3I." + parts[1]} // operator
		if got := d.post("/actions/pause", url.Values{"pool": {"db"}}); got.status != http.StatusUnauthorized {
			t.Errorf("%s as the operator: %d", name, got.status)
		}
	}
	d.wantActions()
	for id, fence := range fences {
		if c, err := d.client.Get(t.Context(), id); err != nil || c.Fence != fence || c.Status != "held" {
			t.Errorf("claim %s: %+v, %v", id, c, err)
		}
	}
	for _, id := range []string{"r-ann", "r-bob"} {
		if r, err := d.store.Get(t.Context(), id); err != nil || r.Status != run.Queued {
			t.Errorf("%s: %+v, %v", id, r, err)
		}
	}
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Limit != 9 || p.Paused {
		t.Errorf("%+v, %v", p, err)
	}

	// What is their own, they may end.
	d.enter("bob")
	if _, _, message := d.follow(d.confirm("/actions/revoke?claim=bobs&force=yes", "sure", "yes")); !strings.Contains(message, "are free") {
		t.Errorf("%q", message)
	}
	if _, _, message := d.follow(d.confirm("/actions/cancel?run=r-bob", "reason", "done")); message != "Run r-bob is canceled." {
		t.Errorf("%q", message)
	}
	got := d.actions()
	for i, want := range []string{"token:bob: cancel-run r-bob (canceled by token:bob: done) done: queued -> canceled. ", fmt.Sprintf("token:bob: revoke-claim bobs (by force) done: held with fencing token %s -> . ", fence("bobs"))} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("recorded are\n%s\nwant %s", strings.Join(got, "\n"), want)
		}
	}
}
