package step

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
