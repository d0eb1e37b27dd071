package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// Files stores bindings so that they survive this process: one file for each claim that is bound to
// a process, or whose binding was changed after the grant. All other bindings are only in etcd.
// Files also stores the ttl of started runs, in a separate folder.
type Files struct {
	dir string // empty: nothing is kept
	log hclog.Logger
}

// bindFolder is the folder for the files of claims in the instance's state directory.
const bindFolder = "binds"

// maxBindFile is the largest accepted file in bytes, far more than a binding needs.
const maxBindFile = 4 << 10

// bindFileValue is the content of a file. The fence ties it to one claim, since a later claim with
// the same id has another fence. For a run, it has the id of the run and the fence of the attempt.
type bindFileValue struct {
	store.V
	Claim string      `json:"claim"`
	Fence store.Fence `json:"fence"`
	Bind  string      `json:"bind"`
	// The validity when the file was written, of a claim that is bound to a process.
	validity
}

// boundClaim is a claim as read from its file.
type boundClaim struct {
	fence store.Fence
	bind  Binding
	valid validity
}

// NewFiles returns the files in a folder of the instance's state directory. Without a state
// directory, nothing is stored.
func NewFiles(stateDir, instance, folder string, log hclog.Logger) Files {
	f := Files{log: log}
	if stateDir != "" {
		f.dir = filepath.Join(stateDir, instance, folder)
	}
	return f
}

const (
	fileEnding = ".json"
	// maxFileName is how long a file name can be on Linux, in bytes.
	maxFileName = 255
	// longName is what the names of files begin with whose claims have a longer id. No id has it.
	longName = "~"
)

// path returns the path of a claim's file. All characters of claim ids are allowed in file names.
func (f Files) path(id string) string {
	if len(id)+len(fileEnding) > maxFileName {
		sum := sha256.Sum256([]byte(id))
		id = longName + hex.EncodeToString(sum[:])
	}
	return filepath.Join(f.dir, id+fileEnding)
}

// idOf returns the id of the claim whose file has that name; ok is false if it is no such file.
func (f Files) idOf(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, fileEnding)
	if !ok || !strings.HasPrefix(id, longName) {
		return id, ok
	}
	var v bindFileValue
	data, err := readSmall(filepath.Join(f.dir, name), maxBindFile)
	if err != nil || decodeStrict(string(data), &v) != nil || filepath.Base(f.path(v.Claim)) != name {
		return "", false
	}
	return v.Claim, true
}

// ids returns the ids of the claims that have a file.
func (f Files) ids() ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if id, ok := f.idOf(e.Name()); ok {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all, nil
}

// writable returns an error if files can't be written now.
func (f Files) writable() error {
	if f.dir == "" {
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return unwritable(err)
	}
	probe, err := os.CreateTemp(f.dir, ".new-*")
	if err != nil {
		return unwritable(err)
	}
	_, err = probe.WriteString("berth\n") // an empty file may need no block on the disk
	return unwritable(errors.Join(err, probe.Close(), os.Remove(probe.Name())))
}

// unwritable turns an error of the state directory into a problem.
func unwritable(err error) error {
	if err == nil {
		return nil
	}
	return problem.New(problem.StateUnwritable, "the state directory can't be written (%w): free disk space, or restore its permissions", err)
}

// save writes a claim's binding atomically: after a crash of this process, the file has either the
// old or the new binding. After a crash of the machine, the file may be lost, but so are all
// processes.
func (f Files) save(id string, fence store.Fence, b Binding, valid validity) error {
	if f.dir == "" {
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return unwritable(err)
	}
	data := store.Encode(bindFileValue{V: store.Now, Claim: id, Fence: fence, Bind: b.Encode(), validity: valid})
	return unwritable(writeWhole(f.path(id), data))
}

func writeWhole(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the error is returned
	}
	return err
}

// load returns the stored binding of a claim; ok reports whether there is one. It logs and returns
// an error if the file can't be read.
func (f Files) load(id string, fence store.Fence) (b Binding, ok bool, err error) {
	if f.dir == "" {
		return Binding{}, false, nil
	}
	c, err := f.read(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Binding{}, false, nil
	case err != nil:
		f.log.Error("a state file can't be read; what the claim was bound to when it was granted counts",
			keyFile, f.path(id), keyClaim, id, keyError, err)
		return Binding{}, false, err
	}
	return c.bind, c.fence == fence, nil
}

// read reads the file of a claim.
func (f Files) read(id string) (boundClaim, error) {
	data, err := readSmall(f.path(id), maxBindFile)
	if err != nil {
		return boundClaim{}, err
	}
	return decodeBindFile(data, id)
}

// readSmall reads a file of at most that many bytes, and refuses a larger one.
func readSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("it is no file of %d bytes at most", limit)
	}
	return os.ReadFile(path)
}

// decodeBindFile decodes the file of a claim.
func decodeBindFile(data []byte, id string) (boundClaim, error) {
	var v bindFileValue
	if err := decodeStrict(string(data), &v); err != nil {
		return boundClaim{}, err
	}
	if v.Claim != id {
		return boundClaim{}, fmt.Errorf("it is of claim %s", problem.Quote(v.Claim))
	}
	if v.validity != (validity{}) {
		if err := v.check(); err != nil {
			return boundClaim{}, err
		}
	}
	b, err := decodeBinding(v.Bind)
	return boundClaim{fence: v.Fence, bind: b, valid: v.validity}, err
}

// Remove deletes a claim's file.
func (f Files) Remove(id string) {
	if f.dir == "" {
		return
	}
	if err := os.Remove(f.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("a state file can't be removed", keyFile, f.path(id), keyError, err)
	}
}

// Sweep deletes orphaned files: those of claims that are not held.
func (f Files) Sweep(held func(id string) bool) {
	if f.dir == "" {
		return
	}
	files, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("state files can't be listed", keyFile, f.dir, keyError, err)
	}
	for _, file := range files {
		if id, ok := f.idOf(file.Name()); ok && held(id) || file.Name() == leasesFile {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, file.Name())); err != nil {
			f.log.Warn("a state file can't be removed", keyFile, file.Name(), keyError, err)
		}
	}
}

// SaveTTL stores only a ttl, for example that of an executor.
func (f Files) SaveTTL(id string, fence store.Fence, ttl time.Duration) error {
	return f.save(id, fence, Binding{ttl: ttl}, validity{})
}

// LoadTTL returns the ttl that was stored for an id and a fence; ok reports whether there is one.
func (f Files) LoadTTL(id string, fence store.Fence) (ttl time.Duration, ok bool) {
	b, ok, _ := f.load(id, fence) // logged
	return b.ttl, ok
}
