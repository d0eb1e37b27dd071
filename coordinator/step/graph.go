package step

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
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

// numbered is the field of a step that has no name to be called by.
func numbered(number int) string { return fmt.Sprintf("steps[%d]", number) }

// needsOf returns for each spec the places of those that it needs, or refuses names
// that are not unique, unknown or given twice.
func needsOf(specs []Spec) ([][]int, error) {
	places := make(map[string]int, len(specs))
	for i := range specs {
		name := specs[i].Name
		if first, twice := places[name]; twice {
			return nil, problem.Field(numbered(i)+".name", "%q is the name of %s already: names are unique in a run", name, numbered(first))
		}
		places[name] = i
	}
	needs := make([][]int, len(specs))
	neededLast := make([]int, len(specs)) // 1 more than the place of the step that named it last
	for i := range specs {
		s := &specs[i]
		for _, name := range s.Needs {
			at, known := places[name]
			switch {
			case !known:
				return nil, s.wrong("needs", "there is no step %q: allowed are the names of the run's other steps", problem.Clip(name))
			case at == i:
				return nil, s.wrong("needs", "a step can't need itself")
			case neededLast[at] == i+1:
				return nil, s.wrong("needs", "%q is named twice: once is enough", name)
			}
			neededLast[at] = i + 1
			needs[i] = append(needs[i], at)
		}
	}
	return needs, nil
}

// order puts every step behind those that it needs, and otherwise leaves them in the
// order in which they came: of the steps that could be next, the first is. It is
// shorter than needs if there is a cycle.
func order(needs [][]int) []int {
	missing := make([]int, len(needs)) // how many are not in the order yet
	neededBy := make([][]int, len(needs))
	var ready []int // ascending
	for i, some := range needs {
		if missing[i] = len(some); missing[i] == 0 {
			ready = append(ready, i)
		}
		for _, n := range some {
			neededBy[n] = append(neededBy[n], i)
		}
	}
	ordered := make([]int, 0, len(needs))
	for len(ready) > 0 {
		next := ready[0]
		ready = ready[1:]
		ordered = append(ordered, next)
		for _, i := range neededBy[next] {
			if missing[i]--; missing[i] == 0 {
				at, _ := slices.BinarySearch(ready, i)
				ready = slices.Insert(ready, at, i)
			}
		}
	}
	return ordered
}

// cycle returns steps of which each needs the next, and the last the first. There is
// one if the order lacks steps; of its steps the first that was submitted leads.
func cycle(needs [][]int, ordered []int) []int {
	left := make([]bool, len(needs))
	for i := range left {
		left[i] = true
	}
	for _, i := range ordered {
		left[i] = false
	}
	// Each that is left needs one that is left, so that a walk comes back.
	at := slices.Index(left, true)
	var walk []int
	for seen := -1; ; {
		if seen = slices.Index(walk, at); seen >= 0 {
			walk = walk[seen:]
			break
		}
		walk = append(walk, at)
		at = needs[at][slices.IndexFunc(needs[at], func(n int) bool { return left[n] })]
	}
	first := slices.Index(walk, slices.Min(walk))
	return slices.Concat(walk[first:], walk[:first])
}

// cycleProblem names a cycle in full: a needs b needs c needs a.
func cycleProblem(specs []Spec, walk []int) error {
	names := make([]string, 0, len(walk)+1)
	for _, i := range append(slices.Clone(walk), walk[0]) {
		names = append(names, specs[i].Name)
	}
	return specs[walk[0]].wrong("needs", "these steps would wait for each other: %s", strings.Join(names, " needs "))
}

// Shape is what is kept of a step: all that it takes to plan it, and not its items.
// Nothing in it is left to a default.
type Shape struct {
	Name string `json:"name"`
	// Needs are the numbers of the steps that must have succeeded before, ascending.
	// Each is smaller than the step's own.
	Needs []int `json:"needs,omitempty"`
	// Count is how many instances it has, from 1 on.
	Count int `json:"count"`
	// Concurrency is how many of them are in flight at a time; 0 is no window.
	Concurrency int            `json:"concurrency,omitempty"`
	Pools       map[string]int `json:"pools,omitempty"`
	Task        string         `json:"task,omitempty"`
	// TaskLimit is the limit of the task that was declared with the step; nil is none.
	TaskLimit *int      `json:"task_limit,omitempty"`
	Queue     string    `json:"queue"`
	External  bool      `json:"external,omitempty"`
	Retries   int       `json:"retries,omitempty"`
	Backoff   Duration  `json:"backoff,omitempty"`
	Timeout   Duration  `json:"timeout,omitempty"`
	OnFailure OnFailure `json:"on_failure"`
	// NotBefore is the time before which no instance is published; zero is at once.
	NotBefore run.Instant `json:"not_before,omitzero"`
}

// Pause is how long an instance waits before an attempt, of which the first is 1.
func (s *Shape) Pause(attempt int) time.Duration { return Pause(time.Duration(s.Backoff), attempt) }

// shapeOf leaves nothing to a default. The spec is valid.
func shapeOf(s *Spec, needs []int) Shape {
	sh := Shape{
		Name: s.Name, Needs: needs, Count: 1, Concurrency: s.Concurrency,
		Task: s.Task.Name, TaskLimit: s.Task.Limit, Queue: s.Queue, External: s.External,
		Retries: s.Retries, Backoff: s.Backoff, Timeout: s.Timeout, OnFailure: s.OnFailure,
		NotBefore: s.NotBefore,
	}
	if s.Items != nil {
		sh.Count = s.Items.Count()
	}
	if len(s.Pools) > 0 {
		sh.Pools = maps.Clone(s.Pools)
	}
	if sh.Queue == "" {
		sh.Queue = DefaultQueue
	}
	if sh.OnFailure == "" {
		sh.OnFailure = Fail
	}
	return sh
}

// check refuses what no spec has the shape of. The number is the shape's own.
func (s *Shape) check(number int) error {
	if err := validateName(s.Name, number); err != nil {
		return err
	}
	switch {
	case s.Count < 1 || s.Count > MaxItems:
		return fmt.Errorf("steps.%s.count: %d is out of range", s.Name, s.Count)
	case !slices.IsSorted(s.Needs) || len(slices.Compact(slices.Clone(s.Needs))) != len(s.Needs):
		return fmt.Errorf("steps.%s.needs: they are not ascending", s.Name)
	case len(s.Needs) > 0 && (s.Needs[0] < 0 || s.Needs[len(s.Needs)-1] >= number):
		return fmt.Errorf("steps.%s.needs: one is not before it", s.Name)
	case s.Queue == "" || pool.ValidateName(s.Queue) != nil:
		return fmt.Errorf("steps.%s.queue: it is none", s.Name)
	case !s.OnFailure.valid():
		return fmt.Errorf("steps.%s.on_failure: it is none", s.Name)
	}
	// What is left is as in the spec.
	spec := Spec{
		Name: s.Name, Concurrency: s.Concurrency, Pools: s.Pools, Task: Task{s.Task, s.TaskLimit}, Queue: s.Queue,
		Retries: s.Retries, Backoff: s.Backoff, Timeout: s.Timeout, OnFailure: s.OnFailure,
	}
	return errors.Join(spec.validateItems(), spec.validateWhere(), spec.validateRetries())
}

// Bounds says what may hold the instances of a step up, for people.
func (s *Shape) Bounds() string {
	var all []string
	if s.Concurrency > 0 {
		all = append(all, fmt.Sprintf("%d at a time", s.Concurrency))
	}
	if len(s.Pools) > 0 {
		all = append(all, run.PoolList(s.Pools))
	}
	if s.Task != "" {
		all = append(all, "task "+s.Task)
	}
	if s.External {
		all = append(all, "external")
	}
	if s.Queue != DefaultQueue {
		all = append(all, "queue "+s.Queue)
	}
	return strings.Join(all, ", ")
}

// Leaf is a step in the tree that people see. Each step stands there once.
type Leaf struct {
	// Number is its place in the graph, and Parent that of the step below which it
	// stands, -1 if it stands below none.
	Number, Parent int
	// Depth is how many steps it stands below.
	Depth int
	// Last tells that no other stands below the same step after it.
	Last bool
}

// Tree puts the steps of a graph into a tree, in the order in which it is read: each
// below the last of those that it needs. What else it needs the tree does not tell.
func Tree(steps []Summary) []Leaf {
	below := map[int][]int{}
	for n := range steps {
		parent := -1
		if needs := steps[n].Shape.Needs; len(needs) > 0 {
			parent = needs[len(needs)-1]
		}
		below[parent] = append(below[parent], n)
	}
	tree := make([]Leaf, 0, len(steps))
	var grow func(parent, depth int)
	grow = func(parent, depth int) {
		for i, n := range below[parent] {
			tree = append(tree, Leaf{Number: n, Parent: parent, Depth: depth, Last: i == len(below[parent])-1})
			grow(n, depth+1)
		}
	}
	grow(-1, 0)
	return tree
}
