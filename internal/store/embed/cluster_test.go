package embed_test

import (
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestAClusterOutlivesItsLeader(t *testing.T) {
	m := embedtest.Cluster(t, 3)
	c := m.Client(t)
	put(t, c, "k", "first")

	leader := m.Leader()
	m.Kill(leader)
	putUntil(t, c, "k", "second")
	if m.Leader() == leader {
		t.Error("a killed member still leads")
	}

	m.Restart(leader)
	m.Stop((leader + 1) % 3)
	putUntil(t, c, "k", "third")
	if got := get(t, embedtest.Client(t, m.Server(leader)), "k"); got != "third" {
		t.Errorf("the member that came back knows %q, want %q", got, "third")
	}
}

func TestAClusterThatWasStoppedWholeComesBack(t *testing.T) {
	m := embedtest.Cluster(t, 3)
	put(t, m.Client(t), "k", "kept")
	m.Stop(0, 1, 2)
	m.Restart(0, 1)
	if got := get(t, embedtest.Client(t, m.Server(1)), "k"); got != "kept" {
		t.Errorf("after a restart the key holds %q, want %q", got, "kept")
	}
}

func TestAClusterOfOneComesBackAtItsAddress(t *testing.T) {
	m := embedtest.Cluster(t, 1)
	c := m.Client(t)
	put(t, c, "k", "kept")
	m.Stop(0)
	m.Restart(0)
	putUntil(t, c, "other", "")
	if got := get(t, c, "k"); got != "kept" {
		t.Errorf("after a restart the key holds %q, want %q", got, "kept")
	}
}

func TestAMemberWithoutItsDataJoinsTheClusterAgain(t *testing.T) {
	t.Parallel()
	m := embedtest.Cluster(t, 3)
	put(t, m.Client(t), "k", "kept")
	m.Kill(2)
	m.Replace(2)
	if got := get(t, embedtest.Client(t, m.Server(2)), "k"); got != "kept" {
		t.Errorf("the member that has joined knows %q, want %q", got, "kept")
	}
}
