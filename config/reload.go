package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// file is a file that a setting names.
type file struct {
	field, path string
	secret      bool // it must not be public
}

// contents are what files hold, by their fields.
type contents map[string][]byte

// readFiles reads files. A problem is put down to the field whose file has it.
func readFiles(files []file) (contents, Problems) {
	read, problems := contents{}, Problems(nil)
	for _, f := range files {
		data, _, err := readAll(f.path)
		if f.secret {
			data, err = readSecretFile(f.path)
		}
		if err != nil {
			problems = append(problems, Problem{Field: f.field, Message: err.Error(), noFile: errors.Is(err, fs.ErrNotExist)})
		}
		read[f.field] = data
	}
	return read, problems
}

// reloadInterval is how often files are checked for changes at the most.
const reloadInterval = time.Second

// reloaded is a value that is read from files, and read again when they change. It has no
// goroutine: files are checked when the value is used.
//
// A check reads the files, which are small, instead of comparing their times: this sees a file
// that is replaced by another of the same size and time, a link that leads elsewhere, and a
// mode that has changed.
type reloaded[T any] struct {
	files []file
	parse func(contents) (T, Problems)
	// log reports changes, with what about says of the new value: pairs of keys and values.
	log   hclog.Logger
	about func(T) []any

	value atomic.Pointer[T]
	// mu is held by the one that checks. The others use the value that there is: files on a
	// storage that hangs hold up one of them.
	mu      sync.Mutex
	checked time.Time
	// seen is the state of the files that the last check has found.
	seen string
}

// reload reads a value from files. Changes are reported to log; nil reports none.
func reload[T any](log hclog.Logger, files []file, parse func(contents) (T, Problems), about func(T) []any) (*reloaded[T], Problems) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	r := &reloaded[T]{files: files, parse: parse, log: log, about: about, checked: time.Now()}
	read, problems := readFiles(files)
	r.seen = r.state(read, problems)
	if len(problems) == 0 {
		var value T
		value, problems = parse(read)
		r.value.Store(&value)
	}
	return r, problems
}

// get returns the value of the files now, or of a second ago. While they cannot be used, it is
// the last one that could.
func (r *reloaded[T]) get() T {
	if r.mu.TryLock() {
		if now := time.Now(); now.Sub(r.checked) >= reloadInterval {
			r.checked = now
			r.check()
		}
		r.mu.Unlock()
	}
	return *r.value.Load()
}

// check reads the files, and reports once whatever it finds.
func (r *reloaded[T]) check() {
	read, problems := readFiles(r.files)
	state := r.state(read, problems)
	if state == r.seen {
		return
	}
	r.seen = state
	var value T
	if len(problems) == 0 {
		value, problems = r.parse(read)
	}
	names := make([]string, len(r.files))
	for i, f := range r.files {
		names[i] = f.field
	}
	settings := strings.Join(names, ",")
	if err := problems.err(); err != nil {
		r.log.Error("changed files can't be used, the former ones stay in use", "settings", settings, "error", err.Error())
		return
	}
	r.value.Store(&value)
	r.log.Info("changed files are in use", append([]any{"settings", settings}, r.about(value)...)...)
}

// state is what identifies the contents of the files, or what is wrong with them.
func (r *reloaded[T]) state(read contents, problems Problems) string {
	if err := problems.err(); err != nil {
		return err.Error()
	}
	sum := sha256.New()
	for _, f := range r.files {
		fmt.Fprintf(sum, "%d ", len(read[f.field]))
		_, _ = sum.Write(read[f.field]) // it never fails
	}
	return string(sum.Sum(nil))
}
