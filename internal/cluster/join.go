package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/berthhq/berth/internal/problem"
)

// requestTimeout is the longest time for one request to etcd.
const requestTimeout = 5 * time.Second

// Join returns how the server joins the cluster of the members that serve etcd. If it is not a
// member of that cluster yet, Join adds it as a learner, which does not count for the majority
// until it has the data: see [Client.Complete].
func (f *Founding) Join(ctx context.Context, serve []Member) (Start, error) {
	var endpoints []string
	for _, m := range serve {
		endpoints = append(endpoints, m.ClientURL)
	}
	c, err := Dial(Config{Endpoints: endpoints, TLS: f.TLS, Username: f.Username, Password: f.Password})
	if err != nil {
		return Start{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return Start{}, err
	}
	if err := f.conflict(list.Members); err != nil {
		return Start{}, err
	}
	all := list.Members
	if !slices.ContainsFunc(all, f.isSelf) {
		// etcd refuses a second learner only when it applies the change: then members that restart connect to
		// the address of the one that was refused.
		if slices.ContainsFunc(all, (*etcdserverpb.Member).GetIsLearner) {
			return Start{}, errOtherJoins
		}
		added, err := c.etcd.MemberAddAsLearner(ctx, []string{f.Self.PeerURL})
		if errors.Is(err, rpctypes.ErrTooManyLearners) {
			return Start{}, errOtherJoins
		}
		if err != nil && !isTransient(err) {
			return Start{}, c.problem(err, "")
		}
		if err != nil {
			return Start{}, err
		}
		f.Log.Info("added to the cluster as a learner", "peer", f.Self.PeerURL)
		all = added.Members
	}
	return f.joining(all), nil
}

// errOtherJoins is the error of [Founding.Join] while the cluster has a learner: it takes one at a time.
var errOtherJoins = errors.New("another server joins it first, see 'berth cluster status'")

func (f *Founding) isSelf(m *etcdserverpb.Member) bool {
	return slices.Contains(m.PeerURLs, f.Self.PeerURL)
}

// hasRun reports whether a member has ever run: then etcd knows its client addresses. Before that,
// etcd knows only the peer addresses, and the names of members that formed the cluster.
func hasRun(m *etcdserverpb.Member) bool { return len(m.ClientURLs) > 0 }

// conflict returns an error if a server without data can't be the member with its name or address.
func (f *Founding) conflict(members []*etcdserverpb.Member) error {
	for _, m := range members {
		switch self := f.isSelf(m); {
		case self && !hasRun(m):
		case self:
			return problem.Field("data_dir", "the directory is empty, but the cluster has a member %q at %s that has run before. If its data is lost, run 'berth cluster member replace %s' on another server first; otherwise use its data directory", m.Name, f.Self.PeerURL, m.Name)
		case m.Name == f.Self.Name:
			return problem.Field("name", "the cluster has a member %q at %s: choose another name, or run 'berth cluster member replace %s %s' on another server first", m.Name, m.PeerURLs[0], m.Name, f.Self.PeerURL)
		}
	}
	return nil
}

// joining returns how a server starts as one of the given members. etcd compares only the
// addresses; a member that has never run has no name yet, so its id serves as the name.
func (f *Founding) joining(members []*etcdserverpb.Member) Start {
	s := Start{Members: map[string]string{}, Joins: true}
	for _, m := range members {
		name := m.Name
		if f.isSelf(m) {
			name = f.Self.Name
		} else if name == "" {
			name = fmt.Sprintf("%x", m.ID)
		}
		if len(m.PeerURLs) > 0 {
			s.Members[name] = hostOf(m.PeerURLs[0])
		}
	}
	return s
}

// isTransient reports whether the same request to etcd may succeed later.
func isTransient(err error) bool {
	for _, passing := range []error{rpctypes.ErrTooManyLearners, rpctypes.ErrMemberNotEnoughStarted, rpctypes.ErrMemberLearnerNotReady, context.DeadlineExceeded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	code := codeOf(err)
	return problem.CodeOf(err) == problem.EtcdUnavailable || code == codes.Unavailable || code == codes.DeadlineExceeded
}

// Missing compares the peer addresses of the cluster with those of a configuration. It returns the
// members of the cluster that the configuration does not name, as NAME=URL, and the addresses in
// the configuration that belong to no member.
func (c *Client) Missing(ctx context.Context, configured []string) (unknown, gone []string, err error) {
	list, err := c.members(ctx)
	if err != nil {
		return nil, nil, err
	}
	gone = slices.Clone(configured)
	for _, m := range list {
		for _, at := range m.PeerURLs {
			if i := slices.Index(gone, at); i >= 0 {
				gone = slices.Delete(gone, i, i+1)
			} else {
				unknown = append(unknown, m.Name+"="+at)
			}
		}
	}
	return unknown, gone, nil
}

// retryEvery is the pause between attempts of a request that failed for now.
const retryEvery = time.Second

// Complete finishes the start of a running member: it promotes a learner to a voting member as soon
// as the learner has the data, and updates the peer address of the member to that of its
// configuration. It returns when both are done, or ctx has ended. It calls report with errors that
// may pass, once for each text, but not while the learner receives the data.
func (c *Client) Complete(ctx context.Context, id uint64, peerURL string, report func(error)) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for last := ""; ; {
		done, err := c.complete(ctx, id, peerURL)
		if done || err != nil && !isTransient(err) {
			return err
		}
		if err != nil && !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) && err.Error() != last {
			last = err.Error()
			report(unjoined(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unjoined says what to do about an error of a server that finishes joining a cluster. A time that ran out is that
// no majority has answered.
func unjoined(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || codeOf(err) == codes.DeadlineExceeded {
		return fmt.Errorf("no majority of the members answered within %s: 'berth cluster status' shows which do not; start them, or make their peer addresses reachable", requestTimeout)
	}
	return err
}

func (c *Client) complete(ctx context.Context, id uint64, peerURL string) (bool, error) {
	try, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := c.etcd.MemberList(try)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.ID == id })
	if i < 0 {
		return false, problem.New(problem.Precondition, "this server was removed from the cluster")
	}
	self := list.Members[i]
	if self.IsLearner {
		return false, c.promote(ctx, id) // then check again
	}
	if !slices.Contains(self.PeerURLs, peerURL) {
		_, err := c.etcd.MemberUpdate(try, id, []string{peerURL})
		return err == nil, err
	}
	return true, nil
}

// promote makes a learner a voting member. It sends the request to the leader: another member would pass it on
// without the certificate of the user, and the leader refuses that if etcd has users.
func (c *Client) promote(ctx context.Context, id uint64) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.Members, func(m MemberStatus) bool { return m.Leader })
	if i < 0 {
		return rpctypes.ErrNoLeader
	}
	leader, err := c.at(s.Members[i].at)
	if err != nil {
		return err
	}
	defer leader.Close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = leader.etcd.MemberPromote(ctx, id)
	return err
}
