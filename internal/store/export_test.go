package store

// Open tells how many changes of a group are pending, and how many transactions are
// under way.
func (g *Group) Open() (pending, flying int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending), g.flying
}
