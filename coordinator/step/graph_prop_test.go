package step

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
)

// genSpecs draws steps without a cycle, in any order: step n needs some before it,
// and then all are shuffled.
var genSpecs = rapid.Custom(func(t *rapid.T) []Spec {
	names := named(rapid.IntRange(1, 30).Draw(t, "steps"))
	specs := make([]Spec, len(names))
	for i, name := range names {
		specs[i] = Spec{Name: name, External: true}
		if i > 0 && rapid.Bool().Draw(t, "needs any") {
			specs[i].Needs = rapid.SliceOfNDistinct(rapid.SampledFrom(names[:i]), 1, min(i, 4), rapid.ID[string]).Draw(t, "needs")
		}
		if rapid.Bool().Draw(t, "fans out") {
			specs[i].Items = &Items{Range: &Range{1, rapid.Int64Range(1, 100).Draw(t, "items"), 1}}
		}
	}
	return rapid.Permutation(specs).Draw(t, "shuffled")
})

func TestAGraphWithoutACycleRespectsItsNeeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		specs := genSpecs.Draw(t, "specs")
		g, err := NewGraph(specs)
		if err != nil {
			t.Fatal(err)
		}
		if len(g.Shapes()) != len(specs) {
			t.Fatalf("%d of %d steps", len(g.Shapes()), len(specs))
		}
		total := 0
		for number, shape := range g.Shapes() {
			spec := specs[slices.IndexFunc(specs, func(s Spec) bool { return s.Name == shape.Name })]
			var needs []string
			for _, n := range shape.Needs {
				if n >= number {
					t.Fatalf("%s comes before what it needs", shape.Name)
				}
				needs = append(needs, g.Shapes()[n].Name)
			}
			want := slices.Sorted(slices.Values(spec.Needs))
			slices.Sort(needs)
			if !slices.Equal(needs, want) {
				t.Fatalf("%s needs %v, want %v", shape.Name, needs, want)
			}
			total += shape.Count
		}
		if g.Total() != total {
			t.Errorf("%d instances, want %d", g.Total(), total)
		}
		// What is in order stays so, and reads back the same.
		var sorted []Spec
		for _, shape := range g.Shapes() {
			sorted = append(sorted, specs[slices.IndexFunc(specs, func(s Spec) bool { return s.Name == shape.Name })])
		}
		again, err := NewGraph(sorted)
		if d := cmp.Diff(g.Shapes(), again.Shapes()); d != "" || err != nil {
			t.Error(err, d)
		}
		read, err := DecodeGraph("k", g.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(g.Shapes(), read.Shapes()); d != "" {
			t.Error(d)
		}
	})
}

// With one need that closes a circle a graph is refused, and the error names a
// circle of needs that were given.
func TestAGraphWithACycleIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		specs := genSpecs.Draw(t, "specs")
		if len(specs) < 2 {
			t.Skip()
		}
		by := map[string]*Spec{}
		for i := range specs {
			by[specs[i].Name] = &specs[i]
		}
		// A walk along needs, and back from its end to its beginning.
		first := rapid.SampledFrom(specs).Draw(t, "first").Name
		last := first
		for len(by[last].Needs) > 0 && (last == first || rapid.Bool().Draw(t, "on")) {
			last = rapid.SampledFrom(by[last].Needs).Draw(t, "next")
		}
		if last == first {
			t.Skip()
		}
		by[last].Needs = append(slices.Clone(by[last].Needs), first)
		g, err := NewGraph(specs)
		var p *problem.Error
		if g != nil || !errors.As(err, &p) {
			t.Fatalf("%v, %v", g, err)
		}
		_, circle, ok := strings.Cut(p.Message, ": ")
		walk := strings.Split(circle, " needs ")
		if !ok || len(walk) < 3 || walk[0] != walk[len(walk)-1] || p.Field != "steps."+walk[0]+".needs" {
			t.Fatal(err)
		}
		for i, name := range walk[1:] {
			if !slices.Contains(by[walk[i]].Needs, name) {
				t.Fatalf("%s does not need %s: %v", walk[i], name, err)
			}
		}
		if once := slices.Compact(slices.Sorted(slices.Values(walk[1:]))); len(once) != len(walk)-1 {
			t.Errorf("it comes by a step twice: %v", err)
		}
	})
}
