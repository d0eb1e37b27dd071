package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
)

// The files of a child's folder.
const (
	commandName = "command.json"
	stdinName   = "stdin"
	trustName   = "trust"
	controlName = "control"
	runningName = "running.json"
	outputName  = "output"
	shiftName   = "shift"
	resultName  = "result.json"
)

// readShift is what is to be added to a place in the end of the output's file to get the
// place in all that was written; 0 while nothing is left out of it.
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

// FileError tells that a file of a child's folder can't be read. Nothing is guessed
// about what it held.
type FileError struct {
	Name   string
	Reason error
}

// Error names the file and what is wrong with it.
func (e *FileError) Error() string { return fmt.Sprintf("file %s can't be read: %v", e.Name, e.Reason) }

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Reason }

// fileError says of a file what the codec says of a key.
func fileError(err error) error {
	var corrupt *store.CorruptError
	if errors.As(err, &corrupt) {
		return &FileError{Name: corrupt.Key, Reason: corrupt.Reason}
	}
	return err
}

// writeWhole writes a file such that nobody ever sees a part of it.
func writeWhole(dir, name string, data []byte) error {
	return write(dir, name, data, func(*os.File) error { return nil })
}

// writeDurably does so, and the file is still there after a crash of the machine.
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
