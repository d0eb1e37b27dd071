package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
)

// doc is a page that keeps all rules, with something in its main part.
func doc(main string) string {
	return `<!doctype html><html lang="en"><head><title>A page</title><meta name="viewport" content="width=device-width">
<style>body { font: 16px/2 sans-serif; color: #111; background: #fff } nav a, main > a { display: inline-block; padding: 8px } li { padding: 4px }</style></head>
<body><a href="#main">To the main part</a><nav><a href="/a">One</a> <a href="/b" aria-current="page">Another</a></nav>
<main id="main"><h1>A page</h1>` + main + `</main></body></html>`
}

// without is that page with something in place of a part of it.
func without(part, instead string) string {
	page := doc("<p>Text</p>")
	if !strings.Contains(page, part) {
		panic("no " + part)
	}
	return strings.Replace(page, part, instead, 1)
}

// served is a server of one page.
type served struct {
	*httptest.Server
	page string
}

func serve(t *testing.T) *served {
	t.Helper()
	s := new(served)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, s.page)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestPagesThatKeepTheRulesAndPagesThatBreakThem(t *testing.T) {
	s := serve(t)
	b := Open(t)
	seen := map[string]bool{}
	judge := func(page string) []Finding {
		s.page = page
		b.Go(s.URL)
		return b.Audit()
	}
	for _, c := range examples {
		seen[c.rule] = true
		own, axes := rulesOf(judge(c.bad))
		if !slices.Equal(own, []string{c.rule}) {
			t.Errorf("%s: broken were %q\n%s", c.rule, own, c.bad)
		}
		if c.axe != "" && os.Getenv(AxeVar) != "" && !slices.Contains(axes, "axe "+c.axe) {
			t.Errorf("%s: axe finds %q broken, and not %s\n%s", c.rule, axes, c.axe, c.bad)
		}
		for _, good := range c.good {
			for _, f := range judge(good) {
				t.Errorf("%s: a good page: %s\n%s", c.rule, f, good)
			}
		}
	}
	b.Complaints() // the browser has its own about such pages
	all := Eval[[]string](b, `(() => { `+rulebook+`; return Object.keys(rules) })()`)
	for _, rule := range all {
		if !seen[rule] {
			t.Errorf("no page breaks %s", rule)
		}
	}
	if len(all) < 30 {
		t.Errorf("there are %d rules", len(all))
	}
}

// rulesOf are the rules that were broken: our own, and those of axe.
func rulesOf(found []Finding) (own, axes []string) {
	for _, f := range found {
		if strings.HasPrefix(f.Rule, "axe ") {
			axes = append(axes, f.Rule)
		} else {
			own = append(own, f.Rule)
		}
	}
	return slices.Compact(own), slices.Compact(axes)
}

// TestNamesAreThoseThatTheBrowserTells holds the names that the rules go by
// against what the browser tells those who listen.
func TestNamesAreThoseThatTheBrowserTells(t *testing.T) {
	s := serve(t)
	s.page = doc(`<style>.q::before { content: "before " } .i::before { content: "×" / "times " }</style>
<button>Plain <b>bold</b></button> <button aria-label="Labelled">x</button> <button aria-labelledby="l1 l2">x</button>
<span id="l1">One</span><span id="l2" hidden>and <i>two</i></span> <button title="Title"></button> <button><img alt="Picture" src="data:,"></button>
<a href="/">A <span aria-hidden="true">hidden</span><span style="display:none">gone</span>link</a> <a href="/" class="q">this</a> <a href="/" class="i">this</a>
<a href="/"><span>a</span><span>b</span></a> <a href="/"><div>a</div><div>b</div></a> <a href="/"><svg role="img" aria-label="Drawn"></svg></a>
<label>Wrapped <input></label> <label for="f">Pointed</label><input id="f"> <input aria-label="Said"> <input title="Titled"> <input placeholder="Held">
<label>Often <select><option>one</option><option selected>two</option></select> a day</label> <textarea aria-labelledby="l1"></textarea>
<label><input type="checkbox"> Check</label> <label>Load <meter min="0" max="3" value="1">1</meter></label> <progress aria-label="Done" value="1" max="2"></progress>
<input type="submit"> <input type="submit" value="Send"> <input type="image" alt="Go" src="data:,"> <img alt="Alt" src="data:,"> <img title="T" src="data:,">
<svg role="img"><title>Inside</title><path d="M0 0"/></svg> <details><summary>More <em>of it</em></summary>x</details>
<table><caption>Things</caption><tr><th scope="col">Head <small>small</small></th></tr><tr><td>Cell</td></tr></table>
<fieldset><legend>Legend</legend><label><input type="radio" name="r"> R</label></fieldset> <section aria-label="Sect"></section> <h2>Head <a href="/">link</a></h2>
<div role="tab">Tab</div> <div role="group" aria-label="G"></div> <iframe title="Frame" src="data:,"></iframe> <div role="region" aria-labelledby="l1" tabindex="0"></div>`)
	b := Open(t)
	b.Go(s.URL)
	type named struct{ Element, Want, Got string }
	compared := Eval[[]named](b, `(() => { `+rulebook+`
  return [...document.querySelectorAll("main button, main a, main input, main select, main textarea, main meter, main progress, main img, main svg, main summary, main table, main th, main td, main fieldset, main section, main h2, main [role], main iframe, nav, main")]
    .map(e => ({Element: e.outerHTML.slice(0, 100), Want: words(e.computedName ?? ""), Got: nameOf(e)})) })()`)
	b.Complaints() // about a form of which nothing could be sent
	if !Eval[bool](b, `"computedName" in Element.prototype`) {
		t.Skip("this browser does not tell the names that it computes")
	}
	for _, c := range compared {
		if c.Got != c.Want {
			t.Errorf("%s is called %q, and not %q", c.Element, c.Want, c.Got)
		}
	}
	if len(compared) < 40 {
		t.Errorf("%d names were compared", len(compared))
	}
}
