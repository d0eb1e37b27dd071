package step

import (
	"fmt"
	"slices"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// maxGraph bounds a graph as it is written, in bytes: it is one value in etcd, which
// takes 1.5 MiB a request.
const maxGraph = 512 << 10

// Graph is the steps of a run, every one behind those that it needs.
type Graph struct {
	shapes []Shape
	total  int
	// recipes render the work of a step's instances; nil in a graph that was read.
	recipes []*recipe
}

// graphValue is how a graph stands in etcd.
type graphValue struct {
	store.V
	Steps []Shape `json:"steps"`
}

// NewGraph refuses what can't be the steps of a run, and names the field. Steps keep
// the order in which they are given where their needs allow it. The graph keeps the
// items of the specs, which must not change any more.
func NewGraph(specs []Spec) (*Graph, error) {
	switch {
	case len(specs) == 0:
		return nil, problem.Field("steps", "there is none: at least one is needed")
	case len(specs) > MaxSteps:
		return nil, problem.Field("steps", "%d are too many: allowed are %d", len(specs), MaxSteps)
	}
	recipes := make([]*recipe, len(specs))
	for i := range specs {
		var err error
		if recipes[i], err = specs[i].recipe(i); err != nil {
			return nil, err
		}
	}
	needs, err := needsOf(specs)
	if err != nil {
		return nil, err
	}
	ordered := order(needs)
	if len(ordered) < len(specs) {
		return nil, cycleProblem(specs, cycle(needs, ordered))
	}
	numbers := make([]int, len(specs)) // in the graph, by place in the specs
	for number, at := range ordered {
		numbers[at] = number
	}
	g := &Graph{}
	for _, at := range ordered {
		var before []int
		for _, n := range needs[at] {
			before = append(before, numbers[n])
		}
		slices.Sort(before)
		g.add(shapeOf(&specs[at], before))
		g.recipes = append(g.recipes, recipes[at])
	}
	if g.total > MaxInstances {
		return nil, problem.Field("steps", "they have %d instances together: allowed are %d", g.total, MaxInstances)
	}
	if err := g.checkDeclared(); err != nil {
		return nil, err
	}
	if size := len(g.Encode()); size > maxGraph {
		return nil, problem.Field("steps", "names, needs and pools are %d bytes long as JSON: allowed are %d", size, maxGraph)
	}
	return g, nil
}

func (g *Graph) add(s Shape) {
	g.shapes = append(g.shapes, s)
	g.total += s.Count
}

// Shapes are the steps; a step's number is its index. They must not be changed.
func (g *Graph) Shapes() []Shape { return g.shapes }

// Total is how many instances all steps have together.
func (g *Graph) Total() int { return g.total }

// Number returns the number of a step, -1 if there is none of that name.
func (g *Graph) Number(name string) int {
	return slices.IndexFunc(g.shapes, func(s Shape) bool { return s.Name == name })
}

// Encode writes a graph, without items.
func (g *Graph) Encode() []byte { return store.Encode(graphValue{store.Now, g.shapes}) }

// DecodeGraph reads the value of the key of a graph. What it returns has no items:
// it renders nothing. Its error is a [*store.CorruptError].
func DecodeGraph(key string, data []byte) (*Graph, error) {
	var v graphValue
	if err := store.Decode(key, data, &v); err != nil {
		return nil, err
	}
	g, err := graphOf(v.Steps)
	if err != nil {
		return nil, &store.CorruptError{Key: key, Reason: err}
	}
	return g, nil
}

func graphOf(shapes []Shape) (*Graph, error) {
	if len(shapes) == 0 || len(shapes) > MaxSteps {
		return nil, fmt.Errorf("steps: %d are no number of steps", len(shapes))
	}
	g := &Graph{}
	names := make(map[string]bool, len(shapes))
	for i := range shapes {
		s := &shapes[i]
		if err := s.check(i); err != nil {
			return nil, err
		}
		if names[s.Name] {
			return nil, fmt.Errorf("steps.%s: there are two", s.Name)
		}
		names[s.Name] = true
		g.add(*s)
	}
	if g.total > MaxInstances {
		return nil, fmt.Errorf("steps: %d instances are too many", g.total)
	}
	return g, nil
}
