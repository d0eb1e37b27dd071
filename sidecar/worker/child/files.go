package child

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
)

// The files of a child's folder.
const (
	commandName  = "command.json"
	stdinName    = "stdin"
	validityName = "valid_until"
	controlName  = "control"
	runningName  = "running.json"
	outputName   = "output"
	shiftName    = "shift"
	resultName   = "result.json"
)

// readShift returns what must be added to an offset in the end of the output file to get
// the offset in the whole output; 0 while the file has the whole output.
func readShift(dir string) int64 {
	text, err := os.ReadFile(filepath.Join(dir, shiftName))
	if err != nil {
		return 0
	}
	by, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return by
}

// running is running.json: the supervisor's process, which leads its session.
type running struct {
	store.V
	proc.ID
}

func decodeRunning(data []byte) (running, error) {
	var r running
	if err := store.Decode(runningName, data, &r); err != nil {
		return running{}, fileError(err)
	}
	if r.PID <= 0 || r.Boot == "" || r.Namespace == 0 {
		return running{}, &FileError{Name: runningName, Reason: errors.New("pid, boot or pid_namespace is missing")}
	}
	return r, nil
}

// FileError means that a file of a child's folder cannot be read.
type FileError struct {
	Name   string
	Reason error
}

// Error names the file and the reason.
func (e *FileError) Error() string {
	return fmt.Sprintf("file %s cannot be read: %v", e.Name, e.Reason)
}

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Reason }

// fileError converts an error of the codec.
func fileError(err error) error {
	var corrupt *store.CorruptError
	if errors.As(err, &corrupt) {
		return &FileError{Name: corrupt.Key, Reason: corrupt.Reason}
	}
	return err
}

// writeWhole writes a file atomically.
func writeWhole(dir, name string, data []byte) error {
	return write(dir, name, data, func(*os.File) error { return nil })
}

// writeDurably is writeWhole, and the file survives a crash of the machine.
func writeDurably(dir, name string, data []byte) error {
	if err := write(dir, name, data, (*os.File).Sync); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func write(dir, name string, data []byte, before func(*os.File) error) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = before(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// The file valid_until is one short line that is overwritten in place: a version, the time
// until which the command may run, in nanoseconds of the boot clock, and a checksum of
// both. A reader detects an incomplete write and keeps the earlier time. Overwriting needs
// no disk space.
const validityFormat = "v1 %020d"

func encodeValidity(until time.Duration) []byte {
	head := fmt.Sprintf(validityFormat, max(0, until))
	return fmt.Appendf(nil, "%s %08x\n", head, crc32.ChecksumIEEE([]byte(head)))
}

func decodeValidity(data []byte) (time.Duration, error) {
	fields := strings.Fields(string(data))
	if len(fields) == 3 {
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if until := time.Duration(n); err == nil && string(encodeValidity(until)) == string(data) {
			return until, nil
		}
	}
	return 0, &FileError{Name: validityName, Reason: errors.New("it is not a time with its checksum")}
}

// createValidity creates the file.
func createValidity(dir string, until time.Duration) error {
	return os.WriteFile(filepath.Join(dir, validityName), encodeValidity(until), 0o600)
}

// putValidity overwrites the file, which must exist.
func putValidity(dir string, until time.Duration) error {
	f, err := os.OpenFile(filepath.Join(dir, validityName), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(encodeValidity(until), 0)
	return errors.Join(err, f.Close())
}

// readValidity reads the file.
func readValidity(dir string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(dir, validityName))
	if err != nil {
		return 0, err
	}
	return decodeValidity(data)
}

// An order is one line in the control pipe, short enough to be written atomically.

const stopOrder = "stop"

// encodeStop writes the order to stop.
func encodeStop(reason string) []byte {
	return []byte(stopOrder + " " + clip(reason) + "\n")
}

// decodeStop reads a line without its end. It reports false if that is not an order.
func decodeStop(line string) (reason string, ok bool) {
	word, reason, _ := strings.Cut(line, " ")
	return clip(reason), word == stopOrder
}
