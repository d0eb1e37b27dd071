package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/coordinator/step"
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
			case !slices.Contains(gone, f.path):
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
	return &cabinet{outputs: newOutputs(filepath.Join(t.TempDir(), "output"), most, hclog.NewNullLogger()), t: t}
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
	if c.due(now.Add(time.Minute)) || !c.due(now.Add(outputLook)) {
		t.Error("the next is due when it is time")
	}
	c.sweep(t.Context(), now)

	// When it is too much, it is due at once. It makes room for some more.
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
	next := &cabinet{outputs: newOutputs(c.root, 10*outputBlock, hclog.NewNullLogger()), t: t}
	next.due(now)
	next.sweep(t.Context(), now)
	if got := next.there(); got != "4 5 6" || next.total != 7*outputBlock {
		t.Errorf("%s are kept, %d bytes", got, next.total)
	}
	none := &cabinet{outputs: newOutputs(c.root, 0, hclog.NewNullLogger()), t: t}
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
	if !c.due(time.Now().Add(outputLook)) {
		t.Error("it is not due again")
	}
	c.sweep(t.Context(), time.Now())
	if got := c.there(); got != "" {
		t.Errorf("%s are kept", got)
	}
}
