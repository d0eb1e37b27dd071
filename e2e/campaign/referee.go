//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berthhq/berth/e2e"
	"github.com/berthhq/berth/internal/store"
)

// violation is a promise that was not kept.
type violation struct {
	At    time.Duration // since the begin
	Phase int
	Rule  string
	Text  string
}

func (v violation) String() string {
	return fmt.Sprintf("%s, phase %d: %s: %s", v.At.Round(time.Millisecond), v.Phase, v.Rule, v.Text)
}

// referee judges, from etcd's history and from what jobs report.
type referee struct {
	cluster *cluster
	dir     string
	keys    store.Keys
	begun   time.Time

	mu         sync.Mutex // guards what follows
	history    *e2e.History
	runs       *e2e.RunHistory
	steps      *e2e.StepHistory
	counted    [3]int // violations of each that are known
	stays      *stays
	neighbors  *neighborhood
	at         int64 // etcd's history up to here was judged
	revisions  int   // that were judged
	pending    []record
	violations []violation
	loads      map[string]*loadState
	loadNames  []string // of those that there must be
	rests      bool
	phase      int
	journal    *bufio.Writer
	file       *os.File // of the journal
	watching   context.CancelFunc
	held       chan struct{} // not nil while nothing is watched
	claims     int           // that were granted, as etcd's history shows them
	standing   standstills
}

// loadState is what the referee knows of a host's load.
type loadState struct {
	conn net.Conn
	idle bool
}

func newReferee(c *cluster, dir string) *referee {
	r := &referee{
		cluster: c, dir: dir, keys: store.NewKeys("/berth/"), begun: time.Now(), loads: map[string]*loadState{}, rests: true,
	}
	r.history, r.runs, r.steps = e2e.NewHistory(r.keys), e2e.NewRunHistory(r.keys), e2e.NewStepHistory(r.keys)
	r.stays, r.neighbors = newStays(r.wrong), newNeighborhood(r.wrong)
	return r
}

// wrong notes a violation. The lock is held.
func (r *referee) wrong(rule, text string) {
	v := violation{time.Since(r.begun), r.phase, rule, text}
	r.violations = append(r.violations, v)
	if len(r.violations) <= 50 {
		fmt.Fprintf(os.Stderr, "VIOLATION at %s\n", v)
	}
}

// note is wrong for those that do not hold the lock.
func (r *referee) note(rule, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong(rule, text)
}

// write appends to the journal of the phase: all that the referee sees.
func (r *referee) write(what any) {
	if r.journal == nil {
		return
	}
	text, err := json.Marshal(what)
	if err == nil {
		_, err = r.journal.Write(append(text, '\n'))
	}
	if err != nil {
		r.wrong("campaign", "journal: "+err.Error())
		r.journal = nil
	}
}

// keepJournals is how many phases are kept as long as nothing is wrong.
const keepJournals = 4

// begin opens the journal of another phase.
func (r *referee) begin(phase int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = phase
	if err := r.flush(); err != nil {
		return err
	}
	name := func(n int) string { return filepath.Join(r.dir, fmt.Sprintf("journal-%04d.jsonl", n)) }
	if len(r.violations) == 0 {
		_ = os.Remove(name(phase - keepJournals))
	}
	var err error
	r.file, err = os.Create(name(phase))
	r.journal = bufio.NewWriterSize(r.file, 1<<16)
	return err
}

// flush ends the journal.
func (r *referee) flush() error {
	if r.journal == nil {
		return nil
	}
	err := errors.Join(r.journal.Flush(), r.file.Close())
	r.journal = nil
	return err
}

// listen takes the reports of jobs and loads.
func (r *referee) listen(path string) (io.Closer, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.hear(conn)
		}
	}()
	return l, nil
}

func (r *referee) hear(conn net.Conn) {
	defer conn.Close()
	var pid int
	host := ""
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			break // its process was killed
		}
		r.mu.Lock()
		pid = rec.PID
		r.write(rec)
		switch rec.What {
		case "hello":
			host = rec.Host
			r.loads[host] = &loadState{conn: conn}
			r.command(r.loads[host])
		case "idle":
			if s := r.loads[rec.Host]; s != nil && s.conn == conn {
				s.idle = r.rests
			}
		case "wrong":
			r.wrong("answer", rec.Job+": "+rec.Text)
		case "turn", "sent":
			r.neighbors.take(rec)
		default:
			r.stays.take(rec)
			if rec.What == "begin" && rec.Item == "" {
				r.pending = append(r.pending, rec)
			}
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stays.gone(pid)
	if s := r.loads[host]; s != nil && s.conn == conn {
		delete(r.loads, host)
	}
}

// command tells a load whether it rests.
func (r *referee) command(s *loadState) {
	text := "work\n"
	if r.rests {
		text = "rest\n"
	}
	s.idle = false
	_, _ = io.WriteString(s.conn, text) // one that has died says hello again
}

// rest has all loads rest, or work again.
func (r *referee) rest(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rests = yes
	for _, s := range r.loads {
		r.command(s)
	}
}

// watch follows all keys of etcd from the first revision on, until ctx ends.
func (r *referee) watch(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		r.mu.Lock()
		held := r.held
		one, cancel := context.WithCancel(ctx)
		r.watching = cancel
		next := r.at + 1
		r.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-ctx.Done():
			}
		} else {
			r.follow(one, r.cluster.members[i%len(r.cluster.members)].direct, next)
			pause(one, 50*time.Millisecond)
		}
		cancel()
	}
}

// silence is how long a member may say nothing before another one is asked.
const silence = 3 * time.Second

// follow watches through one member, until it falls silent.
func (r *referee) follow(ctx context.Context, e *clientv3.Client, next int64) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	messages := e.Watch(ctx, r.keys.Prefix(), clientv3.WithPrefix(), clientv3.WithRev(next))
	ask := time.NewTicker(300 * time.Millisecond)
	defer ask.Stop()
	silent := time.NewTimer(silence)
	defer silent.Stop()
	for {
		select {
		case m, ok := <-messages:
			switch {
			case !ok:
				return
			case errors.Is(m.Err(), rpctypes.ErrCompacted):
				r.note("campaign", fmt.Sprintf("revisions from %d on were compacted before they were judged", next))
				pause(ctx, time.Second)
				return
			case m.Err() != nil:
				return
			}
			next = r.deliver(m, next)
			silent.Reset(silence)
		case <-ask.C:
			_ = e.RequestProgress(ctx) // silence tells as much
		case <-silent.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// deliver judges what a watch tells, and returns where it goes on.
func (r *referee) deliver(m clientv3.WatchResponse, next int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil {
		return next // it is of the etcd that was
	}
	r.history.Received()
	if m.IsProgressNotify() {
		r.at = max(r.at, m.Header.Revision)
	}
	for len(m.Events) > 0 {
		rev, n := m.Events[0].Kv.ModRevision, 1
		for n < len(m.Events) && m.Events[n].Kv.ModRevision == rev {
			n++
		}
		r.revision(m.Events[:n])
		m.Events = m.Events[n:]
		r.at = max(r.at, rev)
	}
	r.tell()
	return max(next, r.at+1)
}

// seen is an event as the journal has it.
type seen struct {
	Rev   int64           `json:"rev"`
	Key   string          `json:"key"`
	Lease string          `json:"lease,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

func (r *referee) revision(events []*clientv3.Event) {
	r.revisions++
	for _, ev := range events {
		s := seen{Rev: ev.Kv.ModRevision, Key: string(ev.Kv.Key)}
		if ev.Type == mvccpb.Event_PUT {
			s.Lease = fmt.Sprintf("%x", ev.Kv.Lease)
			if json.Valid(ev.Kv.Value) {
				s.Value = ev.Kv.Value
			}
		}
		r.write(s)
		r.runs.Event((*mvccpb.Event)(ev))
		r.steps.Event((*mvccpb.Event)(ev))
	}
	all := make([]*mvccpb.Event, len(events))
	for i, ev := range events {
		all[i] = (*mvccpb.Event)(ev)
	}
	r.history.Apply(all...)
}

// tell holds what jobs were granted against etcd's history.
func (r *referee) tell() {
	r.pending = slices.DeleteFunc(r.pending, func(rec record) bool {
		if rec.Fence.Revision() <= r.at && !r.stays.undone(rec.Fence) {
			r.history.Granted(rec.Job, rec.Fence, rec.Slots)
		}
		return rec.Fence.Revision() <= r.at
	})
}

// collect takes over what the histories have found. All is at rest, so that what has
// ended is not needed any more.
func (r *referee) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, found := range [][]e2e.Violation{r.history.Violations(), r.runs.Violations(), r.steps.Violations()} {
		for _, v := range found[min(r.counted[i], len(found)):] {
			r.wrong(string(v.Rule), v.String())
		}
		r.counted[i] = len(found)
	}
	r.forget()
	r.steps.Forget()
}

// forget drops what has ended.
func (r *referee) forget() {
	r.standing.take(r.history)
	r.claims += r.history.Forget()
}

// caughtUp waits until everything that etcd has now was judged.
func (r *referee) caughtUp(ctx context.Context) error {
	rev, err := r.cluster.revision(ctx)
	if err != nil {
		return err
	}
	if !until(ctx, 20*time.Millisecond, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.at >= rev
	}) {
		return fmt.Errorf("the referee does not come up to revision %d: %w", rev, ctx.Err())
	}
	return nil
}

// unserved says what is still under way, nothing if all is at rest.
func (r *referee) unserved() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []string
	for _, name := range r.loadNames {
		if s := r.loads[name]; s == nil || !s.idle {
			left = append(left, fmt.Sprintf("the load of %s is not idle", name))
		}
	}
	if w := r.history.Waiting(); len(w) > 0 {
		left = append(left, fmt.Sprintf("%d claims wait: %s", len(w), brief(w)))
	}
	if n := r.history.Held(); n > 0 {
		var names []string
		for _, h := range r.history.Holding() {
			names = append(names, fmt.Sprintf("%s on %s/%s holds %v", h.Claim, h.Host, h.Instance, h.Pools))
		}
		left = append(left, fmt.Sprintf("%d claims are held: %s", n, brief(names)))
	}
	for _, status := range []string{"queued", "not_started", "running"} {
		if n := r.runs.Count(status); n > 0 {
			left = append(left, fmt.Sprintf("%d runs are %s", n, status))
		}
	}
	if open := r.stays.find(func(*stay) bool { return true }); len(open) > 0 {
		var names []string
		for _, x := range open {
			names = append(names, x.Job)
		}
		left = append(left, fmt.Sprintf("%d jobs are active: %s", len(open), brief(names)))
	}
	return left
}

func brief(names []string) string {
	if len(names) > 10 {
		return strings.Join(names[:10], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// hold stops watching: etcd is about to be restored from a snapshot. From then on, jobs whose
// grants are not in the snapshot are not judged: other jobs can get their slots as soon as the
// members are up.
func (r *referee) hold(snapshot int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stays.restored(snapshot, snapshot+e2e.RevisionBump)
	r.held = make(chan struct{})
	if r.watching != nil {
		r.watching()
	}
}

// restored goes on from a restored etcd: first from what it had at the revision that
// follows its snapshot's, and then with each revision after that.
func (r *referee) restored(ctx context.Context, snapshot int64) error {
	base := snapshot + e2e.RevisionBump
	var had []*mvccpb.KeyValue
	err := r.cluster.do(ctx, func(ctx context.Context, e *clientv3.Client) error {
		resp, err := e.Get(ctx, r.keys.Prefix(), clientv3.WithPrefix(), clientv3.WithRev(base))
		if err == nil {
			had = resp.Kvs
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read etcd after its restore: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	r.history, r.runs, r.steps = r.history.Restored(base, had), r.runs.Restored(had), r.steps.Restored(had)
	if r.stays.wasReplaced() {
		r.history.Replaced()
	}
	r.counted = [3]int{}
	r.pending = nil
	r.at = base
	r.write(map[string]any{"restored": snapshot, "at": now()})
	close(r.held)
	r.held = nil
	return nil
}

// with reads or changes what the referee knows of active jobs.
func (r *referee) with(f func(*stays)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.stays)
}
