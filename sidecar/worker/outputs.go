package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

const (
	// outputAge is how long the output of an attempt is kept as a file.
	outputAge = 24 * time.Hour
	// outputLook is how often it is looked for files that are too old.
	outputLook = 10 * time.Minute
	// outputBlock is what the smallest file counts as: about what it takes of a disk.
	outputBlock = 4 << 10
	// outputShare is the part of what may be kept that is removed at once, so that not
	// every end of an attempt has all files looked at.
	outputShare = 10
)

// outputs are the files of what attempts have written, as a whole, on the worker's host:
// those of the last while, up to so many bytes. The zero value keeps none.
type outputs struct {
	root string // empty: none are kept
	most int64
	log  hclog.Logger
	// dropNames has no log name these files any more, which are about to be removed.
	dropNames func(ctx context.Context, files map[string]store.StepID) error

	mu sync.Mutex // guards what follows, and that no folder is removed that is just made
	// unreported are files that a log is about to name: they are not removed before it does.
	unreported map[string]bool
	// total is what there is, at most; since the last sweep nothing was taken from it.
	total    int64
	next     time.Time // when it is to be swept for age
	sweeping bool
}

// newOutputs keeps so many bytes in a folder.
func newOutputs(root string, most int64, log hclog.Logger) *outputs {
	if root == "" {
		return &outputs{}
	}
	if whole, err := filepath.Abs(root); err == nil { // else there is no current folder, and the name is as good
		root = whole
	}
	return &outputs{root: root, most: most, log: log, unreported: map[string]bool{}}
}

// path is where the output of an attempt at what was published is kept: names of steps
// are safe as names of files. The revision is there since a run that is retried counts
// its attempts anew.
func (o *outputs) path(p *step.Published) string {
	return filepath.Join(o.root, p.Run, fmt.Sprintf("%s-%d-%d-%d.log", p.Step, p.Index, p.Attempt+1, p.Revision))
}

// idOf reads whose output a file has, the inverse of path. Only the step's name may contain
// the separator.
func (o *outputs) idOf(path string) (store.StepID, bool) {
	folder, name := filepath.Split(path)
	parts := strings.Split(strings.TrimSuffix(name, ".log"), "-")
	if filepath.Dir(filepath.Clean(folder)) != o.root || len(parts) < 4 {
		return store.StepID{}, false
	}
	last := len(parts) - 3
	index, err := strconv.Atoi(parts[last])
	id := store.StepID{Run: filepath.Base(folder), Step: strings.Join(parts[:last], "-"), Index: index}
	return id, err == nil && index >= 0 && id.Step != ""
}

// keep keeps the output of an attempt that has ended, and returns where; empty if it is
// not kept. The file itself stays where it is as well, until its folder is removed: so a
// worker that is killed in between finds all it needs.
func (o *outputs) keep(p *step.Published, file string) string {
	if o.root == "" || o.most == 0 {
		return ""
	}
	info, err := os.Stat(file)
	if err != nil || info.Size() == 0 || costOf(info) > o.most {
		return ""
	}
	path, now := o.path(p), time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.Link(file, path)
	}
	switch {
	case errors.Is(err, fs.ErrExist): // by the process before
		return path
	case err != nil:
		o.log.Warn("the output of a step instance is not kept as a file", "run", p.Run, "step", p.ID().Text(), "error", err)
		return ""
	}
	_ = os.Chtimes(path, now, now) // its age counts from the end of the attempt; else from its last line
	o.total += costOf(info)
	return path
}

// reports has the file of an attempt stay until its end is reported: a log that is written
// after a sweep would name what the sweep has removed.
func (o *outputs) reports(p *step.Published) {
	if o.root == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unreported[o.path(p)] = true
}

// reported takes that the log of an attempt names its file, or never will.
func (o *outputs) reported(p *step.Published) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unreported, o.path(p))
}

// due tells whether it is time for a sweep, and that whoever asks is the one to do it.
func (o *outputs) due(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.root == "" || o.sweeping || now.Before(o.next) && o.total <= o.most {
		return false
	}
	o.sweeping, o.next = true, now.Add(outputLook)
	return true
}

// keptFile is a file that is kept.
type keptFile struct {
	path string
	cost int64
	at   time.Time
}

// sweep removes what is too old, and the oldest of what is too much. It ends early when
// ctx does.
func (o *outputs) sweep(ctx context.Context, now time.Time) {
	o.mu.Lock()
	before := o.total
	o.mu.Unlock()
	all, err := o.list(ctx)
	if err != nil && ctx.Err() == nil {
		o.log.Warn("the output that is kept can't be looked at", "folder", o.root, "error", err)
	}
	err = nil // what was listed is judged
	gone, total := tooMuch(all, o.most, now)
	gone = slices.DeleteFunc(gone, func(f keptFile) bool {
		unreported := o.isUnreported(f.path)
		if unreported {
			total += f.cost
		}
		return unreported
	})
	for batch := range slices.Chunk(gone, step.MaxFilesDropped) {
		if err == nil {
			err = o.dropped(ctx, batch)
		}
		for _, f := range batch {
			if err != nil || !o.remove(f.path) {
				total += f.cost
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		o.log.Warn("output that is too old or too much is not removed yet", "folder", o.root, "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += total - before // and what has come meanwhile
	o.sweeping = false
}

func (o *outputs) isUnreported(path string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unreported[path]
}

// dropped has no log name files that are about to be removed. If etcd does not answer, they
// stay: few come meanwhile, since an attempt keeps its place until etcd knows its end.
func (o *outputs) dropped(ctx context.Context, batch []keptFile) error {
	files := map[string]store.StepID{}
	for _, f := range batch {
		if id, ok := o.idOf(f.path); ok {
			files[f.path] = id
		}
	}
	if err := context.Cause(ctx); err != nil || len(files) == 0 {
		return err
	}
	return o.dropNames(ctx, files)
}

// list is all that is kept.
func (o *outputs) list(ctx context.Context) (all []keptFile, err error) {
	err = filepath.WalkDir(o.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir():
			return nil
		}
		if info, err := d.Info(); err == nil {
			all = append(all, keptFile{path, costOf(info), info.ModTime()})
		}
		return nil
	})
	return all, err
}

// tooMuch chooses what is to be removed, the oldest first, and returns what the rest costs.
func tooMuch(all []keptFile, most int64, now time.Time) (gone []keptFile, total int64) {
	slices.SortFunc(all, func(a, b keptFile) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	for _, f := range all {
		total += f.cost
	}
	fit := most
	if total > most {
		fit -= most / outputShare
	}
	for _, f := range all {
		if total <= fit && now.Sub(f.at) <= outputAge {
			break
		}
		gone = append(gone, f)
		total -= f.cost
	}
	return gone, total
}

// remove removes a file, and its folder if that is empty then, and reports whether the file
// is gone. One that a log is about to name stays.
func (o *outputs) remove(path string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unreported[path] {
		return false
	}
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_ = os.Remove(filepath.Dir(path)) // it is not, most of the time
	return true
}

// costOf is what a file counts as.
func costOf(info fs.FileInfo) int64 {
	return (max(1, info.Size()) + outputBlock - 1) / outputBlock * outputBlock
}

// OutputFolder is where a worker of an instance keeps what attempts have written; empty if
// it has no state directory.
func OutputFolder(stateDir, instance string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, instance, "output")
}

// keepOutput keeps the output of an attempt that has ended, if its job has it in a file.
func (w *Worker) keepOutput(p *step.Published, job Job) string {
	f, ok := job.(Filer)
	if !ok {
		return ""
	}
	path := w.outputs.keep(p, f.File())
	w.sweepOutputs()
	return path
}

// sweepOutputs has the files of outputs swept beside the loop, if it is time for that.
func (w *Worker) sweepOutputs() {
	if now := time.Now(); w.outputs.due(now) {
		w.beside(func() { w.outputs.sweep(w.quit, now) })
	}
}
