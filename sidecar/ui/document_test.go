package ui_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// document is a page, as a browser reads it.
type document struct {
	t    testing.TB
	root *html.Node
}

func parse(t testing.TB, text string) *document {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return &document{t: t, root: root}
}

// all returns the elements that are so, in order.
func (d *document) all(is func(*html.Node) bool) []*html.Node {
	var found []*html.Node
	for n := range d.root.Descendants() {
		if n.Type == html.ElementNode && is(n) {
			found = append(found, n)
		}
	}
	return found
}

// tags returns the elements of a name.
func (d *document) tags(name string) []*html.Node {
	return d.all(func(n *html.Node) bool { return n.Data == name })
}

// id returns the element with an id, nil if there is none.
func (d *document) id(id string) *html.Node {
	found := d.all(func(n *html.Node) bool { return attr(n, "id") == id })
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

// must is id for one that has to be there.
func (d *document) must(id string) *html.Node {
	d.t.Helper()
	n := d.id(id)
	if n == nil {
		d.t.Fatalf("there is no #%s in\n%s", id, text(d.root))
	}
	return n
}

// within is the document below an element.
func (d *document) within(n *html.Node) *document { return &document{t: d.t, root: n} }

// attr is an attribute of an element, empty if it has none.
func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
}

// classed tells whether an element has a class.
func classed(n *html.Node, class string) bool {
	return slices.Contains(strings.Fields(attr(n, "class")), class)
}

// text is what is read of an element, without scripts and styles, its spaces made one.
func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode && c.Parent.Data != "script" && c.Parent.Data != "style" {
			b.WriteString(c.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// texts are those of elements.
func texts(nodes []*html.Node) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, text(n))
	}
	return all
}

// cells are the texts of the rows of a table's body.
func (d *document) cells() [][]string {
	var rows [][]string
	for _, body := range d.tags("tbody") {
		for _, row := range d.within(body).tags("tr") {
			rows = append(rows, texts(d.within(row).all(func(n *html.Node) bool { return n.Data == "td" || n.Data == "th" })))
		}
	}
	return rows
}

// checkPage checks what every page has, whatever it shows: headers, one heading, nothing inline, and
// nothing from elsewhere.
func checkPage(t testing.TB, path string, got answer) {
	t.Helper()
	checkHeaders(t, path, got)
	d := parse(t, got.body)
	count := func(want int, what string, is func(*html.Node) bool) {
		t.Helper()
		if found := d.all(is); len(found) != want {
			t.Errorf("%s has %d %s, want %d", path, len(found), what, want)
		}
	}
	count(1, "h1", func(n *html.Node) bool { return n.Data == "h1" })
	count(1, "viewports", func(n *html.Node) bool { return n.Data == "meta" && attr(n, "name") == "viewport" })
	count(1, "main", func(n *html.Node) bool { return n.Data == "main" })
	count(0, "inline scripts", func(n *html.Node) bool { return n.Data == "script" && attr(n, "src") == "" })
	count(0, "inline styles", func(n *html.Node) bool { return n.Data == "style" || has(n, "style") })
	count(0, "handlers", func(n *html.Node) bool {
		return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return strings.HasPrefix(a.Key, "on") })
	})
	count(0, "things from elsewhere", func(n *html.Node) bool {
		return slices.ContainsFunc([]string{attr(n, "src"), attr(n, "href"), attr(n, "action")}, func(u string) bool {
			return u != "" && (!strings.HasPrefix(u, "/") || strings.HasPrefix(u, "//")) && !strings.HasPrefix(u, "#")
		})
	})
	ids := map[string]bool{}
	for _, n := range d.all(func(n *html.Node) bool { return has(n, "id") }) {
		if id := attr(n, "id"); ids[id] || strings.ContainsAny(id, " \t\n") || id == "" {
			t.Errorf("%s: the id %q is there twice, or none", path, id)
		}
		ids[attr(n, "id")] = true
	}
	if html := d.tags("html")[0]; attr(html, "lang") != "en" {
		t.Errorf("%s says no language", path)
	}
	if titles := d.all(func(n *html.Node) bool { return n.Data == "title" && n.Namespace == "" }); len(titles) != 1 || !strings.HasSuffix(text(titles[0]), " · berth") {
		t.Errorf("%s has the titles %q", path, texts(titles))
	}
}

// checkHeaders checks the headers that keep an answer from harm.
func checkHeaders(t testing.TB, path string, got answer) {
	t.Helper()
	csp := got.header.Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
		"form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'",
	} {
		if !strings.Contains(csp, want) {
			t.Errorf("%s: the policy %q has no %s", path, csp, want)
		}
	}
	if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
		t.Errorf("%s: the policy is %q", path, csp)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"} {
		if got := got.header.Get(name); got != want {
			t.Errorf("%s: %s is %q", path, name, got)
		}
	}
	if got := got.header.Get("Cache-Control"); got != "no-store" && !strings.HasPrefix(path, "/ui/") {
		t.Errorf("%s may be kept: %q", path, got)
	}
}
