package registry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/wire"
)

// world is a stand-in for etcd with data of the old layout, upgrades of it, and what else happens between any two of
// their requests: operators, processes that start and end, and writes of processes that have hung. A seed draws it.
type world struct {
	*rand.Rand
	etcd *storetest.Etcd
	root *storetest.Backend
	keys wire.Keys
	// mutate changes the transactions of upgrades, to show that the checks notice.
	mutate func(*pb.TxnRequest)
	// by is what writes: an upgrade, a process, or an operator.
	by string
	// depth is how many upgrades are under way, one within another's request.
	depth  int
	events int // that may still happen between the requests of an upgrade
	alive  []*process
	hung   []*pb.TxnRequest
	names  int
	done   bool // the version is there
	errs   []string
}

// process is one of the old layout.
type process struct {
	name  string
	guard int64 // revision
}

const (
	byUpgrade  = "an upgrade"
	byProcess  = "a process"
	byOperator = "an operator"
	byFollower = "a process of the present layout"
)

func newWorld(seed uint64, mutate func(*pb.TxnRequest)) *world {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 1)), etcd: storetest.New(storetest.Options{}), keys: wire.Keys{Keys: store.NewKeys("/b/")},
		mutate: mutate, events: 40,
	}
	w.root = storetest.NewManualBackend(w.etcd)
	w.etcd.OnCommit(w.committed)
	return w
}

func (w *world) errorf(format string, args ...any) {
	w.errs = append(w.errs, fmt.Sprintf(format, args...))
}

// as carries out a transaction.
func (w *world) as(by string, t *pb.TxnRequest) *pb.TxnResponse {
	before := w.by
	w.by = by
	defer func() { w.by = before }()
	resp, err := w.root.Txn(context.Background(), t)
	if err != nil {
		panic(err)
	}
	return resp
}

func (w *world) all(prefix string) (kvs []*mvccpb.KeyValue) {
	w.root.Do(func(e *storetest.Etcd) { kvs = slices.Collect(e.All(prefix)) })
	return kvs
}

func (w *world) value(key string) *mvccpb.KeyValue {
	for _, kv := range w.all(key) {
		if string(kv.Key) == key {
			return kv
		}
	}
	return nil
}

// decoded returns a spec of any layout.
func decoded(kv *mvccpb.KeyValue) (s pool.Spec, version int) {
	if s, _, err := wire.DecodeSpec("k", kv.Value, kv.ModRevision); err == nil {
		return s, 2
	}
	for _, limit := range []int{0, 1, 2, 3} {
		for _, paused := range []bool{false, true} {
			if s := specOf(limit, paused); string(kv.Value) == oldSpec(s, "") {
				return s, 1
			}
		}
	}
	return pool.Spec{}, 0
}

// committed checks what must hold at each revision.
func (w *world) committed(rev int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
	for _, ev := range events {
		key, deleted := string(ev.Kv.Key), ev.Type == mvccpb.DELETE
		ofPools := strings.HasPrefix(key, w.keys.Pools())
		switch {
		case w.by == byProcess && ofPools && w.done && !deleted:
			w.errorf("%d: a process of the old layout has put %s after the upgrade", rev, key)
		case w.by != byUpgrade:
		case w.done:
			w.errorf("%d: an upgrade has changed %s after the version was put", rev, key)
		case strings.Contains(key, "/slots/"), strings.HasPrefix(key, w.keys.Hosts()), ofPools && deleted && strings.HasSuffix(key, "/spec"):
			w.errorf("%d: an upgrade has changed %s", rev, key)
		case ofPools && !deleted:
			w.rewritten(rev, ev)
		case strings.HasPrefix(key, w.keys.Tasks()):
			if spec := w.now(w.keys.Spec(pool.TaskPrefix + strings.TrimPrefix(key, w.keys.Tasks()))); spec == nil || spec.ModRevision != rev {
				w.errorf("%d: the task %s was put without its spec", rev, key)
			}
			if ev.PrevKv == nil {
				w.errorf("%d: the task %s was created", rev, key)
			}
		}
		if w.by == byUpgrade && w.any(w.keys.Hosts(), "") {
			w.errorf("%d: an upgrade has changed %s while a process is alive", rev, key)
		}
		if w.by == byUpgrade && key == w.keys.Layout() {
			w.versioned(rev)
		}
		w.done = w.done || key == w.keys.Layout()
	}
}

// now and any read etcd while a transaction is carried out.
func (w *world) now(key string) *mvccpb.KeyValue {
	for kv := range w.etcd.All(key) {
		if string(kv.Key) == key {
			return kv
		}
	}
	return nil
}

func (w *world) any(prefix, part string) bool {
	for kv := range w.etcd.All(prefix) {
		if strings.Contains(string(kv.Key), part) {
			return true
		}
	}
	return false
}

// rewritten checks a spec that an upgrade has put.
func (w *world) rewritten(rev int64, ev *mvccpb.Event) {
	key := string(ev.Kv.Key)
	if ev.PrevKv == nil {
		w.errorf("%d: an upgrade has created %s", rev, key)
		return
	}
	was, before := decoded(ev.PrevKv)
	is, after := decoded(ev.Kv)
	if was != is || before != 1 || after != 2 {
		w.errorf("%d: %s was %+v of version %d and is %+v of version %d", rev, key, was, before, is, after)
	}
	if w.any(strings.TrimSuffix(key, "spec")+"slots/", "") {
		w.errorf("%d: %s was put while slots are held", rev, key)
	}
	name := strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(key, w.keys.Pools()), "/spec"), pool.TaskPrefix)
	if task := w.now(w.keys.Task(name)); task != nil && task.ModRevision == ev.PrevKv.ModRevision {
		w.errorf("%d: %s is no longer the spec of the task", rev, key)
	}
}

// versioned checks the data when its version is put.
func (w *world) versioned(rev int64) {
	for kv := range w.etcd.All(w.keys.Pools()) {
		if _, version := decoded(kv); version != 2 || !strings.HasSuffix(string(kv.Key), "/spec") {
			w.errorf("%d: the version was put with %s", rev, kv.Key)
		}
	}
}

var errKilled = errors.New("killed")

// upgrader is the backend of one upgrade: before and after each of its requests something else happens.
type upgrader struct {
	store.Backend
	w *world
	// left is after how many transactions the process is killed: before the last one, or before its answer.
	left int
	lose bool
}

func (u *upgrader) Range(ctx context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	u.w.happen()
	return u.Backend.Range(ctx, req)
}

func (u *upgrader) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	u.w.happen()
	if u.left--; u.left < 0 && !u.lose {
		return nil, fmt.Errorf("%w: %w", errKilled, store.ErrDenied)
	}
	if len(req.Compare) > 128 || len(req.Success) > 128 {
		u.w.errorf("a transaction has %d compares and %d operations", len(req.Compare), len(req.Success))
	}
	if req = proto.CloneOf(req); u.w.mutate != nil {
		u.w.mutate(req)
	}
	before := u.w.by
	u.w.by = byUpgrade
	resp, err := u.Backend.Txn(ctx, req)
	if u.w.by = before; u.left < 0 && err == nil {
		return nil, fmt.Errorf("%w: %w", errKilled, store.ErrDenied)
	}
	if u.w.IntN(12) == 0 && u.w.events > 0 {
		return nil, store.ErrUnavailable // its answer is lost
	}
	return resp, err
}

// upgrade runs an upgrade, which may be killed.
func (w *world) upgrade(left int) error {
	w.depth++
	defer func() { w.depth-- }()
	_, err := registry.Layout{Backend: &upgrader{w.root, w, left, w.IntN(2) == 0}, Keys: w.keys.Keys}.Upgrade(context.Background())
	return err
}

// happen has things happen.
func (w *world) happen() {
	for w.events > 0 && w.IntN(3) > 0 {
		w.events--
		switch x := w.IntN(100); {
		case x < 8:
			w.start()
		case x < 14: // short, and its last write hangs
			w.start()
			w.work()
			w.end()
		case x < 30:
			w.end()
		case x < 55:
			w.work()
		case x < 65:
			w.arrive()
		case x < 72:
			w.clear()
		case x < 88:
			w.operate()
		case x < 91:
			w.follow()
		case w.depth < 3:
			_ = w.upgrade(w.IntN(8))
		}
	}
}

// start starts a process of the old layout. No process of it starts after the upgrade.
func (w *world) start() {
	if w.done || len(w.alive) > 1 {
		return
	}
	w.names++
	p := &process{name: fmt.Sprint("i", w.names)}
	guard := w.keys.Guard("one", p.name)
	p.guard = w.as(byProcess, &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Put(w.keys.Presence("one", p.name), []byte("x"), 0), store.Put(guard, []byte("x"), 0),
	}}).Header.Revision
	w.alive = append(w.alive, p)
}

// end ends the presence of a process. What it has sent may still arrive.
func (w *world) end() {
	if len(w.alive) == 0 {
		return
	}
	p := w.alive[0]
	w.alive = w.alive[1:]
	w.as(byProcess, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(w.keys.Presence("one", p.name))}})
}

// work sends a write of a process: slots that it claims, or a claim that waits. It arrives now or later.
func (w *world) work() {
	if len(w.alive) == 0 {
		return
	}
	p := w.alive[w.IntN(len(w.alive))]
	guard := w.keys.Guard("one", p.name)
	t := &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(guard, p.guard)}, Success: []*pb.RequestOp{store.Put(guard, []byte("x"), 0)}}
	name := w.pool()
	switch spec := w.value(w.keys.Spec(name)); {
	case w.IntN(2) == 0:
		t.Success = append(t.Success, store.Put(oldWaiter(w.keys.Keys, name, fmt.Sprint(w.IntN(9))), []byte("x"), 0), store.Put(oldQueued(w.keys.Keys, name), []byte("x"), 0))
	case spec == nil || !strings.Contains(string(spec.Value), `"v":1`):
		return
	default:
		t.Compare = append(t.Compare, store.ModEquals(w.keys.Spec(name), spec.ModRevision))
		t.Success = append(t.Success, store.Put(oldSlot(w.keys.Keys, name, 0, w.IntN(9)), []byte(`{"claim":"a","record":{"holder":{"host":"one","instance":"i"}}}`), 0))
	}
	if w.IntN(2) == 0 {
		w.hung = append(w.hung, t)
		return
	}
	if resp := w.as(byProcess, t); resp.Succeeded {
		p.guard = resp.Header.Revision
	}
}

// arrive carries out a write that has hung.
func (w *world) arrive() {
	if len(w.hung) > 0 {
		i := w.IntN(len(w.hung))
		w.as(byProcess, w.hung[i])
		w.hung = slices.Delete(w.hung, i, i+1)
	}
}

// clear ends the slots of all claims.
func (w *world) clear() {
	for _, kv := range w.all(w.keys.Pools()) {
		if strings.Contains(string(kv.Key), "/slots/") {
			w.as(byProcess, &pb.TxnRequest{Success: []*pb.RequestOp{store.Delete(string(kv.Key))}})
		}
	}
}

func (w *world) pool() string { return []string{"a", "b", "task.t"}[w.IntN(3)] }

// operate changes a pool with an operator's command of the old layout, or submits a run that declares a limit. After the
// upgrade there is none of these.
func (w *world) operate() {
	if w.done {
		return
	}
	name := w.pool()
	key, task, rev := w.keys.Spec(name), w.keys.Task("t"), int64(0)
	is := w.value(key)
	if is != nil {
		if rev = is.ModRevision; !strings.Contains(string(is.Value), `"v":1`) {
			return // the command can't read it
		}
	}
	var ops []*pb.RequestOp
	switch x := w.IntN(10); {
	case x < 2:
		ops = append(ops, store.Delete(key))
	case x < 5 && name == "task.t" && is == nil:
		ops = append(ops, store.Put(key, []byte(oldSpec(specOf(3, false), "")), 0), store.Put(task, []byte(`{"v":1}`), 0))
	case x < 6 && name == "task.t" && is != nil && w.value(task) != nil:
		ops = append(ops, store.Put(task, fmt.Appendf(nil, `{"v":1,"spec":%d}`, rev), 0))
	default:
		ops = append(ops, store.Put(key, []byte(oldSpec(specOf(w.IntN(4), w.IntN(2) == 0), "")), 0))
	}
	w.as(byOperator, &pb.TxnRequest{Compare: []*pb.Compare{store.ModEquals(key, rev)}, Success: ops})
}

func specOf(limit int, paused bool) pool.Spec {
	s := pool.DefaultSpec()
	s.Limit, s.Paused = limit, paused
	return s
}

// follow has a process of the present layout put its keys.
func (w *world) follow() {
	if w.done {
		name := w.pool()
		w.as(byFollower, &pb.TxnRequest{Success: []*pb.RequestOp{
			store.Put(w.keys.Guard("one", "n"), []byte("x"), 0), store.Put(w.keys.Demand(wire.DemandKey{Pool: name, Host: "one", Instance: "n"}), []byte("x"), 0),
		}})
	}
}

// run has some upgrades run, and then one that must succeed.
func (w *world) run() *world {
	defer w.root.Close()
	for range 4 {
		w.operate()
	}
	for range 2 {
		w.happen()
		_ = w.upgrade(w.IntN(12))
	}
	for len(w.alive) > 0 {
		w.end()
	}
	w.clear()
	w.events = 0
	want := map[string]pool.Spec{}
	for _, kv := range w.all(w.keys.Pools()) {
		if s, version := decoded(kv); version > 0 {
			want[string(kv.Key)] = s
		}
	}
	if err := w.upgrade(1000); err != nil {
		w.errorf("in the end: %v", err)
	}
	got := map[string]pool.Spec{}
	for _, kv := range w.all(w.keys.Pools()) {
		switch s, version := decoded(kv); {
		case version == 2:
			got[string(kv.Key)] = s
		case !strings.Contains(string(kv.Key), "/demands/"):
			w.errorf("%s is left in the end", kv.Key)
		}
	}
	if !maps.Equal(got, want) {
		w.errorf("in the end the pools are %v, and were %v", got, want)
	}
	for len(w.hung) > 0 {
		w.arrive()
	}
	if w.value(w.keys.Layout()) == nil {
		w.errorf("there is no version in the end")
	}
	return w
}

func TestUpgradesKeepWhatOthersDo(t *testing.T) {
	n := 600
	if testing.Short() {
		n = 150
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(n) {
			if w := newWorld(seed, nil).run(); len(w.errs) > 0 {
				t.Fatalf("seed %d: %s", seed, strings.Join(w.errs, "\n"))
			}
		}
	})
}

// without drops compares.
func without(drop func(*pb.TxnRequest, *pb.Compare) bool) func(*pb.TxnRequest) {
	return func(t *pb.TxnRequest) {
		t.Compare = slices.DeleteFunc(t.Compare, func(c *pb.Compare) bool { return drop(t, c) })
	}
}

func putsVersion(t *pb.TxnRequest) bool {
	return slices.ContainsFunc(t.Success, func(op *pb.RequestOp) bool { return string(op.GetRequestPut().GetKey()) == "/b/layout" })
}

// Each condition and each operation of an upgrade is needed.
func TestEveryPartOfAnUpgradeIsNeeded(t *testing.T) {
	onKey := func(key string) func(*pb.TxnRequest) {
		return without(func(_ *pb.TxnRequest, c *pb.Compare) bool { return string(c.Key) == key })
	}
	for name, mutate := range map[string]func(*pb.TxnRequest){
		"no process is alive": onKey("/b/hosts/"),
		"there is no version": onKey("/b/layout"),
		"the specs are as they were read": without(func(_ *pb.TxnRequest, c *pb.Compare) bool {
			return strings.HasSuffix(string(c.Key), "/spec") && len(c.RangeEnd) == 0
		}),
		"no slots are held": without(func(t *pb.TxnRequest, c *pb.Compare) bool {
			return strings.HasSuffix(string(c.Key), "/slots/") && !putsVersion(t)
		}),
		"what is deleted is as it was read": without(func(t *pb.TxnRequest, c *pb.Compare) bool {
			return len(c.RangeEnd) > 0 && t.Success[0].GetRequestDeleteRange() != nil && string(c.Key) != "/b/hosts/"
		}),
		"the pools are as they were read": without(func(t *pb.TxnRequest, c *pb.Compare) bool {
			return putsVersion(t) && string(c.Key) == "/b/pools/"
		}),
		"the guards are as they were read": without(func(t *pb.TxnRequest, c *pb.Compare) bool {
			return putsVersion(t) && string(c.Key) == "/b/guards/"
		}),
		"guards are deleted": func(t *pb.TxnRequest) {
			t.Success = slices.DeleteFunc(t.Success, func(op *pb.RequestOp) bool {
				return strings.HasPrefix(string(op.GetRequestDeleteRange().GetKey()), "/b/guards/")
			})
		},
		"the task is put again": func(t *pb.TxnRequest) {
			t.Success = slices.DeleteFunc(t.Success, func(op *pb.RequestOp) bool {
				return strings.HasPrefix(string(op.GetRequestPut().GetKey()), "/b/tasks/")
			})
		},
		"the version is last": func(t *pb.TxnRequest) {
			if !putsVersion(t) {
				t.Success = append(t.Success, store.Put("/b/layout", []byte(`{"v":2}`), 0))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for seed := range uint64(600) {
					if w := newWorld(seed, mutate).run(); len(w.errs) > 0 {
						t.Logf("seed %d: %s", seed, w.errs[0])
						return
					}
				}
				t.Error("no schedule has noticed it")
			})
		})
	}
}
