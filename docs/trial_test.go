//go:build linux

package docs_test

import (
	"slices"
	"strings"
	"testing"
)

// A reader follows page after page in one clone, with the berth dev of README.md: no page may depend on what others
// leave behind, or be disturbed by it.
func TestPagesCanBeFollowedOneAfterTheOther(t *testing.T) {
	if testing.Short() {
		t.Skip("the pages run other processes: there is nothing to see for the race detector")
	}
	t.Parallel()
	r := newReader(t, build(t))
	all := pages(t)
	slices.SortStableFunc(all, func(a, b page) int { return order(a) - order(b) })
	r.follow(t, all[0])
	for _, p := range all[1:] {
		p.blocks = slices.DeleteFunc(p.blocks, func(b block) bool { return b.served && strings.HasPrefix(b.text, "bin/berth dev") })
		t.Run(p.name, func(t *testing.T) { r.follow(t, p) })
	}
}

// order is the order in which a new user reads the pages.
func order(p page) int {
	return slices.IndexFunc([]string{"../README.md", "tutorial/", ""}, func(prefix string) bool { return strings.HasPrefix(p.name, prefix) })
}
