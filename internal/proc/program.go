//go:build unix

package proc

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// shell runs programs that have no format of the system: scripts without "#!".
	shell = "/bin/sh"
	// defaultPath is the PATH of an environment that has none, as of execvp(3).
	defaultPath = "/bin:/usr/bin"
	// headSize is how much of a file the kernel reads to find out how it is run.
	headSize = 256
	// maxNested is how many scripts may be the interpreters of each other.
	maxNested = 4
)

// LookPath returns the file of a command. As in a shell, and unlike in [exec.LookPath],
// the PATH of env may contain the current directory. An error, which is a [*StartError],
// means that the file cannot be run: also if the interpreter that it names is missing.
func LookPath(name string, env []string) (string, error) {
	path, err := search(name, env)
	if err == nil {
		err = checkInterpreter(path, env, maxNested)
	}
	if err != nil {
		return "", startError(err)
	}
	return path, nil
}

// search finds the file of a command.
func search(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var denied error
	for dir := range strings.SplitSeq(pathOf(env), ":") {
		file := cmp.Or(dir, ".") + "/" + name
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if info, missing := os.Stat(file); missing == nil && !info.IsDir() && denied == nil {
			denied = err
		}
	}
	return "", cmp.Or(denied, error(&exec.Error{Name: name, Err: exec.ErrNotFound}))
}

func pathOf(env []string) string {
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			return path
		}
	}
	return defaultPath
}

// executable returns an error if a file cannot be executed.
func executable(file string) error {
	if _, err := exec.LookPath(file); err != nil { // it has a slash: PATH is not read
		return err
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return &exec.Error{Name: file, Err: fs.ErrPermission}
	}
	return nil
}

// checkInterpreter returns an error if the interpreter that an executable file names does not
// exist, or cannot be executed. Nothing is known of a file that cannot be read.
func checkInterpreter(file string, env []string, nested int) error {
	name, argument := interpreterOf(headOf(file))
	if name == "" {
		name, _ = loaderOf(file)
	}
	if name == "" || nested == 0 {
		return nil
	}
	from := name
	if !strings.Contains(name, "/") {
		from = "./" + name // the kernel does not search in PATH
	}
	err := executable(from)
	if err == nil && filepath.Base(name) == "env" && isName(argument) {
		name = argument
		from, err = search(argument, env)
	}
	if err == nil {
		return checkInterpreter(from, env, nested-1)
	}
	var find *exec.Error
	if errors.As(err, &find) {
		err = find.Err
	}
	var stat *fs.PathError
	if errors.As(err, &stat) {
		err = stat.Err
	}
	if strings.HasSuffix(name, "\r") {
		err = fmt.Errorf("%w: its lines end as on Windows", err)
	}
	return &fs.PathError{Op: "run", Path: file, Err: fmt.Errorf("its interpreter %q: %w", name, err)}
}

// isName reports whether the argument of env is the name of a program: no option or variable.
func isName(argument string) bool {
	return argument != "" && argument[0] != '-' && !strings.Contains(argument, "=")
}

// headOf returns the beginning of a file.
func headOf(file string) []byte {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	head := make([]byte, headSize)
	n, _ := io.ReadFull(f, head) // what cannot be read is not known
	return head[:n]
}

// interpreterOf returns the interpreter that the first line of a script names, and its
// argument: all that follows. They are empty if the kernel finds none in it.
func interpreterOf(head []byte) (name, argument string) {
	line, ok := bytes.CutPrefix(head, []byte("#!"))
	if !ok {
		return "", ""
	}
	line, _, whole := bytes.Cut(line, []byte("\n"))
	line, _, ended := bytes.Cut(line, []byte("\x00"))
	line = bytes.TrimLeft(line, " \t")
	end := bytes.IndexAny(line, " \t")
	switch {
	case end >= 0:
		return string(line[:end]), string(bytes.Trim(line[end:], " \t"))
	case !whole && !ended && len(head) == headSize:
		return "", "" // it goes on
	}
	return string(line), ""
}

// loaderOf returns the loader that a program names, if it is of the kind of this program: one
// for another kind of machine may be run by an emulator.
func loaderOf(file string) (string, error) {
	self, err := os.Executable()
	if err != nil || !sameKind(headOf(file), headOf(self)) {
		return "", err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return loaderIn(f)
}

// loaderIn reads the loader that a program for this machine names, from the headers of its segments. It
// knows the ELF format with 64 bits. Package debug/elf would add 250 KB to the binary.
func loaderIn(f io.ReaderAt) (string, error) {
	const (
		class, is64, headerSize, segmentSize, loaderType = 4, 2, 64, 56, 3
	)
	header := make([]byte, headerSize)
	if _, err := f.ReadAt(header, 0); err != nil || header[class] != is64 {
		return "", err
	}
	order := binary.NativeEndian
	table, size, count := order.Uint64(header[32:]), order.Uint16(header[54:]), order.Uint16(header[56:])
	if size != segmentSize {
		return "", fmt.Errorf("a segment header has %d bytes", size)
	}
	segment := make([]byte, segmentSize)
	for i := range uint64(count) {
		if _, err := f.ReadAt(segment, int64(table+i*segmentSize)); err != nil {
			return "", err
		}
		length := order.Uint64(segment[32:])
		if order.Uint32(segment) != loaderType || length > unix.PathMax {
			continue
		}
		name := make([]byte, length)
		if _, err := f.ReadAt(name, int64(order.Uint64(segment[8:]))); err != nil {
			return "", err
		}
		return string(bytes.TrimRight(name, "\x00")), nil
	}
	return "", nil
}

// sameKind reports whether two files are programs for the same kind of machine, by their ELF
// headers.
func sameKind(a, b []byte) bool {
	const order, machine, end = 5, 18, 20
	if len(a) < end || len(b) < end || !bytes.HasPrefix(a, []byte("\x7fELF")) {
		return false
	}
	return bytes.Equal(a[:order+1], b[:order+1]) && bytes.Equal(a[machine:end], b[machine:end])
}

// ByShell returns the command that runs a file by the shell, as execvp(3) does if the system
// knows no format of the file, which err says. It is false of other errors, and of files whose
// first line is no text, which may be programs for another kind of machine.
func ByShell(err error, path string, argv []string) ([]string, bool) {
	first, _, _ := bytes.Cut(headOf(path), []byte("\n")) // the others may be data that the shell does not read
	if !errors.Is(err, unix.ENOEXEC) || slices.Contains(first, 0) {
		return nil, false
	}
	return append([]string{shell, path}, argv[1:]...), true
}
