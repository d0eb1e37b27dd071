//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// heal ends a fault. It may be called once.
type heal func(context.Context) error

// inject has a fault begin. The error is that there was nothing to break.
func (c *campaign) inject(ctx context.Context, f fault) (heal, error) {
	h := c.hosts[f.Host]
	m := c.cluster.members[f.Member]
	if strings.HasSuffix(string(f.Kind), "-leader") {
		if i := c.cluster.leader(ctx); i >= 0 {
			m = c.cluster.members[i]
		}
	}
	switch f.Kind {
	case "kill-sidecar":
		return away(h.sidecar), nil
	case "kill-worker":
		return away(h.worker), nil
	case "kill-coordinator":
		return away(h.coordinator), nil
	case "kill-load":
		return away(h.load), nil
	case "kill-leader", "kill-member":
		return away(m.process), nil
	case "freeze-sidecar":
		return frozen(h.sidecar), nil
	case "freeze-worker":
		return frozen(h.worker), nil
	case "freeze-coordinator":
		return frozen(h.coordinator), nil
	case "freeze-load":
		return frozen(h.load), nil
	case "freeze-leader":
		return c.resumed(frozen(m.process)), nil
	case "kill-dispatcher", "stop-dispatcher", "cut-dispatcher":
		return c.breakDispatcher(ctx, f)
	case "kill-exec", "freeze-exec", "kill-job":
		return c.signalJob(ctx, f, h)
	case "upgrade":
		h.sidecar.signal(syscall.SIGHUP)
		h.worker.signal(syscall.SIGHUP)
		h.coordinator.signal(syscall.SIGTERM)
		return nil, nil
	case "full-disk":
		free, err := h.fill()
		return func(context.Context) error { free(); return nil }, err
	case "partition":
		return c.spoil(h.name, weather{In: link{Blocked: true}, Out: link{Blocked: true}}), nil
	case "partition-in":
		return c.spoil(h.name, weather{In: link{Blocked: true}}), nil
	case "partition-out":
		return c.spoil(h.name, weather{Out: link{Blocked: true}}), nil
	case "latency":
		return c.spoil(h.name, weather{Out: link{Delay: time.Duration(20+f.N%400) * time.Millisecond}}), nil
	case "packet-loss":
		share := 0.05 + float64(f.N%30)/100
		return c.spoil(h.name, weather{In: link{Loss: share}, Out: link{Loss: share}}), nil
	case "partition-leader":
		return c.spoil(m.name, weather{In: link{Blocked: true}, Out: link{Blocked: true}}), nil
	case "slow-member":
		return c.spoil(m.name, weather{In: link{Loss: 0.03}, Out: link{Loss: 0.03, Delay: time.Duration(20+f.N%150) * time.Millisecond}}), nil
	case "replace-member":
		m.want(false)
		m.gone(ctx)
		err := c.cluster.replace(ctx, f.Member)
		return func(context.Context) error { m.want(true); return nil }, err
	case lostServer:
		return c.loseServer(ctx, f, h)
	case "lose-quorum":
		return c.loseQuorum(f), nil
	case "restore", "restore-new-id":
		return c.restore(ctx, f.Kind == "restore-new-id")
	case "no-space":
		return c.fillEtcd(ctx)
	case "limit":
		return c.changeLimit(ctx, f)
	case "pause":
		name := []string{"tmp", "api", "gpu", "db"}[f.N%4]
		_, err := c.operate(ctx, "pools", "pause", name)
		return func(ctx context.Context) error { _, err := c.operate(ctx, "pools", "resume", name); return err }, err
	case "delete-pool":
		_, err := c.operate(ctx, "pools", "delete", "tmp")
		return func(ctx context.Context) error { return c.setPool(ctx, "tmp") }, err
	case "revoke", "revoke-force":
		return nil, c.revoke(ctx, f)
	case "compaction":
		return nil, c.compact(ctx)
	case "only-neighbors":
		return nil, nil
	}
	return nil, fmt.Errorf("fault %s is not known", f.Kind)
}

// away kills a process, and keeps it from being started before the fault is over.
func away(p *process) heal {
	p.want(false)
	return func(context.Context) error { p.want(true); return nil }
}

// frozen stops a process with SIGSTOP.
func frozen(p *process) heal {
	p.signal(syscall.SIGSTOP)
	return func(context.Context) error { p.signal(syscall.SIGCONT); return nil }
}

// resumed has a member that was the leader continue. It does not know yet that it is not the
// leader any more, and can have the others end leases whose renewals it has not seen: see
// docs/explanation/guarantees.md. Jobs that hold slots for a while after that are not judged: etcd
// 3.7 revokes 16 leases at a time, and goes on with the next ones when those requests time out after
// 7 s. Of the leases of 32 instances it has revoked some after 10.5 s.
func (c *campaign) resumed(h heal) heal {
	return func(ctx context.Context) error {
		c.referee.with((*stays).endEarly)
		err := h(ctx)
		pause(ctx, time.Duration(6+2*c.instances)*time.Second)
		rev, at := c.cluster.revision(ctx)
		c.referee.with(func(s *stays) { s.endOnTime(rev) })
		return errors.Join(err, at)
	}
}

// signalJob breaks a job that is active, or the berth exec that watches over it.
func (c *campaign) signalJob(ctx context.Context, f fault, h *host) (heal, error) {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	var pid int
	found := until(ctx, 20*time.Millisecond, func() bool {
		c.referee.with(func(s *stays) {
			all := s.find(func(x *stay) bool {
				switch f.Kind {
				case "kill-job":
					return x.Via == "exec" || x.Via == "direct" || x.Via == "step"
				case "kill-exec":
					return x.Via == "exec" || x.Via == "direct"
				default: // its sidecar watches over the command
					return x.Via == "exec" && x.Host == h.name
				}
			})
			if len(all) > 0 {
				x := all[f.N%uint64(len(all))]
				pid = x.PPID
				if f.Kind == "kill-job" {
					pid = x.PID
				}
			}
		})
		return pid > 1
	})
	if !found {
		return nil, errors.New("no such job was active")
	}
	if f.Kind == "freeze-exec" {
		return func(context.Context) error { return syscall.Kill(pid, syscall.SIGCONT) }, syscall.Kill(pid, syscall.SIGSTOP)
	}
	return nil, syscall.Kill(pid, syscall.SIGKILL)
}

// spoil adds a fault of the network to those that a node has.
func (c *campaign) spoil(node string, w weather) heal {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoiled++
	id := c.spoiled
	if c.weather[node] == nil {
		c.weather[node] = map[int]weather{}
	}
	c.weather[node][id] = w
	c.net.set(node, together(c.weather[node]))
	return func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.weather[node], id)
		c.net.set(node, together(c.weather[node]))
		return nil
	}
}

// together is what several faults of the network come to.
func together(all map[int]weather) (sum weather) {
	add := func(to *link, l link) {
		to.Blocked = to.Blocked || l.Blocked
		to.Loss, to.Delay = max(to.Loss, l.Loss), to.Delay+l.Delay
	}
	for _, w := range all {
		add(&sum.In, w.In)
		add(&sum.Out, w.Out)
	}
	return sum
}

// unseenAfter is how long after its processes have ended a host counts as not seen.
const unseenAfter = 14 * time.Second

// loseServer ends all processes of a machine with a member and a host, and removes their data. When the
// fault ends, it does what docs/how-to/server.md says: an operator replaces the member, and the server
// starts without data. What the lost processes held ends with its leases, or half of the times the
// operator frees it when no process of the host has been seen for long enough.
func (c *campaign) loseServer(ctx context.Context, f fault, h *host) (heal, error) {
	member, m := f.Member, c.cluster.members[f.Member]
	command := []string{"cluster", "member", "replace", m.name}
	if f.N%2 == 0 {
		command = append(command, "--free", "--of", h.name)
	}
	for _, p := range append(h.processes(), m.process) {
		p.want(false)
	}
	for _, node := range []string{h.name, m.name} {
		if err := c.net.end(ctx, node); err != nil {
			return nil, err
		}
	}
	lost := time.Now()
	back := func(ctx context.Context) error {
		if len(command) > 4 {
			pause(ctx, time.Until(lost.Add(unseenAfter)))
		}
		err := c.cluster.replaceLost(ctx, member, func(ctx context.Context) error {
			out, err := c.hosts[(member+1)%len(c.hosts)].berth(ctx, command...)
			c.tell("berth %s: %v: %s", strings.Join(command, " "), err, out)
			return err
		})
		for _, p := range append(h.processes(), m.process) {
			p.want(true)
		}
		return err
	}
	return back, errors.Join(os.RemoveAll(c.cluster.data(member)), h.wipe())
}

// loseQuorum takes two of three members away.
func (c *campaign) loseQuorum(f fault) heal {
	var ends []heal
	for i := range 2 {
		m := c.cluster.members[(f.Member+i)%len(c.cluster.members)]
		if f.N%2 == 0 {
			ends = append(ends, away(m.process))
		} else {
			ends = append(ends, frozen(m.process))
		}
	}
	return func(ctx context.Context) error { return errors.Join(ends[0](ctx), ends[1](ctx)) }
}

// restore saves a snapshot now, and has etcd go back to it when the fault ends, under the id that it
// has or a new one. The sidecars live through it, as in docs/how-to/backup.md they do not: what they
// hold since the snapshot is lost, and must end; under a new id within its lease.
func (c *campaign) restore(ctx context.Context, newID bool) (heal, error) {
	path := filepath.Join(c.dir, "snapshot.db")
	rev, err := c.cluster.save(ctx, path)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c.referee.hold(rev)
		c.cluster.down(ctx)
		if newID {
			c.cluster.token = fmt.Sprintf("restored-%d", rev)
			c.referee.with(func(s *stays) { s.replaced(now()) })
		}
		err := c.cluster.restore(path)
		c.cluster.up()
		if err == nil {
			err = c.referee.restored(ctx, rev)
		}
		for name := range specs { // in the snapshot it may be paused, or have another limit
			c.referee.with(func(s *stays) { s.limit(name, now(), 2*specs[name].limit) })
			set := c.setPool(ctx, name)
			_, resumed := c.operate(ctx, "pools", "resume", name)
			err = errors.Join(err, set, resumed)
		}
		return err
	}, err
}

// fillEtcd writes elsewhere until etcd takes no more, and then does what docs/how-to/etcd-full.md says.
func (c *campaign) fillEtcd(ctx context.Context) (heal, error) {
	junk := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		err := c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
			_, err := e.Put(ctx, fmt.Sprintf("/filler/%d", i%100), junk)
			if errors.Is(err, rpctypes.ErrNoSpace) {
				i = -1
				return nil
			}
			return err
		})
		if err != nil {
			return c.emptyEtcd, err
		}
		if i < 0 {
			return c.emptyEtcd, nil
		}
	}
}

func (c *campaign) emptyEtcd(ctx context.Context) error {
	err := c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		_, err := e.Delete(ctx, "/filler/", clientv3.WithPrefix())
		return err
	})
	err = errors.Join(err, c.compact(ctx))
	for _, m := range c.cluster.members {
		err = errors.Join(err, c.cluster.do(ctx, func(context.Context, *clientv3.Client) error {
			long, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			_, err := m.direct.Defragment(long, "unix://"+c.cluster.socket(m))
			return err
		}))
	}
	return errors.Join(err, c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		_, err := e.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return err
	}))
}

// compact has etcd forget all that was judged.
func (c *campaign) compact(ctx context.Context) error {
	if err := c.referee.caughtUp(ctx); err != nil {
		return err
	}
	c.referee.mu.Lock()
	rev := c.referee.at
	c.referee.mu.Unlock()
	return c.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		_, err := e.Compact(ctx, rev, clientv3.WithCompactPhysical())
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil // by a coordinator
		}
		return err
	})
}

// operate runs a command of an operator, on one host after the other until one can.
func (c *campaign) operate(ctx context.Context, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := 0; ctx.Err() == nil; i++ {
		if out, err = c.hosts[i%len(c.hosts)].berth(ctx, args...); err == nil {
			return out, nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	return out, err
}

// setPool gives a pool its settings. Until that is done the limit may be the one before.
func (c *campaign) setPool(ctx context.Context, name string) error {
	p := specs[name]
	_, err := c.operate(ctx, "pools", "set", name, fmt.Sprint(p.limit), "--lease-duration", p.lease.String(), "--reserve-after", "5s")
	if err == nil {
		c.referee.with(func(s *stays) { s.limit(name, now(), p.limit) })
	}
	return err
}

func (c *campaign) changeLimit(ctx context.Context, f fault) (heal, error) {
	name := []string{"db", "api", "gpu"}[f.N%3]
	most := specs[name].limit
	n := 1 + int(f.N/3)%(2*most)
	c.referee.with(func(s *stays) { s.limit(name, now(), max(n, most)) })
	_, err := c.operate(ctx, "pools", "set", name, fmt.Sprint(n))
	if err == nil {
		c.referee.with(func(s *stays) { s.limit(name, now(), n) })
	}
	return func(ctx context.Context) error {
		c.referee.with(func(s *stays) { s.limit(name, now(), max(n, most)) })
		return c.setPool(ctx, name)
	}, err
}

// revoke revokes a claim of a job that is active. By force its job may still be
// active when the next one is.
func (c *campaign) revoke(ctx context.Context, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var job string
	if !until(ctx, 20*time.Millisecond, func() bool {
		c.referee.with(func(s *stays) {
			all := s.find(func(x *stay) bool {
				return x.Via != "step" && x.Via != "neighbor" && x.from < now()-int64(200*time.Millisecond)
			})
			if len(all) > 0 {
				job = all[f.N%uint64(len(all))].Job
			}
		})
		return job != ""
	}) {
		return errors.New("no job was active for long enough")
	}
	args := []string{"claims", "revoke", job}
	if f.Kind == "revoke-force" {
		c.referee.with(func(s *stays) { s.excuse(job) })
		args = append(args, "--force")
	}
	for _, h := range slices.Concat(c.hosts[f.Host:], c.hosts[:f.Host]) {
		if out, err := h.berth(ctx, args...); err == nil || strings.Contains(out, "not found") {
			return nil
		}
	}
	return nil // it was asked for, and the job may have ended
}
