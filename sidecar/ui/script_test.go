package ui_test

import (
	"testing"

	"github.com/berthhq/berth/sidecar/api"
)

// What the script changes is what differs: who reads, types or goes by keyboard is not
// disturbed.
func TestAChangeLeavesAloneWhatIsTheSame(t *testing.T) {
	t.Parallel()
	h := newBrowserSite(t)
	for _, name := range []string{"a", "b", "c"} {
		h.pool(name, 4)
	}
	h.to("/pools?open=b")
	h.WaitShown("#open-b")
	// A reader has gone to b, and has typed into the filter.
	h.Eval(`(() => {
		window.card = document.querySelector("#pool-b");
		window.link = document.querySelector("#open-b");
		document.querySelector("#q").value = "typed";
		link.focus();
		for (const n of document.querySelectorAll("main *")) n.known = true;
	})()`)
	held := h.claim(api.ClaimRequest{ID: "one", Pools: api.Slots{"b": 3}})
	h.WaitShown("#holds-b-one")
	// b is the fullest now, so that it has gone to the front.
	h.WaitFor("b comes first", `document.querySelector(".pool").id === "pool-b"`)
	for what, is := range map[string]string{
		"the card is another one":    `document.querySelector("#pool-b") === card && document.querySelector("#open-b") === link`,
		"the focus is gone":          `document.activeElement === link`,
		"what was typed is gone":     `document.querySelector("#q").value === "typed"`,
		"something is there twice":   `document.querySelectorAll("#pool-list > li").length === 3 && new Set([...document.querySelectorAll("[id]")].map((n) => n.id)).size === document.querySelectorAll("[id]").length`,
		"times are not relative":     `[...document.querySelectorAll("main time")].every((n) => /^(just now|.* ago|in .*)$/.test(n.textContent))`,
		"a time has lost what it is": `[...document.querySelectorAll("main time")].every((n) => n.title.endsWith(" UTC"))`,
	} {
		if h.Eval(is) != true {
			t.Error(what)
		}
	}
	if made := h.Eval(`[...document.querySelectorAll("main *")].filter((n) => !n.known && !n.closest("#detail-b, svg")).map((n) => n.outerHTML).join("\n")`); made != "" {
		t.Errorf("what is the same was made again:\n%s", made)
	}
	if err := h.client.Release(t.Context(), held.ID); err != nil {
		t.Fatal(err)
	}
	h.WaitCount("#holds-b-one", 0)
	h.WaitFor("the order is the old one", `[...document.querySelectorAll(".pool")].map((n) => n.id).join() === "pool-a,pool-b,pool-c"`)
	if h.Eval(`document.activeElement === link && document.querySelector("#pool-b") === card`) != true {
		t.Error("the focus is gone after the second change")
	}
}

func TestAChangeLeavesMarkedWhatIsMarked(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("a", 4)
	h.pool("b", 4)
	h.to("/pools")
	h.WaitFor("a text is marked", `(getSelection().selectAllChildren(document.querySelector("#pool-a h2")), String(getSelection()) === "a")`)
	h.claim(api.ClaimRequest{Pools: api.Slots{"b": 3}})
	h.WaitFor("b comes first", `document.querySelector(".pool").id === "pool-b"`)
	if h.Eval(`String(getSelection())`) != "a" {
		t.Error("it is marked no more")
	}
}

// What is expanded is an address: it is loaded in place, kept live, and Back undoes it.
func TestExpansionsAreAddressesAndBackUndoesThem(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("a", 2)
	h.pool("b", 2)
	h.to("/pools?sort=name")
	same := h.stays()
	h.Click("#open-b")
	h.WaitShown("#detail-b")
	h.WaitFor("the address says so", `location.search === "?open=b&sort=name"`)
	h.Click("#open-a")
	h.WaitShown("#detail-a")
	h.WaitFor("Refresh leads to what is shown", `document.querySelector("footer a").href === location.origin + "/pools?open=b&open=a&sort=name"`)
	// The stream is of what is shown now.
	h.claim(api.ClaimRequest{ID: "one", Pools: api.Slots{"a": 1, "b": 1}})
	h.WaitShown("#holds-a-one")
	h.WaitShown("#holds-b-one")
	h.Click("#open-b")
	h.WaitCount("#detail-b", 0)
	for _, step := range []struct {
		do, open, search string
	}{
		{"back", "a,b", "?open=b&open=a&sort=name"},
		{"back", "b", "?open=b&sort=name"},
		{"back", "", "?sort=name"},
		{"forward", "b", "?open=b&sort=name"},
	} {
		h.Eval("void history." + step.do + "()")
		h.WaitFor("after "+step.do+" these are expanded: "+step.open,
			`[...document.querySelectorAll(".pool.open h2")].map((n) => n.textContent).join() === "`+step.open+`"`)
		if got := h.Eval("location.search"); got != step.search {
			t.Errorf("after %s the address is %s, want %s", step.do, got, step.search)
		}
	}
	// The stream is of what is shown now.
	h.claim(api.ClaimRequest{ID: "two", Pools: api.Slots{"b": 1}})
	h.WaitShown("#holds-b-two")
	same()
	h.Reload()
	if h.Count("#detail-a") != 0 || h.Count("#detail-b") != 1 {
		t.Error("a reload shows another page")
	}
}

// The output of an instance is shown from its end, which is followed until the reader
// scrolls up.
func TestALogIsShownFromItsEndAndFollowed(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.leads("one")
	w := h.works("two", 1)
	h.submit(api.RunRequest{ID: "r1", Steps: api.RunSteps{{Name: "load", Command: []string{"true"}}}})
	h.eventually("it runs", func() bool { return w.runs("r1/load/0") != nil })
	job := w.runs("r1/load/0")
	write := func(from, to int) {
		for i := from; i < to; i++ {
			job.write("line %d\n", i)
		}
	}
	const atEnd = `(() => { const e = document.querySelector("#output"); return e.scrollHeight > e.clientHeight && e.scrollHeight - e.scrollTop - e.clientHeight < 2 })()`
	write(0, 200)
	h.to("/runs/r1?tab=logs&step=load&index=0")
	h.WaitText("#output", "line 199")
	h.WaitFor("it is shown from its end", atEnd)
	write(200, 400)
	h.WaitText("#output", "line 399")
	h.WaitFor("its end is followed", atEnd)
	h.Eval(`document.querySelector("#output").scrollTop = 100`)
	write(400, 600)
	h.WaitText("#output", "line 599")
	if got := h.Eval(`document.querySelector("#output").scrollTop`); got != 100.0 {
		t.Errorf("the reader was moved to %v", got)
	}
	h.to("/runs/r1")
	h.Click("#tab-logs")
	h.Click("#log-of-load a")
	h.WaitFor("it is shown from its end", atEnd)
	job.end(succeeded("done\n"))
}

func TestAMessageIsShownOnce(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newBrowserSite(t)
	h.pool("db", 2)
	h.to("/actions/pause?pool=db")
	h.Loads(func() { h.Click("main form button") })
	h.WaitShown("#message")
	if h.Eval(`location.search.includes("said")`) != false {
		t.Errorf("the address says it again: %s", h.URL())
	}
	h.Reload()
	if h.Count("#message") != 0 {
		t.Error("it is shown again")
	}
}
