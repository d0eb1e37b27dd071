package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

// do has the loop do something and waits for it.
func (c *crew) do(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	c.ask(t.Context(), func() { f(); close(done) })
	<-done
}

// blind has the worker hear nothing of cancel marks but what a test delivers.
func (y *yard) blind(w *Worker) {
	w.canceled.feed = store.NewFeed(y.runs.Backend, "/nowhere/", hclog.NewNullLogger(), func() {})
}

// blindWorker is [yard.worker] for a worker that is blind to marks.
func (y *yard) blindWorker(host string, concurrency int, r Runner) *crew {
	y.t.Helper()
	o := instance.Options{Endpoints: []string{y.etcd.Endpoint()}, Host: host, Instance: "worker", Role: Role, Capacity: concurrency, Queues: []string{step.DefaultQueue}}
	client, err := instance.Open(y.t.Context(), o)
	if err != nil {
		y.t.Fatal(err)
	}
	c := &crew{client: client, done: make(chan struct{})}
	c.Worker = New(Config{Client: client, Queues: []string{step.DefaultQueue}, Concurrency: concurrency, Runner: r})
	y.blind(c.Worker)
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.done)
		_ = c.Run(ctx)
	}()
	return c
}

// markOf reads a mark as etcd has it.
func (y *yard) gapLine(t *testing.T, key string) *mvccpb.KeyValue {
	t.Helper()
	all, err := store.ReadAll(t.Context(), y.runs.Backend, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range all.KVs {
		if string(kv.Key) == key {
			return kv
		}
	}
	t.Fatal("no mark")
	return nil
}

// a mark of an attempt before, which the worker hears of late.
func TestAnOldMarkStopsNoNewAttempt(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("notified before the take: ", before), func(t *testing.T) {
			y, s := newYard(t), newStage()
			w := y.blindWorker("a", 2, s)
			defer w.close(t)
			y.submit("r", fan("m", 1, 0, others), fan("z", 1, 0))
			s.runs(t, "r/m/000000", "r/z/000000")
			id := idOf(t, "r/m/000000")
			if _, err := y.step.Cancel(t.Context(), y.runs, id); err != nil {
				t.Fatal(err)
			}
			mark := y.gapLine(t, y.runs.Keys.CanceledStep(id))
			deliver := func() {
				w.do(t, func() { w.cancels(store.FeedMessage{Events: []*mvccpb.Event{{Type: mvccpb.Event_PUT, Kv: mark}}}) })
			}
			if before {
				deliver() // it is stopped, and the delete of the mark is slow to come
			} else {
				s.end("r/m/000000", step.Outcome{Status: step.Failed, ExitCode: 1}) // by itself
			}
			eventually(t, "it has ended", func() bool { return y.status("r/m/000000").Ended() })
			which := step.Which{Step: "m", Index: 0}
			if _, err := y.step.Retry(t.Context(), y.runs, "r", "again", which); err != nil {
				t.Fatal(err)
			}
			if !before {
				s.runs(t, "r/m/000000", "r/z/000000")
				deliver() // only now
			}
			ok := false
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
				ok = len(s.running()) == 2
			}
			if !ok || y.status("r/m/000000") != step.Running {
				t.Errorf("the new attempt was stopped by the mark of the old one: %s, running %v", y.status("r/m/000000"), s.running())
			}
		})
	}
}

// slow makes the folder of what is published next slow to write: m[1] enters the wait queue
// only when the returned function is called.
func (y *yard) slow(t *testing.T) (w *crew, s *stage, goOn func()) {
	t.Helper()
	s = newStage()
	y.pool("db", 0)
	w = y.worker("a", t.TempDir(), 1, s)
	y.submit("r", fan("m", 3, 0, from("db", 1), others))
	eventually(t, "the first is in the wait queue", func() bool { l := y.line("db"); return len(l) == 1 && l[0] == "m[0]" })
	second := idOf(t, "r/m/000001")
	fifo := ""
	w.do(t, func() {
		for _, cl := range w.queues[0].requirements {
			for _, o := range cl.all {
				if o.ID() == second {
					fifo = filepath.Join(w.folders.name(o.Published), publishedFile)
				}
			}
		}
	})
	if err := errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o700), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := y.step.Cancel(t.Context(), y.runs, idOf(t, "r/m/000000")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second is about to enter the wait queue", func() bool {
		on := false
		w.do(t, func() { _, on = w.waiting[second] })
		return on
	})
	return w, s, func() {
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
	}
}

// a wish to leave that comes before the wish to stand there.
func TestWhatLeavesTheLineBeforeItStandsThereLeavesIt(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	w, _, goOn := y.slow(t)
	defer w.close(t)
	second := idOf(t, "r/m/000001")
	if _, err := y.step.Cancel(t.Context(), y.runs, second); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is asked to leave", func() bool {
		left := false
		w.do(t, func() { left = w.waiting[second].left })
		return left
	})
	goOn()
	ok := false
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !ok; <-time.After(50 * time.Millisecond) {
		l := y.line("db")
		ok = len(l) == 1 && l[0] == "m[2]"
	}
	if !ok {
		t.Errorf("the wait queue is %v: what is canceled stays there, and nothing else takes its place", y.line("db"))
	}
}

// the same with a drain: it hangs for as long as there are no slots.
func TestADrainEndsWhatDoesNotStandInLineYet(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	w, _, goOn := y.slow(t)
	defer func() { w.Stop(t.Context()); w.close(t) }()
	ended := w.Drain(t.Context())
	w.do(t, func() {})
	goOn()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Errorf("a worker that drains has nothing and does not end: the wait queue is %v", y.line("db"))
	}
}

// what comes first for another worker is passed by what is less urgent.
func TestALowerPriorityLeavesSlotsForAHigherOne(t *testing.T) {
	q := queueOf(t, "q", "a!5", "b")
	c := asked(1, q)
	c.now, c.turn = time.Unix(100, 0), time.Second
	for _, cl := range q.requirements {
		for _, o := range cl.all {
			o.seen = c.now
		}
	}
	for i := 0; ; i++ {
		var seen store.Snapshot
		p := lease.PresenceRecord{Role: Role, Queues: []string{"q"}}
		seen.KVs = append(seen.KVs, &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(fmt.Sprint("other", i), Role)), Value: presence(p)})
		c.peers = newPeers(pickKeys, "h", Role, hclog.NewNullLogger())
		c.peers.message(store.FeedMessage{Snapshot: &seen})
		all := q.requirements["/"]
		if all == nil {
			for _, cl := range q.requirements {
				all = cl
			}
		}
		if !c.peers.mine(all.all[0]) && c.peers.mine(all.all[1]) {
			break
		}
	}
	if got := whatIsPicked(c); got != "|" {
		t.Errorf("with one free slot it takes %q while a of priority 5 is published, and has no free slot for it when its turn comes", got)
	}
}

// the pause of a class is not forgotten when it was had.
func TestThePauseOfAClassIsForgottenOnceItIsHad(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	y.submit("r", fan("m", 1, 0, from("db", 1), others))
	eventually(t, "published", func() bool { return y.status("r/m/000000") == step.Scheduled })
	if _, err := (registry.Registry{Backend: y.runs.Backend, Keys: y.runs.Keys}).Delete(t.Context(), "db", nil); err != nil {
		t.Fatal(err)
	}
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	eventually(t, "it was refused", func() bool { n := 0; w.do(t, func() { n = len(w.resting) }); return n > 0 })
	y.pool("db", 1)
	s.runs(t, "r/m/000000")
	w.do(t, func() {
		for name, r := range w.resting {
			t.Errorf("%s was had, and its next refusal is %s long", name, 2*r.pause)
		}
	})
	s.end("r/m/000000", succeeded)
	y.is("r", run.Succeeded)
}

// one write that took long.
func TestOneSlowWriteMakesNoLongTurns(t *testing.T) {
	w := New7()
	drop := func(wrote time.Duration) {
		w.drop(&execution{w: w, t: &step.Taken{}, place: nil, give: func() {}, wrote: wrote})
	}
	for range 50 {
		drop(3 * time.Millisecond)
	}
	if w.turn() != shortTurn {
		t.Fatal(w.turn())
	}
	drop(time.Minute)
	n := 0
	for ; w.turn() > shortTurn; n++ {
		drop(3 * time.Millisecond)
	}
	if n > 16 {
		t.Errorf("%d instances must end until a turn is as short as before", n)
	}
}

func New7() *Worker {
	return &Worker{active: map[store.StepID]*execution{}, metrics: newMetrics(nil, 1)}
}

// An instance is published again under the same order while its old publication is in the
// wait queue.
func TestNobodyStandsInLineForAnOldPublication(t *testing.T) {
	y, s := newYard(t), newStage()
	y.pool("db", 0)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0, from("db", 1), others))
	eventually(t, "it is in the wait queue", func() bool { return len(y.line("db")) == 1 })
	var kv *mvccpb.KeyValue
	all, err := store.ReadAll(t.Context(), y.runs.Backend, y.runs.Keys.Ready(step.DefaultQueue))
	if err != nil || len(all.KVs) != 1 {
		t.Fatal(err, len(all.KVs))
	}
	kv = all.KVs[0]

	left := false
	w.do(t, func() {
		w.message(w.queues[0], store.FeedMessage{Events: []*mvccpb.Event{
			{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: kv.Key}},
			{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{Key: kv.Key, Value: kv.Value, ModRevision: kv.ModRevision + 5}},
		}})
		for _, l := range w.waiting {
			left = l.left
		}
	})
	if !left {
		t.Error("it waits for slots for a publication that is gone, and will be refused when its turn comes")
	}
}

// An instance that is not published any more has most likely just been granted here: nothing
// else takes its capacity, or the place of an earlier one, until its claim is answered.
func TestAnInstanceThatIsNoLongerPublishedKeepsItsCapacity(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.pool("db", 0)
	w := y.worker("a", "", 1, newStage())
	defer w.close(t)
	y.submit("r", fan("m", 2, 0, from("db", 1), others))
	eventually(t, "the first is in the wait queue", func() bool { return slices.Equal(y.line("db"), []string{"m[0]"}) })
	var claimed []store.StepID
	w.do(t, func() {
		key := y.runs.Keys.Ready(step.DefaultQueue) + w.waiting[idOf(t, "r/m/000000")].order
		w.message(w.queues[0], store.FeedMessage{Events: []*mvccpb.Event{{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key)}}}})
		w.take(t.Context())
		claimed = slices.Collect(maps.Keys(w.waiting))
	})
	if len(claimed) != 1 || claimed[0] != idOf(t, "r/m/000000") {
		t.Errorf("%v are claimed while the claim of the first is not answered", claimed)
	}
	eventually(t, "the second follows it", func() bool { return slices.Equal(y.line("db"), []string{"m[1]"}) })
}

// a limit that a task gets while an instance of it runs that was taken without.
func TestARestartAfterATaskGotALimitStopsNothing(t *testing.T) {
	t.Parallel()
	y, s, dir := newYard(t), newStage(), t.TempDir()
	first := y.worker("a", dir, 1, s)
	y.submit("r", fan("m", 1, 0, ofTask("t"), others))
	s.runs(t, "r/m/000000")
	pools := registry.Registry{Backend: y.runs.Backend, Keys: y.runs.Keys}
	one := 1
	if _, err := pools.Set(t.Context(), step.TaskPool("t"), pool.Change{Limit: &one}); err != nil {
		t.Fatal(err)
	}
	first.leave()
	next := y.worker("a", dir, 1, s)
	defer next.close(t)
	for range 20 {
		<-time.After(time.Second)
		if y.status("r/m/000000") != step.Running {
			break
		}
	}
	i, _ := y.step.Get(t.Context(), idOf(t, "r/m/000000"))
	t.Log(i.Status, i.Error)
	if y.status("r/m/000000") != step.Running || len(s.running()) != 1 {
		t.Errorf("it was %s and is stopped: running %v", y.status("r/m/000000"), s.running())
	}
}

// canceled while it was unknown whether it was taken: it is started all the same.
func TestAnInstanceIsCanceledWhileTheOutcomeOfItsTakeIsUnknown(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newStage()
	var lost atomic.Int32
	f := &faulty{}
	f.txn = func(ctx context.Context, r *pb.TxnRequest) error {
		if strings.Contains(r.String(), "/ready/") && lost.Add(1) == 1 {
			_, _ = f.Backend.Txn(ctx, r) // it is carried out, and the answer is lost
			return fmt.Errorf("txn: %w", store.ErrUnavailable)
		}
		return nil
	}
	w := y.faultyWorker("a", "", 1, s, f)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0, others))
	id := idOf(t, "r/m/000000")
	eventually(t, "it is taken", func() bool { return y.status("r/m/000000") == step.Running })
	if _, err := y.step.Cancel(t.Context(), y.runs, id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker was notified of that", func() bool {
		why := ""
		w.do(t, func() { why = w.canceled.why(id, 0) })
		return why != ""
	})
	if w.Active() != 0 {
		t.Fatal("it is known already")
	}
	ok := false
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end) && !ok; <-time.After(50 * time.Millisecond) {
		ok = y.status("r/m/000000").Ended()
	}
	if !ok {
		t.Errorf("it was canceled, and is %s: %v", y.status("r/m/000000"), s.running())
	}
	s.end("r/m/000000", succeeded)
}

// the worker that comes first for an instance is busy for days; the others have
// always something that they come first for.
func TestTheOldestDoesNotStarve(t *testing.T) {
	var seen store.Snapshot
	for _, name := range []string{"a", "b"} {
		p := lease.PresenceRecord{Role: Role, Queues: []string{"q"}}
		seen.KVs = append(seen.KVs, &mvccpb.KeyValue{Key: []byte(pickKeys.Presence(name, Role)), Value: presence(p)})
	}
	peers := newPeers(pickKeys, "b", Role, hclog.NewNullLogger())
	peers.message(store.FeedMessage{Snapshot: &seen})
	q := newQueue(pickKeys, "q", access.Patterns{access.Everything})
	now, n := time.Unix(1000, 0), 0
	publish := func() {
		n++
		r := step.Ready{Run: fmt.Sprintf("r%06d", n), Step: "m"}
		key := pickKeys.Ready("q") + step.OrderOf(0, int64(n), 0, 0, r.Run)
		if err := q.put(&mvccpb.KeyValue{Key: []byte(key), Value: r.Encode(), ModRevision: int64(n)}, now); err != nil {
			t.Fatal(err)
		}
	}
	for range 8 {
		publish()
	}
	var first *offer
	for _, cl := range q.requirements {
		for _, o := range cl.all {
			if first == nil && !peers.mine(o) {
				first = o
			}
		}
	}
	// For an hour, b has one free slot each second, and one instance is published each second.
	for range 3600 {
		now = now.Add(time.Second)
		c := asked(1, q)
		c.now, c.turn, c.peers = now, shortTurn, peers
		c.slots = func(*requirement) map[string]int { return nil }
		for _, o := range pick(c).plain {
			q.remove(o.Key(pickKeys))
			if o == first {
				return
			}
		}
		publish()
	}
	t.Errorf("the oldest, %s, was passed by %d that came later, for an hour", first.Run, n)
}
