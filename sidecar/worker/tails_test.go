package worker

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// writes has a job write something.
func (s *stage) writes(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(s.file(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newFiles is a stage whose jobs write to files.
func newFiles(t *testing.T) *stage {
	s := newStage()
	s.files = t.TempDir()
	return s
}

// logs are all that was ever put of an instance's output, up to now.
func (y *yard) logs(id store.StepID) (all []*step.Log) {
	y.t.Helper()
	now, err := store.ReadAll(y.t.Context(), y.runs.Backend, y.runs.Keys.Logs(id.Run))
	if err != nil {
		y.t.Fatal(err)
	}
	if now.Revision == 1 {
		return nil
	}
	watch := y.runs.Backend.Watch(y.t.Context(), store.Prefix(y.runs.Keys.Log(id)), 1)
	// It is over where the last write is, or, if there is none, where a write of ours is.
	end := store.Put(y.runs.Keys.Log(id)+"/end", nil, 0)
	rev, err := store.Commit(y.t.Context(), y.runs.Backend, nil, end)
	if err != nil {
		y.t.Fatal(err)
	}
	for m := range watch.Messages() {
		if m.Err != nil {
			y.t.Fatal(m.Err)
		}
		for _, ev := range m.Events {
			if ev.Type == mvccpb.Event_PUT && string(ev.Kv.Key) == y.runs.Keys.Log(id) {
				l, err := step.DecodeLog(ev.Kv)
				if err != nil {
					y.t.Fatal(err)
				}
				all = append(all, l)
			}
		}
		if m.Revision >= rev {
			return all
		}
	}
	return all
}

// shows waits until what is kept of an instance's output is so.
func (y *yard) shows(id store.StepID, want string) *step.Seen {
	y.t.Helper()
	var seen *step.Seen
	eventually(y.t, id.String()+" shows "+want, func() bool {
		var err error
		seen, err = y.step.See(y.t.Context(), id)
		return err == nil && seen.Log != nil && string(seen.Log.Text) == want
	})
	return seen
}

// No output is written before the end of an attempt while no client follows it; while one
// does, new output is written.
func TestOutputIsShownWhileAClientReadsIt(t *testing.T) {
	t.Parallel()
	y, s := newYard(t), newFiles(t)
	w := y.worker("a", "", 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	looked, other := idOf(t, "r/m/000000"), idOf(t, "r/m/000001")
	s.writes(t, "r/m/000000", "one\n")
	s.writes(t, "r/m/000001", "unseen\n")
	w.ticks(t, 3)
	if all := y.logs(looked); len(all) > 0 {
		t.Errorf("no client follows it, and %d were put", len(all))
	}
	if _, err := y.step.Follow(t.Context(), true, looked); err != nil {
		t.Fatal(err)
	}
	seen := y.shows(looked, "one\n")
	if l := seen.Log; l.Standing(&seen.Instance) != step.SoFar || l.Attempt != 1 || l.Host != "a" || l.File != s.file("r/m/000000") || l.Before != 0 {
		t.Errorf("%+v", l)
	}
	s.writes(t, "r/m/000000", "two\n")
	y.shows(looked, "one\ntwo\n")
	// Output that has not changed is not written again, unless a client requests the current state.
	w.rested(t, looked)
	w.ticks(t, 3)
	if n := len(y.logs(looked)); n != 2 {
		t.Errorf("%d were put", n)
	}
	rev, err := y.step.Follow(t.Context(), true, looked)
	if err == nil {
		err = y.step.AwaitShown(t.Context(), rev, looked)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Of output that is too large to keep, only the end is reported.
	s.writes(t, "r/m/000000", strings.Repeat("x", step.MaxOutput))
	seen = y.shows(looked, strings.Repeat("x", step.MaxOutput))
	if seen.Log.Before != 8 {
		t.Errorf("%d are left out", seen.Log.Before)
	}
	s.end("r/m/000000", succeeded)
	eventually(t, "it has ended", func() bool { return y.status("r/m/000000") == step.Succeeded })
	if l := y.shows(looked, strings.Repeat("x", step.MaxOutput)).Log; !l.Ended || l.Before != 8 || l.File != "" {
		t.Errorf("%+v", l)
	}
	if all := y.logs(other); len(all) > 0 {
		t.Errorf("no client follows the other, and %d were put", len(all))
	}
	s.end("r/m/000001", succeeded)
	y.is("r", run.Succeeded)
	if all := y.logs(other); len(all) != 1 || string(all[0].Text) != "unseen\n" || !all[0].Ended {
		t.Errorf("%d were put of the other", len(all))
	}
}

// ticks has the worker check what it has n times, as if time passed.
func (c *crew) ticks(t *testing.T, n int) {
	t.Helper()
	for range n {
		done := make(chan struct{})
		c.ask(t.Context(), func() {
			c.check()
			close(done)
		})
		<-done
	}
}

// rested waits until no output of an instance is being shown, and has it shown again as
// soon as a client wants it.
func (c *crew) rested(t *testing.T, id store.StepID) {
	t.Helper()
	eventually(t, "nothing is being shown", func() bool {
		busy := make(chan bool, 1)
		c.ask(t.Context(), func() {
			e := c.active[id]
			e.tail.at = time.Time{}
			busy <- e.tail.busy
		})
		return !<-busy
	})
}

// However much an attempt writes, it is shown once a second at most.
func TestOutputIsShownNowAndThen(t *testing.T) {
	y, s := newYard(t), newFiles(t)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0))
	s.runs(t, "r/m/000000")
	id, now := idOf(t, "r/m/000000"), time.Now()
	busy := func(at time.Time) bool {
		t.Helper()
		answer := make(chan bool, 1)
		w.ask(t.Context(), func() {
			e := w.active[id]
			if e.job == nil {
				t.Error("it has not begun")
			}
			e.tail = tail{at: now}
			e.show(at)
			answer <- e.tail.busy
			e.tail.busy = true // nothing else shows it
		})
		return <-answer
	}
	eventually(t, "it has begun", func() bool {
		answer := make(chan bool, 1)
		w.ask(t.Context(), func() { answer <- w.active[id] != nil && w.active[id].job != nil })
		return <-answer
	})
	if busy(now.Add(showEvery - 1)) {
		t.Error("it is shown too soon")
	}
	if !busy(now.Add(showEvery)) {
		t.Error("it is not shown in time")
	}
}

// The output of an attempt that has ended stays on its host as a whole, also if the
// process that tells of it is another one, and if it is lost.
func TestOutputStaysAsAFile(t *testing.T) {
	y, s, dir := newYard(t), newFiles(t), t.TempDir()
	w := y.worker("a", dir, 3, s)
	y.submit("r", fan("m", 3, 0, others))
	s.runs(t, "r/m/000000", "r/m/000001", "r/m/000002")
	long := strings.Repeat("0123456789", step.MaxOutput)
	for _, name := range s.running() {
		s.writes(t, name, long)
	}
	s.end("r/m/000000", succeeded)
	eventually(t, "it has ended", func() bool { return y.status("r/m/000000") == step.Succeeded })
	y.kept(dir, "r/m/000000", long)

	// The previous process was killed after it had kept the file, and before it reported that.
	published := make(chan step.Published, 1)
	w.ask(t.Context(), func() { published <- w.active[idOf(t, "r/m/000001")].t.Ready })
	p := <-published
	w.leave()
	if w.outputs.keep(&p, s.file("r/m/000001")) == "" {
		t.Error("it is not kept")
	}
	w = y.worker("a", dir, 3, s)
	defer w.close(t)
	eventually(t, "both are back", func() bool { return w.Active() == 2 })
	s.end("r/m/000001", succeeded)
	eventually(t, "it has ended", func() bool { return y.status("r/m/000001") == step.Succeeded })
	y.kept(dir, "r/m/000001", long)

	// No process reports the output of a lost one, and its file is there all the same.
	lost := make(chan string, 1)
	w.ask(t.Context(), func() {
		e := w.active[idOf(t, "r/m/000002")]
		lost <- w.outputs.path(&e.t.Ready)
		e.lost()
	})
	path := <-lost
	eventually(t, path+" is there", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && string(text) == long
	})
}

// kept checks that what is kept of an instance's output names a file of this host with
// all of it.
func (y *yard) kept(dir, name, want string) {
	y.t.Helper()
	id, err := store.ParseStepID(name)
	if err != nil {
		y.t.Fatal(err)
	}
	l, err := y.step.Log(y.t.Context(), id)
	if err != nil {
		y.t.Fatal(err)
	}
	if !strings.HasPrefix(l.File, filepath.Join(dir, "worker", "output", "r", "m-")) || l.Host != "a" || l.Before != int64(len(want)-step.MaxOutput) {
		y.t.Errorf("%d bytes are left out of file %s on host %s", l.Before, l.File, l.Host)
	}
	if text, err := os.ReadFile(l.File); err != nil || string(text) != want {
		y.t.Errorf("it has %d bytes, want %d, %v", len(text), len(want), err)
	}
}

// A log never names a file that is not there: the later attempt's file stays, and so does
// all else that its log says.
func TestNoLogNamesAFileThatWasRemoved(t *testing.T) {
	t.Parallel()
	y, s, dir := newYard(t), newFiles(t), t.TempDir()
	w := y.worker("a", dir, 2, s)
	defer w.close(t)
	y.submit("r", fan("m", 2, 0))
	s.runs(t, "r/m/000000", "r/m/000001")
	long := strings.Repeat("0123456789", step.MaxOutput)
	for _, name := range s.running() {
		s.writes(t, name, long)
		s.end(name, succeeded)
	}
	y.is("r", run.Succeeded)
	y.kept(dir, "r/m/000000", long)
	y.kept(dir, "r/m/000001", long)
	eventually(t, "both are dropped", func() bool { return w.Active() == 0 })
	before, err := y.step.Log(t.Context(), idOf(t, "r/m/000000"))
	if err != nil {
		t.Fatal(err)
	}
	early := time.Now().Add(-outputAge - time.Minute)
	if err := os.Chtimes(before.File, early, early); err != nil {
		t.Fatal(err)
	}
	w.outputs.sweep(t.Context(), time.Now())
	if _, err := os.Stat(before.File); !os.IsNotExist(err) {
		t.Errorf("the file is not removed: %v", err)
	}
	after, err := y.step.Log(t.Context(), idOf(t, "r/m/000000"))
	if err != nil {
		t.Fatal(err)
	}
	want := *before
	want.Host, want.File, want.Revision = "", "", after.Revision
	if !reflect.DeepEqual(after, &want) {
		t.Errorf("the log is of %d bytes, and names %q on %q", after.End(), after.File, after.Host)
	}
	y.kept(dir, "r/m/000001", long)
}

// What can't be read of looks does no harm.
func TestALookThatCantBeReadIsNone(t *testing.T) {
	y, s := newYard(t), newFiles(t)
	w := y.worker("a", "", 1, s)
	defer w.close(t)
	y.submit("r", fan("m", 1, 0))
	s.runs(t, "r/m/000000")
	s.writes(t, "r/m/000000", "one\n")
	for key, value := range map[string]string{y.runs.Keys.Followers() + "r": "{}", y.runs.Keys.Follower(idOf(t, "r/m/000000")): "?"} {
		if _, err := store.Commit(t.Context(), y.runs.Backend, nil, store.Put(key, []byte(value), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := y.step.Follow(t.Context(), true, idOf(t, "r/m/000000")); err != nil {
		t.Fatal(err)
	}
	y.shows(idOf(t, "r/m/000000"), "one\n")
}
