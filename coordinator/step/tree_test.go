package step

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheTreeShowsEachStepOnceBelowTheLastThatItNeeds(t *testing.T) {
	for name, c := range map[string]struct {
		graph []string // NAME: NEEDS
		want  []string // a dash for each step that it stands below; < is the last of its kind
	}{
		"nothing":               {nil, nil},
		"one":                   {[]string{"a:"}, []string{"a<"}},
		"a row":                 {[]string{"a:", "b:", "c:"}, []string{"a", "b", "c<"}},
		"a chain":               {[]string{"a:", "b: a", "c: b"}, []string{"a<", "-b<", "--c<"}},
		"a fan":                 {[]string{"a:", "b: a", "c: a"}, []string{"a<", "-b", "-c<"}},
		"a diamond":             {[]string{"a:", "b: a", "c: a", "d: b c", "e: d"}, []string{"a<", "-b", "-c<", "--d<", "---e<"}},
		"two trees":             {[]string{"a:", "b: a", "x:", "y: x"}, []string{"a", "-b<", "x<", "-y<"}},
		"steps between another": {[]string{"a:", "x:", "b: a", "y: x", "c: a"}, []string{"a", "-b", "-c<", "x<", "-y<"}},
		"needs of all depths":   {[]string{"a:", "b: a", "c: b", "d: c a"}, []string{"a<", "-b<", "--c<", "---d<"}},
	} {
		var specs []Spec
		for _, line := range c.graph {
			name, needs, _ := strings.Cut(line, ":")
			specs = append(specs, Spec{Name: name, Needs: strings.Fields(needs), External: true})
		}
		var steps []Summary
		if len(specs) > 0 {
			for _, sh := range mustGraph(t, specs...).Shapes() {
				steps = append(steps, Summary{Shape: sh})
			}
		}
		var got []string
		for _, l := range Tree(steps) {
			line := strings.Repeat("-", l.Depth) + steps[l.Number].Shape.Name
			if l.Last {
				line += "<"
			}
			got = append(got, line)
			if needs := steps[l.Number].Shape.Needs; len(needs) == 0 && l.Parent != -1 || len(needs) > 0 && l.Parent != needs[len(needs)-1] {
				t.Errorf("%s: %s stands below %d", name, line, l.Parent)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
}
