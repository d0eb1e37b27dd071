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

// maxGraph bounds an encoded graph, in bytes: it is one value in etcd, which takes 1.5 MiB
// in a request.
const maxGraph = 512 << 10

// Graph holds the steps of a run, each after those that it needs.
type Graph struct {
	shapes []Shape
	total  int
	// specs render the work of the instances, in the order of shapes; nil in a decoded graph.
	specs []*Spec
}

// graphValue is the value of a graph in etcd.
type graphValue struct {
	store.V
	Steps []Shape `json:"steps"`
}

// NewGraph returns the graph of the steps of a run, or a problem that names the field. Steps
// keep their order as far as their needs allow. The graph uses the specs, which must not be
// changed.
func NewGraph(specs []Spec) (*Graph, error) {
	switch {
	case len(specs) == 0:
		return nil, problem.Field("steps", "there is none: at least one is needed")
	case len(specs) > MaxSteps:
		return nil, problem.Field("steps", "%d are too many: use at most %d", len(specs), MaxSteps)
	}
	for i := range specs {
		if err := specs[i].Validate(i); err != nil {
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
	numbers := make([]int, len(specs)) // in the graph, by index in the specs
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
		g.specs = append(g.specs, &specs[at])
	}
	if g.total > MaxInstances {
		return nil, problem.Field("steps", "they have %d instances together: use at most %d", g.total, MaxInstances)
	}
	if err := g.checkDeclared(); err != nil {
		return nil, err
	}
	if size := len(g.Encode()); size > maxGraph {
		return nil, problem.Field("steps", "names, needs and pools are %d bytes long as JSON: use at most %d", size, maxGraph)
	}
	return g, nil
}

func (g *Graph) add(s Shape) {
	g.shapes = append(g.shapes, s)
	g.total += s.Count
}

// Shapes returns the steps; the number of a step is its index. They must not be changed.
func (g *Graph) Shapes() []Shape { return g.shapes }

// Total returns the number of instances of all steps.
func (g *Graph) Total() int { return g.total }

// attempts returns how often all instances are tried at most, unless a user retries them.
func (g *Graph) attempts() (n int) {
	for i := range g.shapes {
		n += g.shapes[i].Count * (1 + g.shapes[i].Retries)
	}
	return n
}

// Number returns the number of a step; -1 if it does not exist.
func (g *Graph) Number(name string) int {
	return slices.IndexFunc(g.shapes, func(s Shape) bool { return s.Name == name })
}

// Encode encodes a graph without items.
func (g *Graph) Encode() []byte { return store.Encode(graphValue{store.Now, g.shapes}) }

// DecodeGraph decodes a graph. It has no items, and cannot render work. Its error is a
// [*store.CorruptError].
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
		return nil, fmt.Errorf("steps: %d is out of range", len(shapes))
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

// numbered returns the field of a step without a valid name.
func numbered(number int) string { return fmt.Sprintf("steps[%d]", number) }

// needsOf returns for each spec the indexes of those that it needs, or a problem for names
// that are not unique, unknown or repeated.
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
	neededLast := make([]int, len(specs)) // 1 more than the index of the step that named it last
	for i := range specs {
		s := &specs[i]
		for _, name := range s.Needs {
			at, known := places[name]
			switch {
			case !known:
				return nil, s.wrong("needs", "there is no step %q: use the names of the run's other steps", problem.Clip(name))
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

// order puts each step after those that it needs, and otherwise keeps the order: of the
// steps that can be next, the first is. It is shorter than needs if there is a cycle.
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

// cycle returns steps of which each needs the next, and the last the first. There is one if
// steps are missing in the order. It begins with its first submitted step.
func cycle(needs [][]int, ordered []int) []int {
	left := make([]bool, len(needs))
	for i := range left {
		left[i] = true
	}
	for _, i := range ordered {
		left[i] = false
	}
	// Each remaining step needs a remaining one, so a walk returns.
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

// Shape is the stored form of a step, without its items and with all defaults.
type Shape struct {
	Name string `json:"name"`
	// Needs are the numbers of the steps that must have succeeded before, ascending.
	// Each is smaller than the step's own.
	Needs []int `json:"needs,omitempty"`
	// Count is the number of its instances, at least 1.
	Count int `json:"count"`
	// Concurrency bounds the instances in flight; 0 is no bound.
	Concurrency int            `json:"concurrency,omitempty"`
	Pools       map[string]int `json:"pools,omitempty"`
	Task        string         `json:"task,omitempty"`
	// TaskLimit is the limit of the task that the step declares; nil is none.
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

// shapeOf returns the shape of a valid spec.
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

// check returns an error if the shape is not valid.
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
		return fmt.Errorf("steps.%s.queue is not valid", s.Name)
	case !s.OnFailure.valid():
		return fmt.Errorf("steps.%s.on_failure is not valid", s.Name)
	}
	// The rest is as in the spec.
	spec := Spec{
		Name: s.Name, Concurrency: s.Concurrency, Pools: s.Pools, Task: Task{s.Task, s.TaskLimit}, Queue: s.Queue,
		Retries: s.Retries, Backoff: s.Backoff, Timeout: s.Timeout, OnFailure: s.OnFailure,
	}
	return errors.Join(spec.validateItems(), spec.validateWhere(), spec.validateRetries())
}

// Bounds describes what may block the instances of a step.
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

// Leaf is a step in a tree. Each step is in it once.
type Leaf struct {
	// Number is that in the graph, and Parent that of its parent; -1 without a parent.
	Number, Parent int
	// Depth is the number of its ancestors.
	Depth int
	// Last states that it is the last child of its parent.
	Last bool
}

// Tree arranges the steps of a graph as a tree in reading order: the parent of a step is the
// last step that it needs.
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
