package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// publishedFile is the file of a folder that says what the folder is for.
const publishedFile = "published.json"

// jobFolder is the part of a folder that is the runner's.
const jobFolder = "job"

// folders are those of a worker's instances.
type folders struct{ root string }

// publishedValue is how a publication stands in a folder.
type publishedValue struct {
	store.V
	Queue    string     `json:"queue"`
	Order    string     `json:"order"`
	Revision int64      `json:"revision"`
	Ready    step.Ready `json:"ready"`
	// Slots tells that it was to be taken with slots.
	Slots bool `json:"slots,omitempty"`
}

// leftover is an instance of an earlier process, as that was about to take it.
type leftover struct {
	*step.Published
	slots bool
}

// name of an instance's folder. An attempt has one of its own: the command of the one
// before may be on its way out still.
func (f folders) name(p *step.Published) string {
	sum := sha256.Sum256([]byte(p.ID().String())) // names of runs and steps are too long for one of a file
	return filepath.Join(f.root, hex.EncodeToString(sum[:12])+"-"+strconv.FormatInt(p.Revision, 10))
}

// make makes the folder of an instance that is about to be taken, with slots or without.
func (f folders) make(p *step.Published, slots bool) (string, error) {
	if f.root == "" {
		return "", nil // nothing is to outlive the worker
	}
	dir := f.name(p)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the folder of a step instance can't be made: %w", err)
	}
	value := store.Encode(publishedValue{V: store.Now, Queue: p.Queue, Order: p.Order, Revision: p.Revision, Ready: p.Ready, Slots: slots})
	if err := os.WriteFile(filepath.Join(dir, publishedFile), value, 0o600); err != nil {
		return "", errors.Join(fmt.Errorf("the folder of a step instance can't be written: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// remove removes a folder. One that can't be removed is found by the next process.
func (f folders) remove(dir string) {
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// left are the folders that an earlier process has left, each with what it is for. One
// that can't be read is removed: nothing was begun in it.
func (f folders) left() (map[string]leftover, error) {
	if f.root == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the folders of the worker can't be read: %w", err)
	}
	all := map[string]leftover{}
	for _, e := range entries {
		dir := filepath.Join(f.root, e.Name())
		p, err := readPublished(filepath.Join(dir, publishedFile))
		if err != nil {
			f.remove(dir)
			continue
		}
		all[dir] = p
	}
	return all, nil
}

func readPublished(name string) (leftover, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return leftover{}, err
	}
	var v publishedValue
	if err := store.Decode(name, data, &v); err != nil {
		return leftover{}, err
	}
	return leftover{&step.Published{Ready: v.Ready, Queue: v.Queue, Order: v.Order, Revision: v.Revision}, v.Slots}, nil
}
