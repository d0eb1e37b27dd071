package ui_test

import (
	"os"
	"strings"
	"testing"
)

// docs/reference/pages.md tells of every page that the navigation leads to.
func TestTheDocumentTellsOfEveryPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/pages.md")
	if err != nil {
		t.Fatal(err)
	}
	nav := newSite(t).page("/pools").tags("nav")[0]
	links := (&document{t: t, root: nav}).tags("a")
	if len(links) < 5 {
		t.Errorf("the navigation has %d links", len(links))
	}
	for _, a := range links {
		if path := attr(a, "href"); !strings.Contains(string(text), "| `"+path+"` |") {
			t.Errorf("docs/reference/pages.md does not tell of %s", path)
		}
	}
}
