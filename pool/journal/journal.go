// Package journal keeps what an instance must know of its slots after a crash of its process, and
// that etcd does not show: to whom it has granted slots again without a write.
//
// A journal is a map from names to values, in two files of which the newer complete one counts.
// A change is appended by one write, which is not synced: it survives the process, and if the
// machine dies, the holders of the slots have died with it. So a journal of before the last boot
// is void.
package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// maxSize is how large a file grows before the other one begins with what is still needed: about
// ten thousand changes. It stays in the page cache for seconds, so most of it is never written to
// the disk.
const maxSize = 1 << 20

// Journal is safe for use by several goroutines. It belongs to one process at a time.
type Journal struct {
	mu         sync.Mutex // guards what follows
	files      [2]*os.File
	err        error // why a file could not be opened
	at         int   // the file that is appended to
	size, most int   // of the file that is appended to; at most it is left
	generation uint64
	boot       string
	values     map[string][]byte
	buf        []byte
}

// Open opens the journal in a folder, which it creates if it is missing. Boot identifies the
// present boot of the machine; what was kept under another one is forgotten. It fails only if there
// is a journal that can't be read: of one that can't be written, [Journal.Put] fails.
func Open(dir, boot string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{boot: boot, values: map[string][]byte{}}
	for i := range j.files {
		name := filepath.Join(dir, "journal."+strconv.Itoa(i))
		data, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			_ = j.Close()
			return nil, fmt.Errorf("journal: %w", err)
		}
		if j.files[i], err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			j.err = err
		}
		if generation, values, ok := read(data, boot); ok && generation > j.generation {
			j.generation, j.values, j.at = generation, values, i
		}
	}
	_ = j.rotate() // else the next change tries again
	return j, nil
}

// Get returns the value of a name, nil if there is none.
func (j *Journal) Get(name string) []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.values[name]) // Put writes over it
}

// Put keeps the value of a name. The name has no spaces, and neither has line breaks. If it fails,
// either value may be found after a crash.
func (j *Journal) Put(name string, value []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size >= j.most {
		if err := j.rotate(); err != nil {
			return err
		}
	}
	j.buf = appendLine(j.buf[:0], name, value)
	if _, err := j.files[j.at].Write(j.buf); err != nil {
		j.size = j.most // half a line may be there: what comes next goes to the other file
		return fmt.Errorf("journal: %w", err)
	}
	j.size += len(j.buf)
	j.values[name] = append(j.values[name][:0], value...)
	return nil
}

// Forget takes that the value of a name is not needed any more. It may be found after a crash.
func (j *Journal) Forget(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.values, name)
}

// Close closes the files.
func (j *Journal) Close() error {
	var first error
	for _, f := range j.files {
		if f != nil {
			first = cmp.Or(first, f.Close())
		}
	}
	return first
}

// rotate begins the other file with what is still needed.
func (j *Journal) rotate() error {
	to := 1 - j.at
	b := fmt.Appendf(nil, "%s %d %s\n", magic, j.generation+1, j.boot)
	for _, name := range slices.Sorted(maps.Keys(j.values)) {
		b = appendLine(b, name, j.values[name])
	}
	b = appendLine(b, complete, nil)
	f := j.files[to]
	if f == nil || j.files[j.at] == nil {
		return fmt.Errorf("journal: %w", j.err)
	}
	err := f.Truncate(0)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err == nil {
		_, err = f.Write(b)
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.at, j.size, j.most, j.generation = to, len(b), max(maxSize, 2*len(b)), j.generation+1
	return nil
}

const (
	magic = "berth-journal-1"
	// complete is the name that follows what a file begins with.
	complete = "-"
)

// appendLine appends the line of one change: a checksum, the name and the value.
func appendLine(b []byte, name string, value []byte) []byte {
	start := len(b)
	b = append(b, "00000000 "...)
	b = append(append(append(b, name...), ' '), value...)
	sum := checksum(b[start+9:])
	copy(b[start:], sum[:])
	return append(b, '\n')
}

// checksum returns the checksum of a line in hexadecimal digits.
func checksum(line []byte) (digits [8]byte) {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.ChecksumIEEE(line))
	hex.Encode(digits[:], sum[:])
	return digits
}

// read reads a file up to the first line that is torn. It reports false if the file is not complete
// from the beginning, or of another boot.
func read(data []byte, boot string) (generation uint64, values map[string][]byte, ok bool) {
	head, rest, _ := bytes.Cut(data, []byte{'\n'})
	fields := bytes.SplitN(head, []byte{' '}, 3)
	if len(fields) != 3 || string(fields[0]) != magic || string(fields[2]) != boot {
		return 0, nil, false
	}
	generation, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0, nil, false
	}
	values = map[string][]byte{}
	for {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		if !whole || len(line) < 10 {
			return generation, values, ok
		}
		if sum := checksum(line[9:]); string(line[:8]) != string(sum[:]) {
			return generation, values, ok
		}
		name, value, _ := bytes.Cut(line[9:], []byte{' '})
		if string(name) == complete {
			ok = true
		} else {
			values[string(name)] = slices.Clone(value)
		}
		rest = after
	}
}
