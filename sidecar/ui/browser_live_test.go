package ui_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/browser"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/api"
)

// disconnected is what the page says of a connection that is gone.
const disconnected = "Disconnected, trying again"

func TestAPageSaysThatItIsDisconnectedAndComesBack(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 4)
	wire := browser.NewWire(t, h.base)
	h.Go(wire.URL + "/pools")
	h.WaitText("#pool-db .use-text", "0/4")
	same := h.stays()
	wire.Cut()
	h.WaitText("#connection", disconnected)
	if role, _ := h.Attr("#connection", "role"); role != "status" {
		t.Errorf("it is not announced: role %q", role)
	}
	for _, dark := range []bool{true, false} {
		h.Dark(dark)
		h.WantNoFindings()
	}
	h.claim(api.ClaimRequest{ID: "meanwhile", Pools: api.Slots{"db": 3}})
	wire.Mend()
	h.WaitText("#pool-db .use-text", "3/4")
	h.WaitFor("it is not reported any more", `document.querySelector("#connection").textContent === ""`)
	same()
	h.Expect("failed: net::ERR_")
	h.Go("about:blank") // before the wire ends
}

func TestAPageWithoutANetworkSaysSo(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 4)
	h.to("/pools")
	same := h.stays()
	h.Offline(true)
	h.WaitText("#connection", disconnected)
	h.claim(api.ClaimRequest{ID: "meanwhile", Pools: api.Slots{"db": 3}})
	h.Offline(false)
	h.WaitFor("it is not reported any more", `document.querySelector("#connection").textContent === ""`)
	h.WaitText("#pool-db .use-text", "3/4")
	same()
	h.Expect("net::ERR_INTERNET_DISCONNECTED")
}

// Something in between refuses streams: then the page is asked for again and again.
func TestWithoutAStreamThePageIsAskedFor(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 4)
	to, err := url.Parse(h.base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
	}, Transport: &http.Transport{DisableKeepAlives: true}}
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "event-stream") {
			http.Error(w, "no streams here", http.StatusNotImplemented)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(between.Close)
	h.Go(between.URL + "/pools")
	same := h.stays()
	h.claim(api.ClaimRequest{ID: "one", Pools: api.Slots{"db": 3}})
	h.WaitText("#pool-db .use-text", "3/4")
	if text := h.Text("#connection"); text != "" {
		t.Errorf("it works, and says %q", text)
	}
	same()
	h.Expect("status 501")
	h.Go("about:blank") // before the proxy ends
}

// What an operator does on a page is not undone by what comes in.
func TestWhatComesInDisturbsNobody(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Viewport(390, 600)
	s.to("/pools?open=gpu&open=warehouse")
	s.WaitShown("#holders-of-warehouse")
	s.Eval(`(document.querySelector("#holders-of-warehouse").scrollLeft = 120, scrollTo(0, 700))`)
	s.Eval(`document.querySelector("#open-licence").focus({preventScroll: true})`)
	s.claim(api.ClaimRequest{ID: "more", Pools: api.Slots{"licence": 5}})
	s.WaitText("#pool-licence .use-text", "7/10")
	got := s.Eval(`[document.activeElement.id, document.querySelector("#holders-of-warehouse").scrollLeft].join()`)
	if got != "open-licence,120" {
		t.Errorf("focus and place are %v", got)
	}
	s.to("/runs/import-19?tab=logs&step=import")
	s.Click("#command summary")
	s.WaitFor("it is open", `document.querySelector("#command").open`)
	s.ends(s.stage, "billing-7/bill/0", succeeded("done\n"))
	s.to("/queue")
	s.Eval(`document.querySelector("#filter-q").focus()`)
	s.Type("#filter-q", "half a wo")
	s.submit(api.RunRequest{ID: "one-more", Priority: 3})
	s.WaitShown("#run-one-more")
	if got := s.Eval(`document.activeElement.id + "," + document.querySelector("#filter-q").value`); got != "filter-q,half a wo" {
		t.Errorf("what was typed is %v", got)
	}
}

// Without etcd the page says what is wrong and what to do, and goes on when it is back.
func TestWithoutEtcdThePageSaysSoAndGoesOn(t *testing.T) {
	t.Parallel()
	b := browser.Open(t)
	etcd := embedtest.Cluster(t, 1)
	s := launch(t, etcd.Endpoints()[0])
	h := &browserSite{runSite: &runSite{&queueSite{site: s}}, Browser: b, t: t}
	t.Cleanup(func() { b.Go("about:blank") })
	s.eventually("the sidecar is ready", func() bool { return s.client.Ready(t.Context()) == nil })
	h.pool("db", 4)
	h.to("/pools")
	h.WaitShown("#pool-db")
	same := h.stays()
	etcd.Stop(0)
	h.WaitText("main", "etcd does not answer")
	h.wantText("main", "It has been so since", "503")
	for _, dark := range []bool{true, false} {
		h.Dark(dark)
		h.WantNoFindings()
	}
	if text := h.Text("#connection"); text != "" {
		t.Errorf("the server is there, and the page says %q", text)
	}
	etcd.Restart(0)
	h.WaitShown("#pool-db")
	same()
	etcd.Stop(0)
	h.WaitText("main", "etcd does not answer")
	h.Go(h.base + "/pools")
	if h.Status() != 503 {
		t.Errorf("it comes with %d", h.Status())
	}
	etcd.Restart(0)
	h.WaitShown("#pool-db")
	h.Expect("status 503")
}
