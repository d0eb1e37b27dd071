package store

import "go.etcd.io/etcd/api/v3/authpb"

// Open tells how many changes of a group are pending, and how many transactions are
// under way.
func (g *Group) Open() (pending, flying int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending), g.flying
}

// Endpoints returns the addresses, as they were given.
func (c *Client) Endpoints() []string {
	var all []string
	for _, conn := range c.conns {
		all = append(all, conn.Endpoints()...)
	}
	return all
}

// NewRights are rights of a user, for tests.
func NewRights(user string, held ...*authpb.Permission) Rights { return Rights{User: user, held: held} }

// FailOver moves all kinds of work to the next endpoint.
func (c *Client) FailOver() { c.UseEndpoint(c.writes.Load() + 1) }

// UseEndpoint moves all kinds of work to an endpoint.
func (c *Client) UseEndpoint(n uint32) {
	c.writes.Store(n)
	c.watches.Store(n)
	c.leases.Store(n)
	c.logins.Store(n)
}
