package browser

// example is a page that breaks one rule, and pages that keep all.
type example struct {
	rule string
	bad  string
	axe  string // what axe-core calls the rule, if it has it
	good []string
}

func docs(mains ...string) []string {
	var all []string
	for _, main := range mains {
		all = append(all, doc(main))
	}
	return all
}

var examples = []example{
	{rule: "document-language", bad: without(` lang="en"`, ""), axe: "html-has-lang", good: docs(`<p lang="de-CH">Grüezi</p>`)},
	{rule: "document-language", bad: doc(`<p lang="d">Text</p>`), axe: "valid-lang"},
	{rule: "document-title", bad: without("<title>A page</title>", "<title> </title>"), axe: "document-title"},
	{rule: "document-type", bad: without("<!doctype html>", "")},
	{rule: "meta-viewport", bad: without(`<meta name="viewport" content="width=device-width">`, "")},
	{
		rule: "meta-viewport", bad: without("width=device-width", "width=device-width, maximum-scale=1"), axe: "meta-viewport",
		good: []string{without("width=device-width", "width=device-width, initial-scale=1, maximum-scale=5")},
	},
	{rule: "meta-viewport", bad: without("width=device-width", "width=device-width, user-scalable=no"), axe: "meta-viewport"},
	{rule: "meta-refresh", bad: without("<title>", `<meta http-equiv="refresh" content="900"><title>`), axe: "meta-refresh"},
	{rule: "one-h1", bad: doc("<h1>Another</h1>")},
	{rule: "one-h1", bad: without("<h1>A page</h1>", ""), axe: "page-has-heading-one"},
	{rule: "heading-order", bad: doc("<h3>Too deep</h3>"), axe: "heading-order", good: docs("<h2>A</h2><h3>B</h3><h2>C</h2>", `<h2>A</h2><div role="heading" aria-level="3">B</div>`)},
	{rule: "empty-heading", bad: doc("<h2> </h2>"), axe: "empty-heading", good: docs(`<h2 hidden></h2><h2>Text</h2>`)},
	{rule: "landmarks", bad: doc(`<div role="main">Text</div>`), axe: "landmark-no-duplicate-main"},
	{rule: "landmarks", bad: without(`<nav><a href="/a">One</a> <a href="/b" aria-current="page">Another</a></nav>`, "")},
	{
		rule: "landmarks", bad: without("</main>", `</main><nav><a href="/">x</a></nav>`), axe: "landmark-unique",
		good: []string{without("</main>", `</main><nav aria-label="Second"><a href="/">x</a></nav><footer>Foot</footer>`)},
	},
	{rule: "landmarks", bad: without("<nav>", "<header>a</header><header>b</header><nav>"), axe: "landmark-no-duplicate-banner"},
	{
		rule: "all-in-landmarks", bad: without("</main>", "</main><p>Outside</p>"), axe: "region",
		good: []string{without("</main>", `</main><div role="status">Outside</div><footer>Foot</footer>`)},
	},
	{rule: "skip-link", bad: without(`<a href="#main">To the main part</a>`, "")},
	{rule: "link-target", bad: doc(`<p><a href="#nowhere">To nowhere</a></p>`), good: docs(`<p><a href="#top">Up</a></p>`)},
	{rule: "unique-ids", bad: doc(`<p id="a">x</p><p id="a">y</p>`), good: docs(`<p id="a">x</p><p id="b">y</p>`)},
	{rule: "unique-ids", bad: doc(`<p id="a b">x</p>`)},
	{rule: "tab-order", bad: doc(`<p><button tabindex="2">Go</button></p>`), axe: "tabindex", good: docs(`<p tabindex="-1">x</p>`)},
	{
		rule: "scrollable-focus", bad: doc(`<div style="overflow: auto; height: 60px"><p style="height: 300px">Long</p></div>`),
		good: docs(
			`<div style="overflow: auto; height: 60px" tabindex="0" role="region" aria-label="Long"><p style="height: 300px">Long</p></div>`,
			`<div style="overflow: auto; height: 60px"><p style="height: 300px"><a href="/">Long</a></p></div>`,
			`<div style="overflow: hidden; height: 60px"><p style="height: 300px">Long</p></div>`),
	},
	{
		rule: "target-size", bad: doc(`<p><button style="width: 16px; height: 16px; padding: 0" aria-label="x"></button><button style="width: 16px; height: 16px; padding: 0" aria-label="y"></button></p>`), axe: "target-size",
		good: docs(
			`<p>A text with <a href="/" style="font-size: 10px">one</a> <a href="/" style="font-size: 10px">two</a> in it.</p>`,
			`<p><button style="width: 16px; height: 16px; margin: 12px; padding: 0" aria-label="x"></button><button style="width: 16px; height: 16px; margin: 12px; padding: 0" aria-label="y"></button></p>`),
	},
	{
		rule: "link-in-text", bad: doc(`<p>A text with <a href="/" style="text-decoration: none; color: #333">a link</a> in it.</p>`), axe: "link-in-text-block",
		good: docs(`<p>A text with <a href="/">a link</a> in it.</p>`, `<p>A text with <a href="/" style="text-decoration: none; font-weight: bold">a link</a> in it.</p>`),
	},
	{rule: "link-name", bad: doc(`<p><a href="/"><i></i></a></p>`), axe: "link-name", good: docs(`<p><a href="/" aria-label="Home"><i></i></a></p>`, `<p><a href="/"><img alt="Home" src="data:,"></a></p>`)},
	{rule: "button-name", bad: doc(`<button></button>`), axe: "button-name", good: docs(`<button>Go</button>`, `<input type="submit">`, `<button><svg role="img" aria-label="Go"></svg></button>`)},
	{rule: "button-name", bad: doc(`<details><summary> </summary>Text</details>`), axe: "summary-name", good: docs(`<details><summary>More</summary>Text</details>`)},
	{rule: "name-as-shown", bad: doc(`<button aria-label="Delete">Remove</button>`), good: docs(`<button aria-label="Remove pool db">Remove</button>`)},
	{rule: "field-label", bad: doc(`<input>`), axe: "label", good: docs(`<label>Name <input></label>`, `<label for="x">Name</label><input id="x">`, `<input aria-label="Name">`)},
	{rule: "field-label", bad: doc(`<input placeholder="Name">`)},
	{rule: "field-label", bad: doc(`<select><option>a</option></select>`), axe: "select-name", good: docs(`<label>Of <select><option>a</option></select></label>`)},
	{rule: "field-label", bad: doc(`<label for="nothing">Name</label>`)},
	{
		rule: "field-label", bad: doc(`<label><input type="radio" name="r"> A</label>`),
		good: docs(`<fieldset><legend>Which</legend><label><input type="radio" name="r" style="width: 24px; height: 24px"> A</label></fieldset>`),
	},
	{rule: "image-text", bad: doc(`<img src="data:,">`), axe: "image-alt", good: docs(`<img src="data:," alt="">`, `<img src="data:," alt="A ship">`)},
	{rule: "image-text", bad: doc(`<svg role="img"><path d="M0 0"/></svg>`), axe: "svg-img-alt", good: docs(`<svg role="img"><title>A line</title><path d="M0 0"/></svg>`)},
	{rule: "image-text", bad: doc(`<svg><path d="M0 0"/></svg>`), good: docs(`<svg aria-hidden="true"><path d="M0 0"/></svg>`)},
	{rule: "meter-name", bad: doc(`<div role="meter" aria-valuenow="1"></div>`), axe: "aria-meter-name", good: docs(`<meter value="1" max="3" aria-label="Used"></meter>`)},
	{rule: "meter-name", bad: doc(`<meter value="1" max="3"></meter>`)},
	{rule: "meter-name", bad: doc(`<div role="progressbar" aria-valuenow="3"></div>`), axe: "aria-progressbar-name", good: docs(`<label>Done <progress value="1" max="3"></progress></label>`)},
	{rule: "frame-title", bad: doc(`<iframe src="data:text/plain,x"></iframe>`), axe: "frame-title"},
	{rule: "group-name", bad: doc(`<div role="tablist"><a role="tab" href="/" aria-selected="true">A</a></div>`), good: docs(`<div role="tablist" aria-label="Views"><a role="tab" href="/" aria-selected="true">A</a></div>`)},
	{rule: "group-name", bad: doc(`<div role="dialog">Text</div>`), axe: "aria-dialog-name"},
	{
		rule: "table-header", bad: doc(`<table><caption>T</caption><tr><td>a</td></tr></table>`),
		good: docs(
			`<table><caption>T</caption><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead><tbody><tr><th scope="row">1</th><td>2</td></tr></tbody></table>`,
			`<table><caption>T</caption><tr><td></td><th scope="col">b</th></tr><tr><th scope="row">1</th><td>2</td></tr></table>`),
	},
	{rule: "table-header", bad: doc(`<table><tr><th scope="col">a</th></tr><tr><td>1</td></tr></table>`)},
	{rule: "table-header", bad: doc(`<table><caption>T</caption><tr><th>a</th></tr><tr><td>1</td></tr></table>`)},
	{rule: "table-header", bad: doc(`<table><caption>T</caption><tr><th scope="col">a</th><th scope="col"></th></tr><tr><td>1</td><td>2</td></tr></table>`), axe: "empty-table-header"},
	{rule: "table-header", bad: doc(`<table><caption>T</caption><tr><th scope="col">a</th></tr><tr><td>1</td><td>2</td></tr></table>`)},
	{rule: "table-header", bad: doc(`<table><caption>T</caption><tr><th scope="col">a</th></tr><tr><td headers="nowhere">1</td></tr></table>`)},
	{rule: "list-structure", bad: doc(`<ul><p>x</p></ul>`), axe: "list", good: docs(`<ul><li>x</li></ul>`, `<ol><li>x<ul><li>y</li></ul></li></ol>`)},
	{rule: "list-structure", bad: doc(`<ul>x</ul>`), axe: "list"},
	{rule: "list-structure", bad: doc(`<div><li>x</li></div>`), axe: "listitem"},
	{rule: "list-structure", bad: doc(`<dl><p>x</p></dl>`), axe: "definition-list", good: docs(`<dl><dt>a</dt><dd>b</dd><dd>c</dd></dl>`, `<dl><div><dt>a</dt><dd>b</dd></div></dl>`)},
	{rule: "list-structure", bad: doc(`<dd>x</dd>`), axe: "dlitem"},
	{rule: "list-structure", bad: doc(`<dl><dd>x</dd></dl>`)},
	{rule: "roles", bad: doc(`<div role="knob">x</div>`), axe: "aria-roles", good: docs(`<div role="note">x</div>`)},
	{rule: "roles", bad: doc(`<div role="checkbox" aria-label="x" tabindex="0">x</div>`), axe: "aria-required-attr", good: docs(`<div role="checkbox" aria-checked="true" aria-label="x" tabindex="0">x</div>`)},
	{rule: "roles", bad: doc(`<div role="tab">x</div>`), axe: "aria-required-parent"},
	{rule: "roles", bad: doc(`<div role="list"><p>x</p></div>`), axe: "aria-required-children", good: docs(`<div role="list"><div role="listitem">x</div></div>`)},
	{rule: "nested-controls", bad: doc(`<details><summary>More <a href="/">there</a></summary>x</details>`)},
	{rule: "roles", bad: doc(`<div role="presentation" tabindex="0">x</div>`)},
	{rule: "aria-attributes", bad: doc(`<p aria-lable="x">x</p>`), axe: "aria-valid-attr"},
	{rule: "aria-attributes", bad: doc(`<button aria-expanded="maybe">x</button>`), axe: "aria-valid-attr-value", good: docs(`<button aria-expanded="false" aria-controls="later">x</button>`)},
	{rule: "aria-attributes", bad: doc(`<span aria-label="three">3</span>`), good: docs(`<span role="img" aria-label="three">3</span>`)},
	{rule: "references", bad: doc(`<button aria-describedby="nowhere">x</button>`), good: docs(`<button aria-describedby="d">x</button><p id="d">y</p>`)},
	{rule: "references", bad: doc(`<button aria-labelledby="main nowhere">x</button>`)},
	{rule: "hidden-focus", bad: doc(`<div aria-hidden="true"><button>x</button></div>`), axe: "aria-hidden-focus", good: docs(`<div aria-hidden="true"><button tabindex="-1">x</button></div>`)},
	{rule: "nested-controls", bad: doc(`<div role="button" tabindex="0">Go <a href="/">there</a></div>`), axe: "nested-interactive", good: docs(`<div role="group" aria-label="x">Go <a href="/">there</a></div>`)},
	{
		rule: "colour-contrast", bad: doc(`<p style="color: #888">Grey</p>`), axe: "color-contrast",
		good: docs(`<p style="color: #767676">Grey</p>`, `<p style="color: #888" aria-disabled="true">Grey</p>`, `<p style="color: #949494; font-size: 24px">Grey</p>`,
			`<p style="color: #949494; font-size: 19px; font-weight: bold">Grey</p>`, `<p style="color: oklch(0.4 0.1 250)">Blue</p>`,
			`<p style="position: absolute; overflow: hidden; width: 1px; height: 1px; color: #fff">Heard</p>`),
	},
	{rule: "colour-contrast", bad: doc(`<p style="color: #949494; font-size: 23px">Grey</p>`), axe: "color-contrast"},
	{rule: "colour-contrast", bad: doc(`<p style="opacity: 0.4">Faint</p>`), axe: "color-contrast"},
	{rule: "colour-contrast", bad: doc(`<div style="background: #333"><p style="background: rgba(255, 255, 255, 0.2)">Dark</p></div>`), axe: "color-contrast", good: docs(`<div style="background: #333"><p style="background: rgba(255, 255, 255, 0.8)">Text</p></div>`)},
	{
		rule: "colour-contrast", bad: doc(`<div style="position: relative; height: 40px"><div style="position: absolute; inset: 0; background: #222"></div><p style="position: absolute; margin: 0">Over it</p></div>`), axe: "color-contrast",
		good: docs(`<div style="position: relative; height: 40px"><div style="position: absolute; inset: 0; background: #222"></div><p style="position: absolute; margin: 0; color: #fff">Over it</p></div>`),
	},
	{rule: "colour-contrast", bad: doc(`<p style="background: linear-gradient(#fff, #000)">Text</p>`)},
	{rule: "colour-contrast", bad: doc(`<svg role="img" aria-label="x" width="99" height="40"><rect width="99" height="40" fill="#444"/><text x="5" y="20" fill="#111">Text</text></svg>`), good: docs(`<svg role="img" aria-label="x" width="99" height="40"><rect width="99" height="40" fill="#444"/><text x="5" y="20" fill="#fff">Text</text></svg>`)},
	{rule: "colour-contrast", bad: doc(`<style>p::before { content: "Before "; color: #aaa }</style><p>x</p>`)},
	{rule: "colour-contrast", bad: doc(`<style>input::placeholder { color: #bbb }</style><label>Name <input placeholder="yours"></label>`), good: docs(`<style>input::placeholder { color: #666 }</style><label>Name <input placeholder="yours"></label>`)},
}
