package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// configured returns the founding of a server whose configuration has another one, which serves.
func configured(other *embed.Server) *Founding {
	return &Founding{
		Self: Member{Name: "b", PeerURL: "http://10.0.0.2:7423", ClientURL: "http://10.0.0.2:2379"},
		Others: []Member{
			{Name: "a", PeerURL: "http://10.0.0.1:7423", ClientURL: other.Endpoint()},
			{Name: "c", PeerURL: "http://10.0.0.3:7423", ClientURL: "http://127.0.0.1:1"}, // it does not answer
		},
		Log: hclog.NewNullLogger(),
	}
}

// peers are members of a cluster on some hosts: 1 is server a, 2 is b, 3 is c.
func peers(hosts ...int) []embed.Peer {
	var all []embed.Peer
	for _, n := range hosts {
		all = append(all, embed.Peer{ID: uint64(n), Name: string(rune('a' - 1 + n)), PeerURLs: []string{fmt.Sprintf("http://10.0.0.%d:7423", n)}})
	}
	return all
}

func TestAServerDoesNotStartWithDataOfAnotherCluster(t *testing.T) {
	t.Parallel()
	other := embedtest.New(t)
	f, serves := configured(other), other.Identity()
	for name, data := range map[string]embed.Identity{
		"it served alone before it was configured":        {ClusterID: 1, MemberID: 2, Members: peers(2), Revision: 1 << 40},
		"it was stopped before it had members":            {ClusterID: 1, MemberID: 2},
		"the other one was restored from a snapshot":      {ClusterID: 1, MemberID: 2, Members: peers(1, 2, 3), Revision: serves.Revision - 1},
		"it is the data of another server of the cluster": {ClusterID: serves.ClusterID, MemberID: 3, Members: peers(1, 2, 3)},
	} {
		if err := f.CheckData(t.Context(), data); problem.CodeOf(err) != problem.Invalid || !strings.Contains(err.Error(), "data_dir: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, data := range map[string]embed.Identity{
		"the same cluster": {ClusterID: serves.ClusterID, MemberID: 2, Members: peers(2)},
		"the other one has left this cluster for an older": {ClusterID: 1, MemberID: 2, Members: peers(1, 2, 3), Revision: serves.Revision},
		"the other one alone is none of this cluster":      {ClusterID: 1, MemberID: 2, Members: peers(2, 3)},
	} {
		if err := f.CheckData(t.Context(), data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOfTwoClustersTheLargerOneStays(t *testing.T) {
	t.Parallel()
	other := embedtest.New(t)
	f := configured(other)
	if err := f.Watch(t.Context(), func() embed.Identity { return embed.Identity{ClusterID: 1, Members: peers(2)} }); problem.CodeOf(err) != problem.Invalid {
		t.Errorf("two servers alone: %v", err)
	}
	// A cluster that is larger, or that has a place for the other server, is not stopped by it.
	for _, members := range [][]embed.Peer{peers(2, 3), peers(1, 2, 3)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		logged := &lines{wrote: cancel}
		f.Log = hclog.New(&hclog.LoggerOptions{Output: logged})
		err := f.Watch(ctx, func() embed.Identity { return embed.Identity{ClusterID: 1, Members: members} })
		if err == nil || err.Error() != "logged" || !strings.Contains(logged.String(), "another cluster is served at the address of a server") {
			t.Errorf("with %d members: %v, %s", len(members), err, logged)
		}
	}
}

// lines is a log that ends a context with its first line.
type lines struct {
	strings.Builder
	wrote context.CancelCauseFunc
}

func (l *lines) Write(text []byte) (int, error) {
	l.wrote(fmt.Errorf("logged"))
	return l.Builder.Write(text)
}
