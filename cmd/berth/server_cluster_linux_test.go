package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// neighbors are servers of one cluster on loopback addresses of their own, in folders of their own.
type neighbors struct {
	t       *testing.T
	dir     string
	network string
}

func newNeighbors(t *testing.T) *neighbors {
	t.Helper()
	return &neighbors{t, shortDir(t), fmt.Sprintf("127.%d.%d.", 128+rand.IntN(64), rand.IntN(256))}
}

// cluster is the setting with some servers, each of which has the name of a letter.
func (n *neighbors) cluster(names string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%c=http://%s%d:7423", name, n.network, name-'a'+1))
	}
	return strings.Join(all, ",")
}

// endpoints are the addresses of etcd of some servers.
func (n *neighbors) endpoints(names string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%s%d:2379", n.network, name-'a'+1))
	}
	return strings.Join(all, ",")
}

// folder is that of a server.
func (n *neighbors) folder(name string) string { return filepath.Join(n.dir, name) }

// start starts a server of a cluster of some.
func (n *neighbors) start(name, cluster string) *serverProcess {
	n.t.Helper()
	if err := os.MkdirAll(n.folder(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return startServer(n.t, n.folder(name), "--name", name, "--host", name, "--cluster", n.cluster(cluster)).listens()
}

func TestAServerThatJoinsAsALearnerLogsNoError(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t)
	a := n.start("a", "a").ready()
	b := n.start("b", "ab").ready()
	log, err := os.ReadFile(b.log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "[ERROR]") || strings.Contains(line, "not supported for learner") {
			t.Errorf("all is well, and it logs %s", line)
		}
	}
	if waits := strings.Count(string(log), "this server is a learner"); waits != 1 {
		t.Errorf("it logs %d times that it is a learner", waits)
	}
	b.end(syscall.SIGTERM)
	b = n.start("b", "ab").ready()
	if log, err = os.ReadFile(b.log); err != nil || strings.Count(string(log), "this server is a learner") != 1 {
		t.Errorf("a member with a vote logs that it is a learner: %v", err)
	}
	b.end(syscall.SIGTERM)
	a.end(syscall.SIGKILL)
}

func TestAServerThatIsStoppedBeforeItFormsAClusterSaysSo(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t)
	a := n.start("a", "abc")
	a.until("a waits for the others", func() bool { return strings.Contains(a.notReady(), "It waits for b at ") })
	a.end(syscall.SIGTERM)
	log, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	if text := "this server is stopped before its etcd has started: it_waited="; !strings.Contains(string(log), text) || strings.Contains(string(log), "context canceled") {
		t.Errorf("the log has no %q:\n%s", text, log)
	}
}

func TestALearnerIsNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := &etcdMember{log: hclog.New(&hclog.LoggerOptions{Output: &log})}
		begun := time.Now()
		if !m.awaitVote(t.Context(), func() bool { return true }) || time.Since(begun) != learnerPatience {
			t.Errorf("the sidecar of a learner starts after %s", time.Since(begun))
		}
		if !strings.Contains(log.String(), "[WARN]  this server is still a learner") {
			t.Errorf("the log is\n%s", &log)
		}
		log.Reset()
		begun = time.Now()
		if !m.awaitVote(t.Context(), func() bool { return time.Since(begun) < 3*time.Second }) || time.Since(begun) > 3*time.Second+voteEvery {
			t.Errorf("the sidecar starts %s after the start of a server that has a vote after 3s", time.Since(begun))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if m.awaitVote(ctx, func() bool { return true }) {
			t.Error("a server that ends serves as a learner")
		}
	})
}

func TestServersSayWhichOthersTheyWaitFor(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t)
	all := map[string]*serverProcess{"a": n.start("a", "abc"), "b": n.start("b", "abc")}
	says := func(name string, texts ...string) {
		t.Helper()
		why := ""
		all[name].until(fmt.Sprintf("%s says %q", name, texts), func() bool {
			why = all[name].notReady()
			for _, text := range texts {
				if !strings.Contains(why, text) {
					return false
				}
			}
			return true
		})
		t.Logf("%s: %s", name, why)
	}
	// A cluster forms when all run.
	says("a", "or forms one when all 3 servers in the setting cluster run. It waits for c at http://"+n.network+"3:2379 (", "refused)")
	says("b", "It waits for c at ")
	all["c"] = n.start("c", "abc")
	for _, s := range all {
		s.ready()
	}
	for name, s := range all {
		s.end(syscall.SIGKILL)
		delete(all, name)
	}
	// Later, it works when two of three run.
	all["a"] = n.start("a", "abc")
	says("a", "etcd waits until 2 of its 3 members run. These do not answer: ", "b at http://"+n.network+"2:7423 (", "c at http://"+n.network+"3:7423 (", "refused)")
	all["c"] = n.start("c", "abc")
	for _, s := range all {
		s.ready()
	}
	// The same holds for one that goes on when the others end.
	all["c"].end(syscall.SIGKILL)
	says("a", "etcd waits until 2 of its 3 members run. These do not answer: ", "b at http://"+n.network+"2:7423 (", "c at http://"+n.network+"3:7423 (", "refused)")
	all["c"] = n.start("c", "abc")
	for _, s := range all {
		s.ready()
	}
	for _, s := range all {
		s.end(syscall.SIGKILL)
	}
}

func TestTheReplacementOfAMemberCanBeRepeated(t *testing.T) {
	t.Parallel()
	n := newNeighbors(t)
	var all []*serverProcess
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, n.start(name, "abc"))
	}
	for _, s := range all {
		s.ready()
	}
	all[1].end(syscall.SIGKILL)
	replace := func(more ...string) string {
		t.Helper()
		args := append([]string{"cluster", "member", "replace", "b"}, more...)
		out, err := rig{t, []string{"BERTH_ENDPOINTS=" + n.endpoints("ac"), "BERTH_HOST=operator"}}.command(args...).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	first, next, _ := strings.Cut(replace(), "\n")
	at, ok := strings.CutPrefix(first, "removed member b, and added a learner at ")
	next, _, _ = strings.Cut(next, "\n")
	if !ok || !strings.HasPrefix(next, "now start the server there with an empty data directory") || !strings.Contains(next, "b="+at) {
		t.Fatalf("it says %q, and then %q", first, next)
	}
	for _, more := range [][]string{nil, {"--force"}, {at}} {
		want := "the replacement of member b is prepared: a learner was added at " + at + ", and has not started\n" + next + "\n"
		if got := replace(more...); !strings.HasPrefix(got, want) {
			t.Errorf("with %q it says %s, want %s", more, got, want)
		}
	}
	// Once nothing of the host is seen any longer, --free says the same.
	free := []string{"cluster", "member", "replace", "b", "--free", "--endpoints", n.endpoints("ac")}
	all[0].until("what the host held can be freed", func() bool {
		out, err := rig{t, nil}.command(free...).Output()
		return err == nil && strings.HasPrefix(string(out), "the replacement of member b is prepared")
	})
	const elsewhere = "http://127.0.0.1:9"
	if got := replace(elsewhere); !strings.Contains(got, "b="+elsewhere) || strings.Contains(got, "b="+at) {
		t.Errorf("at another address it says %s", got)
	}
}
