package list

import (
	"github.com/berthhq/berth/pool"
)

// Pools returns all pools by name. Waiters of the instance that asks are counted as it knows them.
func (s *State) Pools() []pool.Status { return s.statuses(s.waitQueue()) }

func (s *State) statuses(queue []*waiter) (all []pool.Status) {
	waiting := waitingFor(queue)
	names := map[string]bool{}
	for name, p := range s.pools {
		names[name] = p.exists() || p.used > 0
	}
	for name := range waiting {
		names[name] = true
	}
	problems := s.problems()
	for _, name := range sortedNames(names) {
		if names[name] {
			all = append(all, s.statusOf(name, waiting[name], problems[name]))
		}
	}
	return all
}

// Pool returns one pool with its holders, the oldest first, and its waiters in the order of the wait queue. An unknown one is
// a PoolNotFound problem.
func (s *State) Pool(name string) (pool.Detail, error) {
	queue := s.waitQueue()
	waiting := waitingFor(queue)[name]
	if p := s.pools[name]; waiting == 0 && (p == nil || !p.exists() && p.used == 0) {
		return pool.Detail{}, pool.NoPool(name)
	}
	return pool.Detail{
		Status: s.statusOf(name, waiting, s.problems()[name]), Holders: s.holders(name), Waiters: s.waiters(name, queue),
	}, nil
}

// waitingFor counts the waiters of each pool.
func waitingFor(queue []*waiter) map[string]int {
	n := map[string]int{}
	for _, w := range queue {
		for name := range w.Pools {
			n[name]++
		}
	}
	return n
}

// problems returns the first key of each pool that can't be read and closes it, with the reason.
func (s *State) problems() map[string]string {
	of := map[string]string{}
	for _, key := range sortedNames(s.bad) {
		if b := s.bad[key]; b.closes && of[b.pool] == "" {
			of[b.pool] = b.err.Error()
		}
	}
	return of
}

func (s *State) statusOf(name string, waiting int, trouble string) pool.Status {
	status := s.brief(name)
	status.Waiting, status.Problem = waiting, trouble
	if waiting > 0 {
		status.Dispatcher = dispatcher(s.role).String()
	}
	return status
}

// brief returns the state of a pool without its waiters. Its problem does not name the key.
func (s *State) brief(name string) pool.Status {
	status := pool.Status{Name: name, Deleted: true, Revision: s.revision}
	p := s.pools[name]
	if p == nil {
		return status
	}
	status.Spec, status.Claimed, status.Deleted = p.spec, p.used, !p.exists()
	status.SpecRevision, status.LimitSince = p.specRev, p.since
	if p.closed > 0 {
		status.Problem = "a value can't be read"
	}
	return status
}
