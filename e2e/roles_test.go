//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/coordinator"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// usersOf are the users of the tests with their roles, as the page advises, on hosts a and b.
var usersOf = map[string]string{
	"root":          "admin",
	"exec-a":        "host:a,pool:a",
	"sidecar-a":     "host:a,pool:a,dispatcher,viewer",
	"sidecar-b":     "host:b,pool:a,dispatcher,viewer,runs",
	"worker-a":      "host:a,pool:a,worker",
	"coordinator-a": "coordinator:a",
	"source-a":      "source:a@a",
	"operator":      "operator",
	"viewer":        "viewer",
	"runs":          "runs",
}

// withRoles is an etcd with those users and roles, which the command makes. All have the same
// password.
func withRoles(t testing.TB) *embed.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("it is about the rights of users of etcd: there is nothing to see for the race detector")
	}
	srv := embedtest.New(t)
	args := []string{"cluster", "users", "--prepare", "--passwords", filepath.Join(t.TempDir(), "passwords")}
	for user, roles := range usersOf {
		args = append(args, user+"="+roles)
	}
	berthCommand(t, srv.Endpoint(), nil, args...).succeeds()
	etcd := etcdctl(t, clientv3.Config{Endpoints: []string{srv.Endpoint()}})
	for user := range usersOf {
		if _, err := etcd.UserChangePassword(t.Context(), user, secret); err != nil {
			t.Fatal(err)
		}
	}
	berthCommand(t, srv.Endpoint(), login("root"), "cluster", "users", "root=admin").succeeds()
	return srv
}

// login are the settings of a user.
func login(user string) []string {
	return []string{"BERTH_USER=" + user, "BERTH_PASSWORD=" + secret}
}

// Each process does all of its work with the roles that the page gives it, and no other.
func TestEachRoleDoesItsWork(t *testing.T) {
	srv := withRoles(t)
	root := asBackend(t, srv, "root")
	q := &quay{t: t, etcd: srv.Endpoint(), backend: root}
	s := &shop{t: t, etcd: srv.Endpoint(), backend: root, steps: NewStepHistory(keys), dir: shortDir(t)}
	q.w = watch(t, root, func(w *witness) {
		w.onEvent = func(_ *History, ev *mvccpb.Event) { s.steps.Event(ev) }
	})
	s.w = q.w
	as := func(user string, args ...string) *command {
		t.Helper()
		return berthCommand(t, q.etcd, login(user), args...)
	}
	do := func(user string, args ...string) string {
		t.Helper()
		c := as(user, args...)
		c.succeeds()
		return c.out.String()
	}
	over := func(socket, method, path, body string, want int) []byte {
		t.Helper()
		status, answer := q.overSocket(socket, method, path, body)
		if status != want {
			t.Fatalf("%s %s: %d: %s", method, path, status, answer)
		}
		return answer
	}
	sidecar := func(host, dir string) *server {
		t.Helper()
		return startSidecarIn(t, append([]string{"env"}, login("sidecar-"+host)...), q.etcd, host, dir)
	}

	do("operator", "pools", "set", "a", "1", "--lease-duration", "10s")
	do("operator", "limits", "set", "--max-concurrent-runs", "5")

	// Two sidecars: one holds, one waits. The first is killed, and goes on. Its claim is
	// revoked from another host.
	dir := shortDir(t)
	a, b := sidecar("a", dir), sidecar("b", shortDir(t))
	over(a.Socket, http.MethodPost, "/v1/claims", `{"id":"held","pools":{"a":1},"ttl":"0s"}`, http.StatusCreated)
	waits := make(chan []byte, 1)
	go func() {
		_, answer := q.overSocket(b.Socket, http.MethodPost, "/v1/claims", `{"id":"next","pools":{"a":1},"wait":"5m"}`)
		waits <- answer
	}()
	q.w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })
	fence := q.hold("held").From
	a.kill()
	sidecar("a", dir)
	if x := q.hold("held"); x.From != fence {
		t.Errorf("the claim was not resumed: %d is %d", fence, x.From)
	}
	do("operator", "claims", "revoke", "held")
	<-waits
	if q.hold("next").Host != "b" {
		t.Error("the revoked claim was not granted to the other host")
	}
	over(b.Socket, http.MethodDelete, "/v1/claims/next", "", http.StatusNoContent)
	berthCommand(t, q.etcd, append(login("exec-a"), "BERTH_HOST=a"), "exec", "--pool", "a", "--", "true").succeeds()

	// A coordinator, a worker and a source: runs with and without slots, and one that is
	// canceled.
	as("coordinator-a", "coordinator", "--host", "a")
	s.leader()
	for _, text := range []string{
		"steps:\n  - {name: m, items: {from: 1, to: 3}, pools: {a: 1}, command: [echo, hello]}\n",
		"steps:\n  - {name: m, retries: 1, shell: 'test $BERTH_ATTEMPT = 2'}\n",
	} {
		file := filepath.Join(s.dir, "run.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		do("operator", "submit", "-f", file)
	}
	file := filepath.Join(s.dir, "source.yaml")
	if err := os.WriteFile(file, []byte("name: a\nlist: [echo, item]\nrun:\n  name: load\n  steps: [{name: m, command: ['true']}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	as("source-a", "source", "run", "-f", file, "--host", "a")
	work := filepath.Join(s.dir, "worker")
	as("worker-a", "worker", "--host", "a", "--state-dir", work, "--work-dir", s.dir, "--concurrency", "2")
	over(b.Socket, http.MethodPost, "/v1/runs", `{"id":"posted","steps":[{"name":"m","command":["true"]}]}`, http.StatusCreated)
	do("operator", "runs", "wait", "posted")
	ended := func(n int) func() bool {
		return func() bool {
			all, err := store.ReadAll(t.Context(), root, keys.Runs())
			if err != nil {
				return false
			}
			found := 0
			for _, kv := range all.KVs {
				if strings.Contains(string(kv.Value), `"status":"succeeded"`) {
					found++
				}
			}
			return found == n
		}
	}
	q.w.wait("all runs with steps have succeeded", ended(4))

	// External executors: of a run that gets its slot from the coordinator, and of a step.
	over(b.Socket, http.MethodPost, "/v1/runs", `{"id":"external","pools":{"a":1}}`, http.StatusCreated)
	var started struct {
		Fence int64 `json:"fence"`
	}
	eventually(t, "the run is started", func(context.Context) bool {
		status, answer := q.overSocket(b.Socket, http.MethodPost, "/v1/runs/external/start", `{"executor":"e2e"}`)
		return status == http.StatusOK && json.Unmarshal(answer, &started) == nil
	})
	body, err := json.Marshal(map[string]any{"fence": started.Fence, "status": "succeeded"})
	if err != nil {
		t.Fatal(err)
	}
	over(b.Socket, http.MethodPost, "/v1/runs/external/finish", string(body), http.StatusOK)
	over(b.Socket, http.MethodPost, "/v1/runs", `{"id":"steps","steps":[{"name":"m","external":true,"queue":"etl","pools":{"a":1}}]}`, http.StatusCreated)
	over(b.Socket, http.MethodGet, "/v1/queues/etl/ready?wait=30s", "", http.StatusOK)
	taken := over(b.Socket, http.MethodPost, "/v1/runs/steps/steps/m/0/take", `{"executor":"e2e","wait":"1m"}`, http.StatusOK)
	if err := json.Unmarshal(taken, &started); err != nil {
		t.Fatal(err)
	}
	if body, err = json.Marshal(map[string]any{"fence": started.Fence, "status": "succeeded", "output": "done"}); err != nil {
		t.Fatal(err)
	}
	over(b.Socket, http.MethodPost, "/v1/runs/steps/steps/m/0/finish", string(body), http.StatusOK)
	do("operator", "runs", "wait", "steps")

	// An operator's actions, and what a viewer sees.
	do("operator", "pools", "pause", "a")
	do("operator", "pools", "resume", "a")
	do("operator", "submit", "--id", "later", "--queue", "none", "--", "true")
	do("operator", "runs", "cancel", "later")
	do("operator", "worker", "drain", "a/worker")
	for _, args := range [][]string{
		{"pools", "list"}, {"pools", "info", "a"}, {"claims", "list"}, {"hosts", "list"}, {"worker", "list"}, {"queue", "list"},
		{"runs", "list"}, {"runs", "info", "posted"}, {"runs", "events", "posted"}, {"runs", "logs", "posted"}, {"runs", "logs", "--follow", "posted"}, {"queue", "why", "later"},
		{"limits", "get"}, {"actions", "list"}, {"source", "list"}, {"coordinator", "status"}, {"export"}, {"verify"},
	} {
		do("viewer", args...)
	}
	if out := do("viewer", "actions", "list"); !strings.Contains(out, "etcd:operator") {
		t.Errorf("the actions are by others: %s", out)
	}
}

// A dispatcher with the roles of its own host grants the claims of another host.
func TestTheRolesOfAHostGrantTheClaimsOfAnother(t *testing.T) {
	srv := withRoles(t)
	root := asBackend(t, srv, "root")
	q := &quay{t: t, etcd: srv.Endpoint(), backend: root, w: watch(t, root)}
	berthCommand(t, q.etcd, login("operator"), "pools", "set", "a", "1", "--lease-duration", "10s").succeeds()
	sidecars := map[string]*server{}
	for _, host := range []string{"a", "b"} {
		sidecars[host] = startSidecarIn(t, append([]string{"env"}, login("sidecar-"+host)...), q.etcd, host, shortDir(t))
	}
	// Claims are named for their hosts. The first that waits is of host a, which is the
	// dispatcher until no claim waits any more.
	ids := []string{"b0", "a1", "b2", "a3"}
	answered := make(chan string, len(ids))
	for i, id := range ids {
		go func() {
			q.overSocket(sidecars[id[:1]].Socket, http.MethodPost, "/v1/claims", `{"id":"`+id+`","pools":{"a":1},"ttl":"0s","wait":"5m"}`)
			answered <- id
		}()
		q.w.until(id+" holds the slot or waits", func(h *History) bool {
			return h.Held() == 1 && len(h.Waiting()) == i
		})
		for host, s := range sidecars { // the next claim knows that it is behind
			eventually(t, host+" sees it", func(context.Context) bool {
				_, answer := q.overSocket(s.Socket, http.MethodGet, "/v1/pools/a", "")
				return strings.Contains(string(answer), fmt.Sprintf(`"waiting":%d,`, i)) && strings.Contains(string(answer), `"claimed":1,`)
			})
		}
	}
	for _, id := range ids {
		q.hold(id)
		if next := <-answered; next != id {
			t.Fatalf("claim %s was answered, not %s", next, id)
		}
		if status, answer := q.overSocket(sidecars[id[:1]].Socket, http.MethodDelete, "/v1/claims/"+id, ""); status != http.StatusNoContent {
			t.Fatalf("the release of %s: %d: %s", id, status, answer)
		}
	}
}

// A coordinator with its role alone removes what is no longer kept. Etcd does not let it
// compact, which it says.
func TestTheRoleOfACoordinatorCleansUp(t *testing.T) {
	srv := withRoles(t)
	root := asBackend(t, srv, "root")
	q := &quay{t: t, etcd: srv.Endpoint(), backend: root, w: watch(t, root)}
	berthCommand(t, q.etcd, login("operator"), "submit", "--id", "old", "--queue", "none", "--", "true").succeeds()
	berthCommand(t, q.etcd, login("operator"), "runs", "cancel", "old").succeeds()
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan struct{}, 1)
	log := hclog.New(&hclog.LoggerOptions{Output: writer(func(line string) {
		if strings.Contains(line, "etcd lets no user but root compact") {
			refused <- struct{}{}
		}
	})})
	done := make(chan error, 1)
	c := coordinator.New(coordinator.Config{
		Backend: asBackend(t, srv, "coordinator-a"), Keys: keys, Host: "a", Logger: log,
		Retention: time.Millisecond, CompactInterval: 50 * time.Millisecond,
	})
	go func() { done <- c.Run(ctx) }()
	q.w.wait("the run is removed", func() bool {
		left, err := store.ReadAll(t.Context(), root, keys.Runs())
		return err == nil && len(left.KVs) == 0
	})
	closedWithin(t, "the refusal is logged", refused)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// writer is called with each line of a log.
type writer func(line string)

func (w writer) Write(line []byte) (int, error) {
	w(string(line))
	return len(line), nil
}

// What a user may not do is refused, with its name and that of the key.
func TestARoleIsRefusedWhatIsOfOthers(t *testing.T) {
	srv := withRoles(t)
	id := store.StepID{Run: "r", Step: "s", Index: 1}
	of := func(host string) []string {
		return []string{
			keys.Presence(host, "x"), keys.Lease(host, 7), keys.Guard(host, "x"), keys.ActiveStep(host, id), keys.ActiveRun(host, "r"),
			keys.Revocation(host, "c"),
		}
	}
	slots := []string{keys.Slots("a") + "000000", keys.DemandsAll("a") + "a/x/0", keys.Pending("a")}
	specs := []string{keys.Spec("a"), keys.Slots("b") + "000000", keys.DemandsAll("b") + "a/x/0", keys.Pending("b"), keys.Limits()}
	runs := []string{keys.Run("r")}
	steps := []string{keys.Step(id), keys.Graph("r"), keys.Ready("default") + "o", keys.Canceled("r"), keys.Log(id), keys.Event("r", "e")}
	rest := []string{keys.Coordinator(7), keys.SourcePoll("b"), keys.Worker("b", "x"), keys.Action("x")}
	all := slices.Concat(of("a"), of("b"), slots, specs, runs, steps, rest, []string{keys.Work(id), keys.Follower(id), keys.SourcePoll("a")})
	revoke := []string{keys.Revocation("a", "c"), keys.Revocation("b", "c")}
	work := []string{keys.Work(id)}
	for user, may := range map[string][]string{
		"exec-a":        slices.Concat(of("a"), slots),
		"sidecar-a":     slices.Concat(of("a"), slots, []string{keys.Pending("b")}),
		"worker-a":      slices.Concat(of("a"), slots, steps),
		"sidecar-b":     slices.Concat(of("b"), slots, runs, steps, work, []string{keys.Follower(id), keys.Pending("b")}),
		"coordinator-a": slices.Concat([]string{keys.Presence("a", "x"), keys.Coordinator(7), keys.Guard("a", "x"), keys.Guard("b", "x")}, slots, specs[:4], runs, steps, work, revoke),
		"source-a":      slices.Concat([]string{keys.Presence("a", "x"), keys.SourcePoll("a"), keys.Event("r", "e")}, runs, steps[:2], work),
		"operator":      slices.Concat(slots, specs, runs, steps, work, revoke, rest[1:], []string{keys.Follower(id), keys.SourcePoll("a")}),
		"viewer":        nil,
	} {
		t.Run(user, func(t *testing.T) {
			b := asBackend(t, srv, user)
			for _, key := range all {
				for what, op := range map[string]*pb.RequestOp{"put": store.Put(key, []byte("x"), 0), "delete": store.Delete(key)} {
					_, err := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}})
					switch {
					case slices.Contains(may, key):
						if err != nil {
							t.Errorf("%s %s: %v", what, key, err)
						}
					case !errors.Is(err, store.ErrDenied):
						t.Errorf("%s %s: %v", what, key, err)
					case !strings.Contains(err.Error(), `user "`+user+`" of etcd has no right to write `+key):
						t.Errorf("the refusal says: %v", err)
					}
				}
			}
		})
	}
	t.Run("leases", func(t *testing.T) {
		a, b := asBackend(t, srv, "sidecar-a"), asBackend(t, srv, "sidecar-b")
		lease, _, err := a.Grant(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(keys.Lease("a", lease), []byte("x"), lease)}}); err != nil {
			t.Fatal(err)
		}
		_, renewed := b.Renew(t.Context(), lease)
		_, attached := b.Txn(t.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(slots[0], []byte("x"), lease)}})
		for what, err := range map[string]error{"renew": renewed, "revoke": b.Revoke(t.Context(), lease), "attach": attached} {
			if !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "sidecar-b") {
				t.Errorf("%s the lease of another host: %v", what, err)
			}
		}
		if _, err := a.Renew(t.Context(), lease); err != nil {
			t.Error(err)
		}
	})
	t.Run("reading", func(t *testing.T) {
		b := asBackend(t, srv, "exec-a")
		for _, prefix := range []string{keys.WorksAll(), keys.LogsAll(), keys.Leases("b"), keys.Actions()} {
			if _, err := store.ReadAll(t.Context(), b, prefix); !errors.Is(err, store.ErrDenied) || !strings.Contains(err.Error(), "read "+prefix) {
				t.Errorf("read %s: %v", prefix, err)
			}
		}
	})
}

// The right to a pool is checked with each claim. A claim that lacks it harms no other of
// its host.
func TestAHostClaimsOnlyThePoolsOfItsRoles(t *testing.T) {
	srv := withRoles(t)
	root := asBackend(t, srv, "root")
	w := watch(t, root)
	for _, name := range []string{"a", "b"} {
		berthCommand(t, srv.Endpoint(), login("operator"), "pools", "set", name, "1").succeeds()
	}
	c := open(t, []string{srv.Endpoint()}, "a", as("exec-a"))
	held := claim(t, c, "held", instance.Slots{"a": 1})
	waits := begin(t, t.Context(), c, "waits", instance.Slots{"a": 1})
	w.until("one waits", func(h *History) bool { return len(h.Waiting()) == 1 })
	for _, slots := range []instance.Slots{{"b": 1}, {"a": 1, "b": 1}} {
		_, err := c.Claim(t.Context(), slots, instance.WithWait(0))
		if len(slots) == 1 && (instance.ErrorCode(err) != "etcd_denied" ||
			!strings.Contains(err.Error(), `user "exec-a" of etcd has no right to write `+keys.Slots("b"))) {
			t.Errorf("%v: %v", slots, err)
		}
		if err == nil {
			t.Errorf("%v is granted", slots)
		}
	}
	release(t, held)
	release(t, waits.granted())
}

// A process whose user lacks a right ends at its start, and says which.
func TestAMissingRightEndsAProcessAtItsStart(t *testing.T) {
	srv := withRoles(t)
	file := filepath.Join(t.TempDir(), "source.yaml")
	if err := os.WriteFile(file, []byte("name: a\nlist: [echo, item]\nrun: {steps: [{name: m, command: ['true']}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user string
		args []string
		says string
	}{
		{"viewer", []string{"exec", "--pool", "a", "--", "true"}, "write " + keys.Instances("b")},
		{"exec-a", []string{"exec", "--pool", "a", "--", "true"}, "write " + keys.Instances("b")},
		{"sidecar-b", []string{"sidecar", "--host", "a", "--listen", "127.0.0.1:0", "--state-dir", t.TempDir()}, "write " + keys.Instances("a")},
		{"sidecar-a", []string{"worker", "--host", "a", "--state-dir", t.TempDir()}, "write " + keys.StepsAll()},
		{"worker-a", []string{"coordinator", "--host", "a"}, "write " + keys.Coordinators()},
		{"coordinator-a", []string{"source", "run", "-f", file, "--host", "a"}, "write " + keys.Source("a")},
		{"viewer", []string{"pools", "set", "db", "1"}, "write " + keys.Actions()},
		{"runs", []string{"limits", "set", "--max-concurrent-runs", "1"}, "write " + keys.Actions()},
		{"source-a", []string{"hosts", "list"}, "read " + keys.Hosts()},
	} {
		t.Run(c.args[0]+" as "+c.user, func(t *testing.T) {
			p := berthCommand(t, srv.Endpoint(), append(login(c.user), "BERTH_HOST=b"), c.args...)
			if code, text := p.code(), p.err.String(); code != 77 || !strings.Contains(text, `user "`+c.user+`"`) || !strings.Contains(text, c.says) {
				t.Errorf("exit code %d: %s", code, text)
			}
		})
	}
}
