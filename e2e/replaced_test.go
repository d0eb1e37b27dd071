//go:build linux

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/internal/problem"
)

// replace saves a snapshot, has between happen, and restores the snapshot as another cluster at the
// same address.
func (e *etcdProcess) replace(between func()) {
	e.t.Helper()
	file := filepath.Join(e.t.TempDir(), "snapshot.db")
	if err := SaveSnapshot(e.t.Context(), etcdctl(e.t, clientv3.Config{Endpoints: e.endpoints()}), file); err != nil {
		e.t.Fatal(err)
	}
	between()
	e.restoreAs(file, "restored-1")
}

// changes counts the lines about a change of the cluster in a log.
func changes(log string) (n int) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "[ERROR]") && strings.Contains(line, "another etcd cluster answers, probably") {
			n++
		}
	}
	return n
}

// A restored cluster has the leases that its processes renew, and would renew them.
func TestAClaimHasOneHolderAfterARestore(t *testing.T) {
	t.Parallel()
	const limit = 4
	etcd := startEtcd(t)
	q := &quay{t: t, etcd: etcd.endpoints()[0], journal: journal{filepath.Join(t.TempDir(), "journal")}}
	berthCommand(t, q.etcd, nil, "pools", "set", "db", fmt.Sprint(limit), "--lease-duration", sidecarLease.String()).succeeds()
	dir := shortDir(t)
	s := startSidecar(t, q.etcd, "one", dir)
	stop := filepath.Join(t.TempDir(), "stop")
	execs := map[string]*command{}
	start := func(sidecar, name string) {
		t.Helper()
		execs[name] = q.run(sidecar, name, jobPart{Stop: stop})
		q.journal.wait(t, name, "start")
	}
	start("", "direct-before")
	start(s.Socket, "bound-before")
	etcd.replace(func() {
		start("", "direct-after")
		start(s.Socket, "bound-after")
	})

	for name, c := range execs {
		if code := c.code(); code != problem.ExitLost {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, problem.ExitLost, c.err.String())
		}
		direct := strings.HasPrefix(name, "direct")
		if n := changes(c.err.String()); direct && n != 1 || !direct && n != 0 {
			t.Errorf("%s: %d lines about the change:\n%s", name, n, c.err.String())
		}
	}
	eventually(t, "the sidecar is ready", func(context.Context) bool { return isReady(s.HTTP) })
	// It has not ended, and serves new claims: all slots, once the leases have ended that the restore
	// has brought back.
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var next []*command
	for i := range limit {
		next = append(next, q.run(s.Socket, fmt.Sprint("next-", i), jobPart{Stop: stop}))
	}
	for _, c := range next {
		c.succeeds()
	}
	stays := q.journal.stays(t)
	if n := together(stays); n > limit || len(stays) != limit+len(execs) {
		t.Errorf("%d jobs ran at one time, %d in all", n, len(stays))
	}
	berthCommand(t, q.etcd, nil, "verify").succeeds()
	if n := changes(s.err.String()); n != 1 {
		t.Errorf("the sidecar has logged %d lines about the change:\n%s", n, s.err.String())
	}
	if status, metrics := q.http(http.MethodGet, s.HTTP+"/metrics", ""); status != http.StatusOK || !strings.Contains(string(metrics), "\nberth_etcd_cluster_changed_total 1\n") {
		t.Errorf("%d: the metrics do not have one change of the cluster", status)
	}
	// The next sidecar of the host has nothing to resume.
	s.kill()
	s = startSidecar(t, q.etcd, "one", dir)
	eventually(t, "the next sidecar says that it is ready", func(context.Context) bool { return strings.Contains(s.err.String(), "ready: claims=") })
	if text := s.err.String(); !strings.Contains(text, "ready: claims=0") {
		t.Errorf("the next sidecar has taken claims over: %s", text)
	}
}

// A sidecar that is started again after a restore finds its leases in etcd, and its token.
func TestAClaimThatARestoreBringsBackIsNotResumed(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	q := &quay{t: t, etcd: etcd.endpoints()[0]}
	berthCommand(t, q.etcd, nil, "pools", "set", "db", "1", "--lease-duration", sidecarLease.String()).succeeds()
	dir := shortDir(t)
	s := startSidecar(t, q.etcd, "one", dir)
	if status, body := q.http(http.MethodPost, s.HTTP+"/v1/claims", `{"id":"before","pools":{"db":1},"ttl":"0s","client_token":"`+clientToken+`"}`); status != http.StatusCreated {
		t.Fatalf("%d: %s", status, body)
	}
	etcd.replace(s.kill)
	s = startSidecar(t, q.etcd, "one", dir)
	// Etcd shows its keys until its lease has ended, but nobody holds it.
	if status, body := q.http(http.MethodGet, s.HTTP+"/v1/claims/before", ""); strings.Contains(string(body), "valid_for") {
		t.Errorf("the claim of the cluster before was resumed: %d: %s", status, body)
	}
	if status, body := q.http(http.MethodPost, s.HTTP+"/v1/claims", `{"id":"next","pools":{"db":1},"wait":"5m","client_token":"`+clientToken+`"}`); status != http.StatusCreated {
		t.Errorf("%d: %s", status, body)
	}
	berthCommand(t, q.etcd, nil, "verify").succeeds()
}

// A coordinator and a worker go on in the cluster that replaces theirs.
func TestAWorkerStopsItsStepsWhenItsClusterIsReplacedAndTakesOthers(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	q := &quay{t: t, etcd: etcd.endpoints()[0]}
	berthCommand(t, q.etcd, nil, "pools", "set", "db", "2", "--lease-duration", sidecarLease.String()).succeeds()
	coordinator := berthCommand(t, q.etcd, nil, "coordinator", "--host", "one")
	worker := berthCommand(t, q.etcd, nil, "worker", "--host", "two", "--concurrency", "4", "--state-dir", shortDir(t))
	dir := t.TempDir()
	// logged waits until the command of a run has appended its name to a file.
	logged := func(file, name string) {
		t.Helper()
		eventually(t, name+" is "+file, func(context.Context) bool {
			text, err := os.ReadFile(filepath.Join(dir, file))
			return err == nil && strings.Contains(string(text), name+"\n")
		})
	}
	submit := func(name string) {
		t.Helper()
		file := filepath.Join(dir, name+".yaml")
		text := fmt.Sprintf(`id: %[1]s
steps:
- name: work
  pools: {db: 1}
  shell: |
    cd %[2]s
    trap 'echo %[1]s >> stopped; exit 1' TERM
    echo %[1]s >> began
    until [ -e go ]; do sleep 0.02; done
    echo %[1]s >> ended
`, name, dir)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		berthCommand(t, q.etcd, nil, "submit", "-f", file).succeeds()
	}
	submit("before")
	logged("began", "before")
	etcd.replace(func() {
		submit("after")
		logged("began", "after")
	})
	logged("stopped", "before")
	logged("stopped", "after")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	submit("next")
	logged("ended", "next")
	for _, c := range []*command{coordinator, worker} {
		select {
		case <-c.done:
			t.Errorf("%s has ended: %s", c.name, c.err.String())
		default:
		}
		if n := changes(c.err.String()); n != 1 {
			t.Errorf("%s: %d lines about the change:\n%s", c.name, n, c.err.String())
		}
	}
	berthCommand(t, q.etcd, nil, "verify").succeeds()
}
