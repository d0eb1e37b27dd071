package ui_test

import (
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/sidecar"
)

// isOwn reports whether browsers take a link for one to this server.
func isOwn(link string) bool {
	return strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "//") && !strings.ContainsAny(link, "\\\t\r\n")
}

// A path that begins with two slashes is the address of another host where it is a link.
func TestNoPageLinksToAnotherHostThatItsAddressNames(t *testing.T) {
	paths := []string{
		"//evil.example/pools", "///evil.example/pools", "/%2Fevil.example/pools", "/%2F/evil.example", "/%5Cevil.example/pools",
		"/%5C%5Cevil.example", "/%09/evil.example", "/%0A/evil.example/runs", "//evil.example", "/pools/..//evil.example", "/runs//evil.example", "/nothing%3F//evil.example",
	}
	html := header("Accept", "text/html")
	for what, c := range map[string]struct {
		change func(*sidecar.Config)
		send   func(*http.Request)
	}{
		"open":            {func(c *sidecar.Config) { c.Policy.Open = true }, html},
		"without a role":  {func(c *sidecar.Config) { c.Policy = access.Policy{Rules: []access.Rule{{Subject: "anonymous"}}} }, html},
		"with a token":    {withToken, html},
		"a wrong token":   {withToken, func(r *http.Request) { html(r); r.Header.Set("Authorization", "Bearer wrong") }},
		"of another site": {withToken, func(r *http.Request) { html(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }},
	} {
		s := newSite(t, c.change)
		for _, path := range paths {
			got := s.get(path, c.send)
			if to := got.header.Get("Location"); to != "" && !isOwn(to) {
				t.Errorf("%s: %s: it leads to %q", what, path, to)
			}
			for _, link := range linksOf(parse(t, got.body)) {
				if !isOwn(link) && !strings.HasPrefix(link, "#") {
					t.Errorf("%s: %s: status %d, a link to %q", what, path, got.status, link)
				}
			}
		}
	}
}

// linksOf returns the addresses that a page leads to, or loads.
func linksOf(d *document) (links []string) {
	for _, n := range d.all(func(n *html.Node) bool { return n.Type == html.ElementNode }) {
		for _, name := range []string{"href", "src", "action", "formaction"} {
			if link := attr(n, name); link != "" {
				links = append(links, link)
			}
		}
	}
	return links
}
