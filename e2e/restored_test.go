//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/store"
)

// restore kills etcd, and starts it on what a snapshot has, as docs/how-to/backup.md says but for the
// token of the cluster: it remains the same cluster.
func (e *etcdProcess) restore(path string) { e.restoreAs(path, "etcd-cluster") }

// restoreAs is restore with a token of the cluster. With a new one, it is another cluster.
func (e *etcdProcess) restoreAs(path, token string) {
	e.t.Helper()
	e.kill()
	e.part.Dir = filepath.Join(e.t.TempDir(), "restored")
	const peer = "http://127.0.0.1:2380"
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: "berth", OutputDataDir: e.part.Dir, PeerURLs: []string{peer},
		InitialCluster: "berth=" + peer, InitialClusterToken: token,
		RevisionBump: RevisionBump, MarkCompacted: true,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.restart()
}

// claimsIn returns what etcd has of claims: the fences of those that are held, and the
// hosts of those that wait.
func claimsIn(ctx context.Context, a inspect.Snapshot) (held map[string]store.Fence, waiting map[string]string, err error) {
	r, err := a.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	held, waiting = map[string]store.Fence{}, map[string]string{}
	holders, waiters := r.Claims()
	for _, h := range holders {
		held[h.Claim] = h.Fence
	}
	for _, w := range waiters {
		waiting[w.Claim] = w.Host
	}
	return held, waiting, nil
}

func TestSidecarsThatLiveThroughARestoreHoldWhatEtcdHas(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	q := &quay{t: t, etcd: etcd.endpoints()[0]}
	admin := operator(t, etcd.endpoints())
	for name, limit := range map[string]string{"db": "20", "tight": "1"} {
		berthCommand(t, q.etcd, nil, "pools", "set", name, limit).succeeds()
	}
	hosts := map[string]*server{}
	for _, host := range []string{"one", "two"} {
		hosts[host] = startSidecar(t, q.etcd, host, shortDir(t))
	}
	url := func(host, id string) string { return hosts[host].HTTP + "/v1/claims/" + id }
	claim := func(host, pool, id string) {
		t.Helper()
		status, body := q.http(http.MethodPost, hosts[host].HTTP+"/v1/claims", fmt.Sprintf(`{"id":%q,"pools":{%q:1},"client_token":%q}`, id, pool, clientToken))
		if status != http.StatusCreated {
			t.Fatalf("%s: %d: %s", id, status, body)
		}
	}
	remove := func(host, id string) {
		t.Helper()
		if status, body := q.http(http.MethodDelete, url(host, id), ""); status != http.StatusNoContent {
			t.Fatalf("%s: %d: %s", id, status, body)
		}
	}
	answers := make(chan string, 10)
	wait := func(host, id string) {
		t.Helper()
		at := hosts[host].HTTP + "/v1/claims"
		go func() {
			status, _ := q.http(http.MethodPost, at, fmt.Sprintf(`{"id":%q,"pools":{"tight":1},"wait":"10m","client_token":%q}`, id, clientToken))
			answers <- fmt.Sprint(id, " ", status)
		}()
		eventually(t, id+" waits", func(ctx context.Context) bool {
			_, waiting, err := claimsIn(ctx, admin)
			return err == nil && waiting[id] == host
		})
	}

	claim("one", "tight", "tight")
	for host := range hosts {
		for _, id := range []string{"kept", "freed"} {
			claim(host, "db", id+"-"+host)
		}
		wait(host, "stays-"+host)
		wait(host, "leaves-"+host)
	}
	before, _, err := claimsIn(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot.db")
	if err := SaveSnapshot(t.Context(), etcdctl(t, clientv3.Config{Endpoints: etcd.endpoints()}), file); err != nil {
		t.Fatal(err)
	}
	for host := range hosts {
		claim(host, "db", "lost-"+host)
		for _, id := range []string{"freed-", "leaves-"} {
			remove(host, id+host)
		}
		if got, want := <-answers, fmt.Sprintf("leaves-%s 499", host); got != want {
			t.Errorf("answered %s, want %s", got, want)
		}
		wait(host, "comes-"+host)
	}
	etcd.restore(file)

	wantHeld := map[string]store.Fence{"tight": before["tight"], "kept-one": before["kept-one"], "kept-two": before["kept-two"]}
	wantWaiting := map[string]string{"stays-one": "one", "comes-one": "one", "stays-two": "two", "comes-two": "two"}
	resolved := func(ctx context.Context) bool {
		held, waiting, err := claimsIn(ctx, admin)
		return err == nil && maps.Equal(held, wantHeld) && maps.Equal(waiting, wantWaiting)
	}
	eventually(t, "etcd has what the sidecars hold and wait for", resolved)
	for host := range hosts {
		var got struct {
			Fence store.Fence
			Code  string
		}
		kept := "kept-" + host
		if status, body := q.http(http.MethodGet, url(host, kept), ""); status != http.StatusOK || json.Unmarshal(body, &got) != nil || got.Fence != before[kept] {
			t.Errorf("%s: %d: %s", kept, status, body)
		}
		lost := "lost-" + host
		eventually(t, lost+" is lost", func(context.Context) bool {
			status, body := q.http(http.MethodGet, url(host, lost), "")
			return status >= http.StatusBadRequest && json.Unmarshal(body, &got) == nil && got.Code == "claim_lost"
		})
		remove(host, lost) // neither has anything to free
		remove(host, "freed-"+host)
	}
	if !resolved(t.Context()) {
		t.Error("the release of a claim that is gone has freed another")
	}
	// The ids that the restore has brought back are freed after their slots.
	eventually(t, "verify finds nothing", func(ctx context.Context) bool {
		r, err := admin.Read(ctx)
		return err == nil && len(r.Verify()) == 0
	})

	// All that waits is served, in turn.
	remove("one", "tight")
	for range wantWaiting {
		var id string
		var status int
		if _, err := fmt.Sscan(<-answers, &id, &status); err != nil || status != http.StatusCreated {
			t.Fatalf("%s: %d, %v", id, status, err)
		}
		remove(wantWaiting[id], id)
	}
	for host := range hosts {
		remove(host, "kept-"+host)
	}
	clear(wantHeld)
	clear(wantWaiting)
	eventually(t, "nothing is left", resolved)
	berthCommand(t, q.etcd, nil, "verify").succeeds()
}
