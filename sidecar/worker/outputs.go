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
	// outputSweepEvery is how often files that are too old are removed.
	outputSweepEvery = 10 * time.Minute
	// outputBlock is the size that the smallest file counts as: about its use of the disk.
	outputBlock = 4 << 10
	// outputShare is the fraction of the limit that a sweep frees, so that not every end
	// of an attempt causes a sweep.
	outputShare = 10
)

// outputs keeps the output files of attempts on the worker's host, for [outputAge] and up to
// a total size. The zero value keeps none.
type outputs struct {
	root string // empty: none are kept
	most int64
	log  hclog.Logger
	// dropNames removes the names of these files from the logs, before they are deleted.
	dropNames func(ctx context.Context, files map[string]store.StepID) error

	mu sync.Mutex // guards what follows, and new folders against removal
	// unreported are files that a log is about to name. They are not removed before.
	unreported map[string]bool
	// total is at least the size of all files; only a sweep reduces it.
	total    int64
	next     time.Time // of the next sweep for age
	sweeping bool
}

// newOutputs returns outputs that keeps most bytes in a folder.
func newOutputs(root string, most int64, log hclog.Logger) *outputs {
	if root == "" {
		return &outputs{}
	}
	if whole, err := filepath.Abs(root); err == nil { // else there is no current folder
		root = whole
	}
	return &outputs{root: root, most: most, log: log, unreported: map[string]bool{}}
}

// path returns where the output of an attempt is kept: names of steps are valid names of
// files. A run that is retried counts its attempts again, so the revision is part of it.
func (o *outputs) path(p *step.Published) string {
	return filepath.Join(o.root, p.Run, fmt.Sprintf("%s-%d-%d-%d.log", p.Step, p.Index, p.Attempt+1, p.Revision))
}

// idOf is the inverse of path. Only the name of the step may contain the separator.
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

// keep keeps the output of an attempt that has ended, and returns its path; empty if it is
// not kept. It links the file, so that a worker that is killed before the folder is removed
// finds it there as well.
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
	case errors.Is(err, fs.ErrExist): // by an earlier process
		return path
	case err != nil:
		o.log.Warn("the output of a step instance is not kept as a file", "run", p.Run, "step", p.ID().Text(), "error", err)
		return ""
	}
	_ = os.Chtimes(path, now, now) // its age counts from the end of the attempt
	o.total += costOf(info)
	return path
}

// reports protects the file of an attempt until its end is reported: otherwise a sweep could
// remove a file that a log is about to name.
func (o *outputs) reports(p *step.Published) {
	if o.root == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unreported[o.path(p)] = true
}

// reported ends that protection.
func (o *outputs) reported(p *step.Published) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.unreported, o.path(p))
}

// due reports whether a sweep is due. The caller must do it then.
func (o *outputs) due(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.root == "" || o.sweeping || now.Before(o.next) && o.total <= o.most {
		return false
	}
	o.sweeping, o.next = true, now.Add(outputSweepEvery)
	return true
}

// keptFile is a kept file.
type keptFile struct {
	path string
	cost int64
	at   time.Time
}

// sweep removes the files that are too old, and the oldest files beyond the total size. It
// ends with ctx.
func (o *outputs) sweep(ctx context.Context, now time.Time) {
	o.mu.Lock()
	before := o.total
	o.mu.Unlock()
	all, err := o.list(ctx)
	if err != nil && ctx.Err() == nil {
		o.log.Warn("the kept output cannot be read", "folder", o.root, "error", err)
	}
	err = nil // what was listed is used
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
		o.log.Warn("old output could not be removed yet", "folder", o.root, "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += total - before // files may have been added meanwhile
	o.sweeping = false
}

func (o *outputs) isUnreported(path string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unreported[path]
}

// dropped removes the names of files from the logs. If etcd does not answer, the files stay:
// few are added meanwhile, since an attempt needs etcd to end.
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

// list returns all kept files.
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

// tooMuch returns the files to remove, the oldest first, and the size of the others.
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

// remove removes a file, and its folder if that is empty, and reports whether the file is
// removed. A protected file stays.
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
	_ = os.Remove(filepath.Dir(path)) // it fails unless the folder is empty
	return true
}

// costOf returns the size that a file counts as.
func costOf(info fs.FileInfo) int64 {
	return (max(1, info.Size()) + outputBlock - 1) / outputBlock * outputBlock
}

// OutputFolder returns where a worker keeps the output of attempts; empty without a state
// directory.
func OutputFolder(stateDir, instance string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, instance, "output")
}

// keepOutput keeps the output of an attempt that has ended, if its job has a file.
func (w *Worker) keepOutput(p *step.Published, job Job) string {
	f, ok := job.(Filer)
	if !ok {
		return ""
	}
	path := w.outputs.keep(p, f.File())
	w.sweepOutputs()
	return path
}

// sweepOutputs starts a sweep if one is due.
func (w *Worker) sweepOutputs() {
	if now := time.Now(); w.outputs.due(now) {
		w.async(func() { w.outputs.sweep(w.quit, now) })
	}
}
