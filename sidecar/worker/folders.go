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

// publishedFile is the file of a folder that identifies its instance.
const publishedFile = "published.json"

// jobFolder is the folder of the runner in the folder of an instance.
const jobFolder = "job"

// folders are the folders of a worker's instances.
type folders struct{ root string }

// publishedValue is the content of a publishedFile.
type publishedValue struct {
	store.V
	Queue    string     `json:"queue"`
	Order    string     `json:"order"`
	Revision int64      `json:"revision"`
	Ready    step.Ready `json:"ready"`
	// Slots states that it needs slots.
	Slots bool `json:"slots,omitempty"`
}

// earlier is an instance of an earlier process, as it was published.
type earlier struct {
	*step.Published
	slots bool
}

// name returns the folder of an attempt at an instance. The command of the attempt before
// may still be ending in its own.
func (f folders) name(p *step.Published) string {
	sum := sha256.Sum256([]byte(p.ID().String())) // names of runs and steps are too long for a file name
	return filepath.Join(f.root, hex.EncodeToString(sum[:12])+"-"+strconv.FormatInt(p.Revision, 10))
}

// make creates the folder of an instance that is about to be taken.
func (f folders) make(p *step.Published, slots bool) (string, error) {
	if f.root == "" {
		return "", nil // nothing outlives the worker
	}
	dir := f.name(p)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the folder of a step instance cannot be created: %w", err)
	}
	value := store.Encode(publishedValue{V: store.Now, Queue: p.Queue, Order: p.Order, Revision: p.Revision, Ready: p.Ready, Slots: slots})
	if err := os.WriteFile(filepath.Join(dir, publishedFile), value, 0o600); err != nil {
		return "", errors.Join(fmt.Errorf("the folder of a step instance cannot be written: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// remove removes a folder. If that fails, the next process finds it.
func (f folders) remove(dir string) {
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// left returns the folders of an earlier process with their instances. A folder that
// cannot be read is removed: no command was started in it.
func (f folders) left() (map[string]earlier, error) {
	if f.root == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the folders of the worker cannot be read: %w", err)
	}
	all := map[string]earlier{}
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

func readPublished(name string) (earlier, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return earlier{}, err
	}
	var v publishedValue
	if err := store.Decode(name, data, &v); err != nil {
		return earlier{}, err
	}
	return earlier{&step.Published{Ready: v.Ready, Queue: v.Queue, Order: v.Order, Revision: v.Revision}, v.Slots}, nil
}
