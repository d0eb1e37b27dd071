package browser

import (
	"embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/emulation"
)

// AxeVar names the variable with the path of an axe-core script, by which pages
// are judged too.
const AxeVar = "BERTH_AXE"

//go:embed js
var scripts embed.FS

// library are the functions that tell roles and names; rulebook is all of the audit.
var (
	library  = source("names.js")
	rulebook = source("names.js", "aria.js", "colours.js", "rules_page.js", "rules_parts.js", "rules_colour.js", "audit.js")
)

func source(names ...string) string {
	var all strings.Builder
	for _, name := range names {
		text, err := scripts.ReadFile("js/" + name)
		if err != nil {
			panic(fmt.Sprintf("browser: %v", err)) // it is embedded
		}
		all.Write(text)
	}
	return all.String()
}

// Finding is something by which a page shuts people out.
type Finding struct {
	// Rule that the page breaks. Those of axe-core begin with "axe ".
	Rule string `json:"rule"`
	// Message says what is wrong.
	Message string `json:"message"`
	// Element is where, and its markup.
	Element string `json:"element"`
}

// String is the finding on a line.
func (f Finding) String() string { return f.Rule + ": " + f.Message + "\n    " + f.Element }

// Audit returns by what the page shuts people out who listen to it, who have only
// a keyboard, or who can't see well. It looks at the page as it is now, in its
// colour scheme and at its width, all of it at once.
func (b *Browser) Audit() []Finding {
	b.t.Helper()
	b.whole(true)
	defer b.whole(false)
	found := ask[[]Finding](b, `() => { `+rulebook+`; return audit() }`)
	if path := os.Getenv(AxeVar); path != "" && b.scripts { // it needs timers
		found = append(found, b.axe(path)...)
	}
	return found
}

// whole makes the viewport as high as the page, so that the script can see at
// each point what lies over what.
func (b *Browser) whole(on bool) {
	b.t.Helper()
	height := b.height
	if on {
		const most = 20000
		height = min(max(height, ask[int](b, `() => document.documentElement.scrollHeight`)), most)
	}
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(b.width), Height: int64(height), DeviceScaleFactor: 1, Mobile: b.width <= phone,
	})
	if on {
		ask[bool](b, `() => { scrollTo(0, 0); return true }`)
	}
}

// optional are rules of axe-core that it leaves out by itself.
const optional = `["target-size", "td-has-header", "label-content-name-mismatch", "css-orientation-lock"]`

// axe judges the page by axe-core, with its rules for WCAG and its best practices.
func (b *Browser) axe(path string) []Finding {
	b.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatalf("%s: %v", AxeVar, err)
	}
	if !ask[bool](b, `() => typeof axe === "object"`) {
		ask[bool](b, `() => { `+string(text)+"\n"+`; return true }`)
	}
	found := ask[[]Finding](b, `async () => (await axe.run(document, {
  resultTypes: ["violations"], rules: Object.fromEntries(`+optional+`.map(r => [r, {enabled: true}]))})).violations.flatMap(v => v.nodes.map(n => ({
  rule: "axe " + v.id, message: n.failureSummary.replace(/\s+/g, " "), element: n.target.join(" ") + "  " + n.html.slice(0, 160)})))`)
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(a.Rule, b.Rule) })
	return found
}

// WantNoFindings fails the test for each rule that the page breaks by [Browser.Audit],
// with the first three that break it. Some rules can be left out.
func (b *Browser) WantNoFindings(but ...string) {
	b.t.Helper()
	byRule := map[string][]Finding{}
	for _, f := range b.Audit() {
		if !slices.Contains(but, f.Rule) {
			byRule[f.Rule] = append(byRule[f.Rule], f)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(byRule)) {
		all := byRule[rule]
		var text strings.Builder
		for _, f := range all[:min(3, len(all))] {
			fmt.Fprintf(&text, "\n  %s\n    %s", f.Message, f.Element)
		}
		b.t.Errorf("%s, %d wide, dark %v: %s is broken by %d:%s", b.URL(), b.width, b.dark, rule, len(all), text.String())
	}
}
