package registry_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/wire"
)

// fates are all prefixes of keys, and whether the upgrade deletes what is there. It waits until nothing is below hosts/.
var fates = map[string]bool{
	"guards/": true, "revoke/": true,
	"leases/": false, "limits": false, "runs/": false, "active/": false, "work/": false, "steps/": false, "ready/": false,
	"canceled/": false, "logs/": false, "followers/": false, "events/": false, "usage/": false, "tasks/": false,
	"coordinator/": false, "sources/": false, "workers/": false, "actions/": false,
}

// outdated are the keys of a pool that the upgrade deletes: those of each kind, and what no berth has put.
func outdated(k store.Keys, name string) []string {
	return []string{
		oldWaiter(k, name, "0001-a"), oldQueued(k, name), k.Pool(name) + "dispatcher", k.Pool(name) + "recall",
		k.Pool(name) + "grants/one/i/a", k.Pool(name) + "other", k.Pool(name) + "spec/other", k.Pool(name) + "slots",
	}
}

// old puts data of the old layout, and returns the specs that must be there after the upgrade.
func (c *cluster) old(pools int) map[string]pool.Spec {
	c.t.Helper()
	want := map[string]pool.Spec{}
	var ops []*pb.RequestOp
	put := func(key, value string) { ops = append(ops, store.Put(key, []byte(value), 0)) }
	for i := range pools {
		name, s, retain := fmt.Sprintf("p%02d", i), oldSpecs[i%len(oldSpecs)], ""
		if i%5 == 0 && i > 0 {
			retain = "1s"
		}
		if s.LeaseDuration += time.Duration(i) * time.Second; s.Limit > 0 {
			s.Limit = i + 1
		}
		put(c.keys.Spec(name), oldSpec(s, retain))
		want[name] = s
		for _, key := range outdated(c.keys.Keys, name) {
			put(key, "x")
		}
	}
	for _, key := range outdated(c.keys.Keys, "deleted") {
		put(key, "x")
	}
	put(c.keys.Pools()+"key", "x")
	for prefix := range fates {
		put(c.keys.Prefix()+prefix, "x")
		if strings.HasSuffix(prefix, "/") {
			put(c.keys.Prefix()+prefix+"one/a", "x")
		}
	}
	for some := range slices.Chunk(ops, 100) {
		c.txn(some...)
	}
	return want
}

// upgraded checks what is there after an upgrade.
func (c *cluster) upgraded(want map[string]pool.Spec) {
	c.t.Helper()
	if err := c.layout().Check(c.t.Context()); err != nil {
		c.t.Error(err)
	}
	got := map[string]pool.Spec{}
	all, err := store.ReadAll(c.ctx(), c.client, c.keys.Pools())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, kv := range all.KVs {
		key := string(kv.Key)
		s, counted, err := wire.DecodeSpec(key, kv.Value, kv.ModRevision)
		name := strings.TrimSuffix(strings.TrimPrefix(key, c.keys.Pools()), "/spec")
		if err != nil || key != c.keys.Spec(name) || counted.Since != kv.ModRevision {
			c.t.Errorf("%s: %+v, %v", key, counted, err)
		}
		got[name] = s
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("the pools (-want +got):\n%s", diff)
	}
	for prefix, goes := range fates {
		if n := c.keysUnder(c.keys.Prefix() + prefix); (n == 0) != goes {
			c.t.Errorf("%d keys are below %s", n, prefix)
		}
	}
}

func TestPoolsAreKeptAndAllElseOfThemIsDeleted(t *testing.T) {
	c := newCluster(t)
	want := c.old(70)
	for i := range 25 {
		var ops []*pb.RequestOp
		for j := range 100 {
			ops = append(ops, store.Put(oldWaiter(c.keys.Keys, "p01", fmt.Sprintf("0002-%02d-%02d", i, j)), []byte("x"), 0))
		}
		c.txn(ops...)
	}
	before := c.keysUnder(c.keys.Prefix())
	l, ops, txns, most := c.layout(), 0, 0, int64(0)
	l.Backend = seam{c.client, func(r *pb.TxnRequest) error {
		ops, txns = max(ops, len(r.Compare), len(r.Success)), txns+1
		return nil
	}, func(r *pb.TxnResponse) {
		deleted := int64(0)
		for _, one := range r.Responses {
			deleted += one.GetResponseDeleteRange().GetDeleted()
		}
		most = max(most, deleted)
	}}
	done, err := l.Upgrade(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.upgraded(want)
	after := c.keysUnder(c.keys.Prefix())
	if done.Already || done.Pools != 70 || int(done.Keys) != before-after+1 || !slices.Equal(done.Retained, []string{"p05", "p10", "p15", "p20", "p25", "p30", "p35", "p40", "p45", "p50", "p55", "p60", "p65"}) {
		t.Errorf("of %d keys, %d are left: %+v", before, after, done)
	}
	if ops > 128 || most > 1000 {
		t.Errorf("a transaction has %d compares or operations, and one deletes %d keys", ops, most)
	}
	t.Logf("%d transactions of at most %d operations, which delete at most %d keys", txns, ops, most)
	revision := c.get(c.keys.Layout()).ModRevision
	if again, err := c.layout().Upgrade(t.Context()); err != nil || !cmp.Equal(again, registry.Upgraded{Already: true}) {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, rev, _ := (store.Pages{Prefix: "/"}).Count(t.Context(), c.client); rev != revision {
		t.Error("the second upgrade has changed something")
	}
}

func TestAnEmptyEtcdIsUpgraded(t *testing.T) {
	c := newCluster(t)
	if done, err := c.layout().Upgrade(t.Context()); err != nil || !cmp.Equal(done, registry.Upgraded{}) {
		t.Errorf("%+v, %v", done, err)
	}
	if err := c.layout().Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// The limits of claims do not matter: whatever keeps the data from being upgraded is named, and nothing is done.
func TestWhatKeepsTheDataFromBeingUpgradedIsNamed(t *testing.T) {
	record := func(claim, host string) string {
		return fmt.Sprintf(`{"v":1,"n":1,"claim":%q,"record":{"pools":{"db":1},"holder":{"host":%q,"instance":"i"},"since":"2026-01-01T00:00:00Z"}}`, claim, host)
	}
	many := func(key func(int) string, value func(int) string) map[string]string {
		m := map[string]string{}
		for i := range 15 {
			m[key(i)] = value(i)
		}
		return m
	}
	k := store.NewKeys(store.DefaultPrefix)
	x := func(int) string { return "x" }
	for name, tc := range map[string]struct {
		put              map[string]string
		code             problem.Code
		processes, named int
		want             []string
	}{
		"a process": {map[string]string{k.Presence("one", "i"): "x"}, problem.Precondition, 1, 0,
			[]string{"the data under /berth/ is in use: these processes are alive: one/i; stop every berth process"}},
		"a process with a long name": {map[string]string{k.Presence(strings.Repeat("h", 63), strings.Repeat("i", 63)): "x"}, problem.Precondition, 1, 0,
			[]string{strings.Repeat("h", 63) + "/" + strings.Repeat("i", 63) + ";"}},
		"a claim": {map[string]string{oldSlot(k, "db", 1, 2): record("a", "one"), oldSlot(k, "db", 1, 3): `{"v":1,"n":1,"claim":"a","main":"db/1/2"}`}, problem.Precondition, 0, 1,
			[]string{"these claims are held: one/i/a; stop"}},
		"both": {map[string]string{k.Presence("one", "i"): "x", oldSlot(k, "none", 1, 2): record("a", "two")}, problem.Precondition, 1, 1,
			[]string{"these processes are alive: one/i; these claims are held: two/i/a; stop"}},
		"many processes": {many(func(i int) string { return k.Presence("h", fmt.Sprintf("i%02d", i)) }, x), problem.Precondition, 11, 0,
			[]string{"h/i00, h/i01,", "h/i09, and more; stop"}},
		"many claims": {many(func(i int) string { return oldSlot(k, "db", 0, i) }, func(i int) string { return record(fmt.Sprintf("c%02d", i), "one") }), problem.Precondition, 0, 11,
			[]string{"one/i/c00, one/i/c01,", "one/i/c09, and more; stop"}},
		"a part of a claim": {map[string]string{oldSlot(k, "db", 1, 3): `{"v":1,"n":1,"claim":"a","main":"db/1/2"}`}, problem.Precondition, 0, 1,
			[]string{"the key " + oldSlot(k, "db", 1, 3) + " of a claim without a holder"}},
		"a slot that can't be read": {map[string]string{oldSlot(k, "db", 1, 3): `x`}, problem.Precondition, 0, 1, []string{oldSlot(k, "db", 1, 3) + ", which can't be read"}},
		"a key among the slots":     {map[string]string{k.Slots("db") + "\x1b": `x`}, problem.Precondition, 0, 1, []string{k.Slots("db") + "^[, which can't"}},
		"a holder with no name":     {map[string]string{oldSlot(k, "db", 1, 3): record("a", "\x1b")}, problem.Precondition, 0, 1, []string{oldSlot(k, "db", 1, 3)}},
		"a spec that can't be read": {map[string]string{k.Spec("x"): `{"v":1,"limit":-7,"lease_duration":"5m","reserve_after":"0s"}`, k.Spec("y"): `?`}, problem.CorruptValue, 0, 0,
			[]string{k.Spec("x"), "limit", k.Spec("y"), "then run 'berth upgrade' again"}},
		"a spec that is newer":    {map[string]string{k.Spec("x"): `{"v":3}`}, problem.CorruptValue, 0, 0, []string{k.Spec("x"), "version 3"}},
		"a spec of no pool":       {map[string]string{k.Spec("X"): anOldSpec}, problem.CorruptValue, 0, 0, []string{k.Spec("X")}},
		"a present spec, no pool": {map[string]string{k.Spec("db"): anOldSpec, k.Spec("x"): `{"v":2}`}, problem.CorruptValue, 0, 0, []string{k.Spec("x")}},
		"many specs":              {many(func(i int) string { return k.Spec(fmt.Sprintf("x%02d", i)) }, x), problem.CorruptValue, 0, 0, []string{k.Spec("x09"), "; and more"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.old(2)
			for key, value := range tc.put {
				c.put(key, value)
			}
			before, _ := store.ReadAll(t.Context(), c.client, "/")
			_, err := c.layout().Upgrade(t.Context())
			if problem.CodeOf(err) != tc.code {
				t.Fatalf("got %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			var busy *registry.BusyError
			if errors.As(err, &busy) != (tc.code == problem.Precondition) {
				t.Fatalf("it is busy: %v", err)
			}
			if busy != nil && (len(busy.Processes) != tc.processes || len(busy.Claims) != tc.named) {
				t.Errorf("%d processes and %d claims", len(busy.Processes), len(busy.Claims))
			}
			if after, _ := store.ReadAll(t.Context(), c.client, "/"); after.Revision != before.Revision {
				t.Error("something was changed")
			}
			// Without it, nothing else keeps the data from being upgraded.
			for key := range tc.put {
				c.txn(store.Delete(key))
			}
			if _, err := c.layout().Upgrade(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTwoUpgradesDoTheSameAsOne(t *testing.T) {
	c := newCluster(t)
	want := c.old(200)
	var wg sync.WaitGroup
	var mu sync.Mutex
	keys := int64(0)
	before := c.keysUnder(c.keys.Prefix())
	for range 3 {
		wg.Go(func() {
			done, err := c.layout().Upgrade(c.ctx())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			keys += done.Keys
		})
	}
	wg.Wait()
	c.upgraded(want)
	if after := c.keysUnder(c.keys.Prefix()); int(keys) != before-after+1 {
		t.Errorf("of %d keys, %d are left, and %d were deleted", before, after, keys)
	}
}

// cut is a backend that ends at a transaction: before etcd has it, or before the answer.
type cut struct {
	store.Backend
	left int
	lose bool
}

var errCut = problem.New(problem.Stopping, "the process was killed")

func (c *cut) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if c.left--; c.left < 0 && !c.lose {
		return nil, errCut
	}
	resp, err := c.Backend.Txn(ctx, req)
	if c.left < 0 && err == nil {
		err = errCut
	}
	return resp, err
}

// An upgrade that ends at any of its transactions is completed by the next one. Until then no process starts.
func TestAnUpgradeMayBeInterrupted(t *testing.T) {
	for _, lose := range []bool{false, true} {
		c := newCluster(t)
		for at, done := 0, false; !done; at++ {
			c.txn(store.DeleteAll("/"))
			want := c.old(70)
			l := c.layout()
			l.Backend = &cut{c.client, at, lose}
			_, err := l.Upgrade(t.Context())
			if done = err == nil; !done {
				if !errors.Is(err, errCut) {
					t.Fatal(err)
				}
				if err := c.layout().Check(t.Context()); (err == nil) != (c.keysUnder(c.keys.Layout()) == 1) {
					t.Errorf("after transaction %d: %v", at, err)
				}
				if _, err := c.layout().Upgrade(t.Context()); err != nil {
					t.Errorf("after transaction %d: %v", at, err)
				}
			}
			if done && at < 7 {
				t.Errorf("it has only %d transactions", at)
			}
			c.upgraded(want)
		}
	}
}

// An answer that is lost does not fail an upgrade.
func TestAnUpgradeOutlastsLostAnswers(t *testing.T) {
	c := newCluster(t)
	want := c.old(40)
	l := c.layout()
	l.Backend = &lossy{c.client, 4}
	if _, err := l.Upgrade(t.Context()); err != nil {
		t.Error(err)
	}
	c.upgraded(want)
	c.txn(store.DeleteAll("/"))
	c.old(1)
	l.Backend = &lossy{c.client, 1000}
	if _, err := l.Upgrade(t.Context()); err != nil { // the version is there when it reads again
		t.Error(err)
	}
}

// What etcd refuses, and what others change again and again, ends an upgrade. It does not try for long.
func TestAnUpgradeThatCanNotBeMadeEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(c *seamed) error
		code   problem.Code
		txns   int
	}{
		"denied": {func(*seamed) error { return store.ErrDenied }, problem.EtcdDenied, 1},
		"full":   {func(*seamed) error { return store.ErrNoSpace }, problem.EtcdFull, 1},
		"away":   {func(*seamed) error { return store.ErrUnavailable }, problem.EtcdUnavailable, 9},
		"others change it": {func(c *seamed) error {
			return c.put(oldWaiter(c.keys, "p00", "1"), "x")
		}, problem.Precondition, 9},
		"given up": {func(c *seamed) error { c.cancel(); return context.Canceled }, problem.EtcdUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := &seamed{b: storetest.NewManualBackend(storetest.New(storetest.Options{})), keys: store.NewKeys("/b/"), cancel: cancel}
				defer c.b.Close()
				if err := c.put(c.keys.Spec("p00"), anOldSpec); err != nil {
					t.Fatal(err)
				}
				txns := 0
				_, err := registry.Layout{Keys: c.keys, Backend: seam{Backend: c.b, before: func(*pb.TxnRequest) error { txns++; return tc.before(c) }}}.Upgrade(ctx)
				if problem.CodeOf(err) != tc.code || txns > 2*tc.txns+2 || txns < tc.txns {
					t.Errorf("after %d transactions: %v", txns, err)
				}
				if _, err := (registry.Layout{Keys: c.keys, Backend: c.b}).Upgrade(t.Context()); err != nil {
					t.Errorf("then: %v", err)
				}
			})
		})
	}
}

// seamed is a stand-in for etcd that others change.
type seamed struct {
	b      *storetest.Backend
	keys   store.Keys
	cancel func()
}

func (c *seamed) put(key, value string) error {
	_, err := c.b.Txn(context.Background(), &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}})
	return err
}

// The pool of a task that a run has created is not an operator's after the upgrade.
func TestPoolsOfTasksStayThoseOfRuns(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"task.mine", "task.again"} {
		c.txn(store.Put(c.keys.Spec(name), []byte(anOldSpec), 0), store.Put(c.keys.Task(strings.TrimPrefix(name, pool.TaskPrefix)), []byte(`{"v":1}`), 0))
	}
	c.put(c.keys.Task("again"), fmt.Sprintf(`{"v":1,"spec":%d}`, c.get(c.keys.Spec("task.again")).ModRevision))
	c.put(c.keys.Task("theirs"), `{"v":1}`)
	c.put(c.keys.Task("unreadable"), `?`)
	for _, name := range []string{"task.theirs", "task.unreadable"} {
		c.put(c.keys.Spec(name), anOldSpec)
	}
	if done, err := c.layout().Upgrade(t.Context()); err != nil || done.Pools != 4 {
		t.Fatal(done, err)
	}
	for name, together := range map[string]bool{"mine": true, "again": true, "theirs": false, "unreadable": false} {
		task, spec := c.get(c.keys.Task(name)), c.get(c.keys.Spec(pool.TaskPrefix+name))
		if (task.ModRevision == spec.ModRevision) != together || together && string(task.Value) != `{"v":1}` {
			t.Errorf("%s: %s, put at %d, with the spec of %d", name, task.Value, task.ModRevision, spec.ModRevision)
		}
	}
}

// Each prefix that berth spells has a fate.
func TestThePrefixesOfAllKeysAreKnown(t *testing.T) {
	known := append(slices.Collect(maps.Keys(fates)), "hosts/", "pools/")
	known = append(known, "pending/", "ids/", "offers/", "dispatcher/", "layout") // the old layout has none
	for key := range allKeys(store.NewKeys("/b/")) {
		rest := strings.TrimPrefix(key, "/b/")
		if rest != "" && !slices.ContainsFunc(known, func(p string) bool { return strings.HasPrefix(rest, p) }) {
			t.Errorf("%s has no fate", key)
		}
	}
}

// allKeys returns what each method of the keys spells, by calling it.
func allKeys(k store.Keys) iter.Seq[string] {
	return func(yield func(string) bool) {
		v := reflect.ValueOf(k)
		for i := range v.NumMethod() {
			m := v.Method(i)
			if m.Type().NumOut() != 1 || m.Type().Out(0).Kind() != reflect.String {
				continue
			}
			var args []reflect.Value
			for j := range m.Type().NumIn() {
				arg := reflect.New(m.Type().In(j)).Elem()
				if arg.Kind() == reflect.String {
					arg.SetString("x")
				}
				args = append(args, arg)
			}
			if !yield(m.Call(args)[0].String()) {
				return
			}
		}
	}
}
