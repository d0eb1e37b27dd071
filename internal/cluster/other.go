package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
)

// watchEvery is how often a server that runs checks whether another cluster is served at the addresses of
// its configuration.
const watchEvery = 10 * time.Second

// CheckData returns why a server must not start with some data: it is that of another server of the
// configuration, or another server serves another cluster. Clients take the servers of a configuration
// for one cluster, so with two clusters the limits of pools would be exceeded.
func (f *Founding) CheckData(ctx context.Context, data embed.Identity) error {
	for _, m := range data.Members {
		if m.ID == data.MemberID && slices.ContainsFunc(f.Others, func(o Member) bool { return o.Name == m.Name }) {
			return problem.Field("data_dir", "it has the data of server %q, and this is %q: use the data directory of %s, or move the folder etcd in it away", m.Name, f.Self.Name, f.Self.Name)
		}
	}
	return f.checkOthers(ctx, data, func(m Member) {})
}

// Watch checks now and then what [Founding.CheckData] checks of the other servers, which may have started
// at the same time or were not reached before. It returns when another one serves another cluster that this
// one has to give way to, or ctx has ended. A cluster that gives way to this one is only logged.
func (f *Founding) Watch(ctx context.Context, data func() embed.Identity) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	logged := map[string]bool{}
	for {
		id := data()
		id.Revision = math.MaxInt64 // no member of a cluster that works gives way to one that has left it
		err := f.checkOthers(ctx, id, func(m Member) {
			if !logged[m.Name] {
				logged[m.Name] = true
				f.Log.Error("another cluster is served at the address of a server: stop that server, move the folder etcd in its data directory away, and start it again", "server", m.Name, "address", m.ClientURL)
			}
		})
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// served is the cluster that a server serves.
type served struct {
	Member
	clusterID uint64
	members   int
	revision  int64
}

// checkOthers returns the problem of the first of the other servers that serves another cluster which this
// server has to give way to. It calls weaker for those with another cluster that has to give way to this one.
func (f *Founding) checkOthers(ctx context.Context, data embed.Identity, weaker func(Member)) error {
	answers := make(chan *served)
	for _, m := range f.Others {
		go func() { answers <- f.served(ctx, m) }()
	}
	var stronger *served
	for range f.Others {
		switch s := <-answers; {
		case s == nil || s.clusterID == data.ClusterID:
		case s.precedes(data):
			stronger = s
		default:
			weaker(s.Member)
		}
	}
	if stronger == nil {
		return nil
	}
	return problem.Field("data_dir", "it has the data of another cluster than server %q at %s, and both together would exceed the limits of pools. To join that cluster, move the folder etcd in the data directory away, and start this server again. To keep the data here, stop %s first, and do so there", stronger.Name, stronger.ClientURL, stronger.Name)
}

// precedes reports whether a server with some data has to give way to another cluster. If that has its
// server at the address of a member of the data, that member has left: with a larger revision, for a
// cluster that was restored from a snapshot. Otherwise the larger cluster stays.
func (s *served) precedes(data embed.Identity) bool {
	if slices.ContainsFunc(data.Members, func(m embed.Peer) bool { return slices.Contains(m.PeerURLs, s.PeerURL) }) {
		return s.revision > data.Revision
	}
	return s.members >= len(data.Members)
}

// served asks a server which cluster it serves. It returns nil if the server does not tell.
func (f *Founding) served(ctx context.Context, m Member) *served {
	c, err := Dial(Config{Endpoints: []string{m.ClientURL}, TLS: f.TLS, Username: f.Username, Password: f.Password})
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, foundingTimeout)
	defer cancel()
	list, err := c.memberList(ctx, false)
	var status *etcdserverpb.StatusResponse
	if err == nil {
		status, err = c.statusAt(ctx, m.ClientURL)
	}
	if err != nil {
		f.Log.Debug("a server does not tell which cluster it serves", "server", m.Name, "error", fmt.Sprint(err))
		return nil
	}
	return &served{m, list.GetHeader().GetClusterId(), len(list.GetMembers()), status.GetHeader().GetRevision()}
}
