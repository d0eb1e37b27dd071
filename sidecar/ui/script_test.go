package ui_test

import (
	"testing"

	"github.com/berthhq/berth/sidecar/api"
)

// What the script changes is what differs: whoever reads, types or goes by keyboard is not
// disturbed.
func TestAChangeLeavesAloneWhatIsTheSame(t *testing.T) {
	t.Parallel()
	h := newHarbour(t)
	for _, name := range []string{"a", "b", "c"} {
		h.pool(name, 4)
	}
	h.to("/pools?open=b")
	h.WaitShown("#open-b")
	// Somebody has gone to b, and has typed into the filter.
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
		t.Errorf("what is the same was made anew:\n%s", made)
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
	h := newHarbour(t)
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

func TestWhatExpandsIsInTheAddressAndIsNotLoadedAnew(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newHarbour(t)
	h.pool("a", 2)
	h.pool("b", 2)
	h.to("/pools?sort=name")
	same := h.stays()
	h.Click("#open-b")
	h.WaitShown("#detail-b")
	h.WaitFor("the address says so", `location.search === "?open=b&sort=name"`)
	h.Click("#open-a")
	h.WaitShown("#detail-a")
	if got, _ := h.Attr("footer a", "href"); got != "/pools?open=b&open=a&sort=name" {
		t.Errorf("Refresh leads to %s", got)
	}
	// The stream is of what is shown now.
	h.claim(api.ClaimRequest{ID: "one", Pools: api.Slots{"a": 1, "b": 1}})
	h.WaitShown("#holds-a-one")
	h.WaitShown("#holds-b-one")
	h.Click("#open-b")
	h.WaitCount("#detail-b", 0)
	if h.Count("#detail-a") != 1 || h.Eval(`history.length <= 2`) != true {
		t.Error("each click is a step back")
	}
	same()
	h.Reload()
	if h.Count("#detail-a") != 1 || h.Count("#detail-b") != 0 {
		t.Error("a page that is loaded anew is another one")
	}
}

func TestAMessageIsToldOnce(t *testing.T) {
	inFull(t)
	t.Parallel()
	h := newHarbour(t)
	h.pool("db", 2)
	h.to("/actions/pause?pool=db")
	h.Loads(func() { h.Click("main form button") })
	h.WaitShown("#message")
	if h.Eval(`location.search.includes("said")`) != false {
		t.Errorf("the address says it again: %s", h.URL())
	}
	h.Reload()
	if h.Count("#message") != 0 {
		t.Error("it is told again")
	}
}
