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
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

func TestTheOldestOfWhatIsTooMuchGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, most := time.Now(), int64(rapid.IntRange(0, 50).Draw(t, "most"))
		var all []keptFile
		for n := range rapid.IntRange(0, 30).Draw(t, "files") {
			age := time.Duration(rapid.IntRange(0, 30).Draw(t, "hours")) * time.Hour
			all = append(all, keptFile{fmt.Sprint(n), int64(rapid.IntRange(1, 9).Draw(t, "cost")), now.Add(-age)})
		}
		before := int64(0)
		for _, f := range all {
			before += f.cost
		}
		gone, total := tooMuch(slices.Clone(all), most, now)
		var kept int64
		oldest, youngest := now, now.Add(-100*time.Hour)
		for _, f := range all {
			switch {
			case !slices.Contains(gone, f):
				kept += f.cost
				if f.at.Before(oldest) {
					oldest = f.at
				}
				if now.Sub(f.at) > outputAge {
					t.Errorf("%s is kept, which is %s old", f.path, now.Sub(f.at))
				}
			case f.at.After(youngest):
				youngest = f.at
			}
		}
		switch {
		case kept != total || total > most:
			t.Errorf("%d are kept, it says %d, and %d may be", kept, total, most)
		case len(gone) > 0 && youngest.After(oldest):
			t.Errorf("one goes that is younger than one that is kept")
		case len(gone) > 0 && before <= most && now.Sub(youngest) <= outputAge:
			t.Errorf("%v go, and %d of %d are not too much", gone, before, most)
		}
	})
}

// cabinet is a folder of outputs with what is written into it.
type cabinet struct {
	*outputs
	t *testing.T
	n int
}

func newCabinet(t *testing.T, most int64) *cabinet {
	c := &cabinet{outputs: newOutputs(filepath.Join(t.TempDir(), "output"), most, hclog.NewNullLogger()), t: t}
	c.dropNames = func(context.Context, map[string]store.StepID) error { return nil }
	return c
}

// next is what the next process has of it.
func (c *cabinet) next(most int64) *cabinet {
	o := newOutputs(c.root, most, hclog.NewNullLogger())
	o.dropNames = c.dropNames
	return &cabinet{outputs: o, t: c.t}
}

// file makes one of so many bytes.
func (c *cabinet) file(bytes int) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "output")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", bytes)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// published is the next attempt.
func (c *cabinet) published(run string) *step.Published {
	c.n++
	return &step.Published{Ready: step.Ready{Run: run, Step: "m", Index: 3}, Revision: int64(c.n)}
}

// there are the files that are kept, by their revisions.
func (c *cabinet) there() string {
	c.t.Helper()
	all, err := c.list(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		name := strings.TrimSuffix(filepath.Base(f.path), ".log")
		names = append(names, name[strings.LastIndexByte(name, '-')+1:])
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestAFileIsKeptOnce(t *testing.T) {
	c := newCabinet(t, 1<<20)
	file, p := c.file(10), c.published("r")
	path := c.keep(p, file)
	if want := filepath.Join(c.root, "r", "m-3-1-1.log"); path != want || c.keep(p, file) != want || c.total != outputBlock {
		t.Errorf("%s, %d bytes", path, c.total)
	}
	if err := os.Remove(file); err != nil { // with the folder of the attempt
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 10 {
		t.Errorf("%q, %v", text, err)
	}
}

func TestWhatIsNotKept(t *testing.T) {
	c := newCabinet(t, 2*outputBlock)
	for name, path := range map[string]string{
		"nothing written":        c.keep(c.published("r"), c.file(0)),
		"more than may be kept":  c.keep(c.published("r"), c.file(2*outputBlock+1)),
		"a file that is not":     c.keep(c.published("r"), filepath.Join(t.TempDir(), "none")),
		"none are to be":         newCabinet(t, 0).keep(c.published("r"), c.file(1)),
		"there is no folder":     newOutputs("", 1<<20, hclog.NewNullLogger()).keep(c.published("r"), c.file(1)),
		"the folder is in a way": newOutputs(c.file(1), 1<<20, hclog.NewNullLogger()).keep(c.published("r"), c.file(1)),
	} {
		if path != "" {
			t.Errorf("%s: %s", name, path)
		}
	}
	if got := c.there(); got != "" {
		t.Errorf("%s are kept", got)
	}
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	c := newCabinet(t, 10*outputBlock)
	now := time.Now()
	put := func(run string, bytes int, age time.Duration) {
		t.Helper()
		path := c.keep(c.published(run), c.file(bytes))
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	put("old", 1, 25*time.Hour)
	put("r", 1, 3*time.Hour)
	put("r", 3*outputBlock, 2*time.Hour)
	put("r", 1, time.Hour)
	if !c.due(now) || c.due(now) {
		t.Error("the first sweep is due, and once")
	}
	c.sweep(t.Context(), now)
	if got := c.there(); got != "2 3 4" || c.total != 5*outputBlock {
		t.Errorf("%s are kept, %d bytes", got, c.total)
	}
	if _, err := os.Stat(filepath.Join(c.root, "old")); !os.IsNotExist(err) {
		t.Errorf("an empty folder is kept: %v", err)
	}
	if c.due(now.Add(time.Minute)) || !c.due(now.Add(outputSweepEvery)) {
		t.Error("the next is due when it is time")
	}
	c.sweep(t.Context(), now)

	// When there is too much, a sweep is due at once. It frees space for some more.
	put("r", 5*outputBlock, 0)
	if c.due(now.Add(time.Minute)) {
		t.Error("it fits")
	}
	put("r", 1, 0)
	if !c.due(now.Add(time.Minute)) {
		t.Error("it is too much")
	}
	c.sweep(t.Context(), now)
	if got := c.there(); got != "4 5 6" || c.total != 7*outputBlock {
		t.Errorf("%s are kept, %d bytes", got, c.total)
	}

	// The next process counts what there is; one that keeps none removes it.
	next := c.next(10 * outputBlock)
	next.due(now)
	next.sweep(t.Context(), now)
	if got := next.there(); got != "4 5 6" || next.total != 7*outputBlock {
		t.Errorf("%s are kept, %d bytes", got, next.total)
	}
	none := c.next(0)
	none.due(now)
	none.sweep(t.Context(), now)
	if got := none.there(); got != "" || none.total != 0 {
		t.Errorf("%s are kept, %d bytes", got, none.total)
	}
}

// A sweep that is cut off leaves what it has not come to, and can be made again.
func TestASweepThatIsCutOff(t *testing.T) {
	c := newCabinet(t, 0)
	c.most = 1 << 20
	c.keep(c.published("r"), c.file(1))
	c.most = 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.due(time.Now())
	c.sweep(ctx, time.Now())
	if got := c.there(); got != "1" {
		t.Errorf("%s are kept", got)
	}
	if !c.due(time.Now().Add(outputSweepEvery)) {
		t.Error("it is not due again")
	}
	c.sweep(t.Context(), time.Now())
	if got := c.there(); got != "" {
		t.Errorf("%s are kept", got)
	}
}

func TestAFileIsNotRemovedWhileLogsNameIt(t *testing.T) {
	c := newCabinet(t, 10*outputBlock)
	p := c.published("r")
	path, now := c.keep(p, c.file(1)), time.Now()
	away := errors.New("etcd is away")
	var dropped []map[string]store.StepID
	c.dropNames = func(_ context.Context, files map[string]store.StepID) error {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("it is removed before its name is dropped: %v", err)
		}
		dropped = append(dropped, files)
		return away
	}
	foreign := filepath.Join(c.root, "r", "of-something-else")
	if err := os.WriteFile(foreign, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	sweep := func(want string, cost int64, asked int) {
		t.Helper()
		c.sweep(t.Context(), now.Add(outputAge+time.Minute))
		if got := c.there(); got != want || c.total != cost || len(dropped) != asked {
			t.Errorf("%q are kept, %d bytes, and etcd was asked %d times", got, c.total, len(dropped))
		}
	}
	sweep("1 else", 2*outputBlock, 1)
	if want := map[string]store.StepID{path: {Run: "r", Step: "m", Index: 3}}; !maps.Equal(dropped[0], want) {
		t.Errorf("%v were named, want %v", dropped[0], want)
	}
	// The end of the attempt is on its way to etcd, with the name of the file.
	away = nil
	c.reports(p)
	sweep("1", outputBlock, 1)
	c.reported(p)
	sweep("", 0, 2)
}

func TestTheNameOfAFileTellsWhoseItIs(t *testing.T) {
	o := newOutputs(filepath.Join(t.TempDir(), "output"), 1, hclog.NewNullLogger())
	rapid.Check(t, func(t *rapid.T) {
		p := &step.Published{Revision: rapid.Int64Range(1, 1<<62).Draw(t, "revision")}
		p.Run, p.Step = rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,9}`).Draw(t, "run"), rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,9}`).Draw(t, "step")
		p.Index, p.Attempt = rapid.IntRange(0, 1<<20).Draw(t, "index"), rapid.IntRange(0, 100).Draw(t, "attempt")
		if id, ok := o.idOf(o.path(p)); !ok || id != p.ID() {
			t.Errorf("%s is taken for that of %s", o.path(p), id)
		}
	})
	for _, name := range []string{"", "m-0-1-2.log", "r/m.log", "r/0-1-2.log", "r/-0-1-2.log", "r/m-x-1-2.log", "r/s/m-0-1-2.log", "../r/m-0-1-2.log"} {
		if id, ok := o.idOf(filepath.Join(o.root, name)); ok {
			t.Errorf("%s is taken for that of %s", name, id)
		}
	}
}
