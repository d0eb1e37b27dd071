package source

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// The page tells of the metrics that there are.
func TestTheMetricsArePagedAsTheyAre(t *testing.T) {
	names := func(path string, name *regexp.Regexp) (all []string) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(data), -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	code := names("metrics.go", regexp.MustCompile(`Name: "(berth_[a-z_]+)"`))
	page := names("../../docs/reference/source-files.md", regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` \\|"))
	if len(code) == 0 || !slices.Equal(code, page) {
		t.Errorf("in the code %q, on the page %q", code, page)
	}
}
