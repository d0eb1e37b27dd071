package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// Child is a command as its worker sees it.
type Child struct {
	dir     string
	process *os.Process // the supervisor, if this process has started it
	control *os.File    // the pipe's end for writing; nil if the supervisor was gone at once

	done  chan struct{}
	quit  chan struct{}
	close func() error
	tasks sync.WaitGroup

	// Set before done is closed.
	result Result
	err    error
}

// Start starts a command under a supervisor, in the folder dir, which must not exist yet.
// self is the executable of berth. The command is stopped by validUntil, a time of
// [lease.BootClock], unless [Child.Extend] extends that.
//
// A command that does not exist or cannot be run is a [Result], not an error. If the
// worker dies at any moment, [Open] can open the folder.
func Start(self, dir string, c Command, validUntil time.Duration) (*Child, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("start a command: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start a command: %w", err)
	}
	child, err := start(self, dir, c, validUntil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a command: %w", err), os.RemoveAll(dir))
	}
	return child, nil
}

func start(self, dir string, c Command, validUntil time.Duration) (*Child, error) {
	if err := prepare(dir, c, validUntil); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, controlName)
	// The supervisor inherits the pipe, open for reading and writing: so the pipe has a
	// reader until the supervisor has ended, whatever happens to this process.
	theirs, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	ours, err := openControl(path)
	if err != nil {
		return nil, err
	}
	process, err := startSupervisor(self, dir, theirs)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return newChild(dir, ours, process), nil
}

// prepare creates the files of a folder.
func prepare(dir string, c Command, validUntil time.Duration) error {
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil { // "" is the current one
		return err
	}
	if err := writeWhole(dir, commandName, encodeCommand(c)); err != nil {
		return err
	}
	if len(c.Stdin) > 0 {
		if err := writeWhole(dir, stdinName, c.Stdin); err != nil {
			return err
		}
	}
	if err := createValidity(dir, validUntil); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, outputName), nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mkfifo(filepath.Join(dir, controlName), 0o600); err != nil {
		return fmt.Errorf("make the pipe %s: %w", controlName, err)
	}
	return nil
}

// startSupervisor starts berth in a new session and without an environment. Its stderr is
// the command's output.
func startSupervisor(self, dir string, control *os.File) (*os.Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	out, err := os.OpenFile(filepath.Join(dir, outputName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	return os.StartProcess(self, []string{"berth", Verb, dir}, &os.ProcAttr{
		Env:   []string{"GOMAXPROCS=2"}, // it is idle most of the time
		Files: []*os.File{null, out, out, control},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// openControl opens the pipe for writing. Its error is ENXIO if no supervisor has it.
func openControl(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
}

// checkPipe closes a file that is not a pipe, which would never report an end.
func checkPipe(f *os.File) error {
	info, err := f.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		err = &FileError{Name: controlName, Reason: errors.New("it is not a pipe")}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// Open opens the folder that [Start] has created in an earlier process. No other Child
// may use the folder.
func Open(dir string) (*Child, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open a command: %w", err)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open a command: %w", err)
	}
	control, err := openControl(filepath.Join(dir, controlName))
	if err == nil {
		err = checkPipe(control)
	}
	switch {
	case errors.Is(err, unix.ENXIO), errors.Is(err, fs.ErrNotExist): // it has no reader, or Start was interrupted
		control = nil
	case err != nil:
		return nil, fmt.Errorf("open a command: %w", err)
	}
	return newChild(dir, control, nil), nil
}

func newChild(dir string, control *os.File, process *os.Process) *Child {
	c := &Child{dir: dir, control: control, process: process, done: make(chan struct{}), quit: make(chan struct{})}
	c.close = sync.OnceValue(func() error {
		close(c.quit)
		var err error
		if c.control != nil {
			err = c.control.Close()
		}
		c.tasks.Wait()
		return err
	})
	c.tasks.Go(c.watch)
	return c
}

// watch waits for the end of the supervisor, and of all processes that it leaves. If it is
// a child of this process, it is reaped last: until then, no other process can get its
// number, which is that of its session.
func (c *Child) watch() {
	if c.control != nil && !waitForReader(c.control) {
		return
	}
	c.result, c.err = readResult(c.dir)
	if c.err != nil {
		if !c.sweep() {
			return
		}
		if errors.Is(c.err, fs.ErrNotExist) {
			c.err = ErrVanished
			if !begun(c.dir) {
				c.err = fmt.Errorf("%w: %w", ErrVanished, ErrNotBegun)
			}
		} else {
			c.err = fmt.Errorf("%w: %w", ErrVanished, c.err)
		}
	}
	if c.process != nil {
		_, _ = c.process.Wait() // the result has its status
	}
	close(c.done)
}

// begun reports whether the command may have been started.
func begun(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, runningName))
	return !errors.Is(err, fs.ErrNotExist)
}

// waitForReader waits until no process has the pipe open for reading. It reports false if
// the file was closed before.
func waitForReader(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	return conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		err := proc.Retry(func() error { _, err := unix.Poll(fds, 0); return err })
		return err == nil && fds[0].Revents&unix.POLLERR != 0
	}) == nil
}

// sweepPause is the first pause between two checks of a session. Each is twice as long as
// the one before, up to [proc.CheckEvery].
const sweepPause = 5 * time.Millisecond

// sweep kills the processes of the session of a vanished supervisor, and waits for their
// end. It reports false if the Child was closed before.
func (c *Child) sweep() bool {
	pause := sweepPause
	for c.killLeft() {
		select {
		case <-time.After(pause):
			pause = min(2*pause, proc.CheckEvery)
		case <-c.quit:
			return false
		}
	}
	return true
}

// killLeft kills these processes, and reports whether there were any.
func (c *Child) killLeft() bool {
	data, err := os.ReadFile(filepath.Join(c.dir, runningName))
	if err != nil {
		return false // no command was started
	}
	r, err := decodeRunning(data)
	if err != nil {
		return false // after a crash of the machine, which ended all processes
	}
	if here, err := proc.Self(); err != nil || here.Boot != r.Boot || here.Namespace != r.Namespace {
		return false
	}
	all, err := proc.All()
	if err != nil {
		return false
	}
	some := false
	for _, p := range r.LeftOf(all) {
		some = p.Kill() || some
	}
	return some
}

// Dir returns the child's folder.
func (c *Child) Dir() string { return c.dir }

// Output returns the path of the file with the output of the command, stdout and stderr
// in their order. Lines are added as the command writes them. Of an output beyond the
// limit, the file has the beginning and the end: see [Child.Shift].
func (c *Child) Output() string { return filepath.Join(c.dir, outputName) }

// Shift returns what must be added to an offset in the end of that file to get the offset
// in the whole output.
func (c *Child) Shift() int64 { return readShift(c.dir) }

// Done is closed when the command has ended or vanished, and nothing of it is left.
func (c *Child) Done() <-chan struct{} { return c.done }

// Result returns how the command has ended. The error is [ErrRunning] until Done is
// closed, and [ErrVanished] if there is no result.
func (c *Child) Result() (Result, error) {
	select {
	case <-c.done:
		return c.result, c.err
	default:
		return Result{}, ErrRunning
	}
}

// Stop stops the command: its group gets SIGTERM, and after the grace SIGKILL. It returns
// at once, and has no effect if the command has ended or is being stopped. The result has
// the reason.
func (c *Child) Stop(reason string) error {
	if c.over() {
		return nil
	}
	conn, err := c.control.SyscallConn()
	if err != nil {
		return fmt.Errorf("stop a command: %w", err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = proc.Retry(func() error { _, err := unix.Write(int(fd), encodeStop(reason)); return err })
	})
	switch {
	case err != nil:
		return fmt.Errorf("stop a command: %w", err)
	case failed == nil, errors.Is(failed, unix.EPIPE): // it has just ended
		return nil
	case errors.Is(failed, unix.EAGAIN): // the pipe is full of orders to stop
		return nil
	}
	return fmt.Errorf("stop a command: %w", failed)
}

// Extend sets the end of the command's validity, a time of [lease.BootClock]. If it fails,
// the earlier time holds.
func (c *Child) Extend(until time.Duration) error {
	if c.over() {
		return nil
	}
	if err := putValidity(c.dir, until); err != nil {
		return fmt.Errorf("extend a command: %w", err)
	}
	return nil
}

// over reports whether the supervisor has ended.
func (c *Child) over() bool {
	_, err := c.Result()
	return c.control == nil || !errors.Is(err, ErrRunning)
}

// Remove removes the folder of a child that has ended or vanished, with its result and
// its output. Its error is [ErrRunning] for any other child.
func (c *Child) Remove() error {
	if _, err := c.Result(); errors.Is(err, ErrRunning) {
		return fmt.Errorf("remove %s: %w", c.dir, err)
	}
	return errors.Join(c.Close(), os.RemoveAll(c.dir))
}

// Close releases the Child and leaves the command as it is: it can be opened again. Done
// may remain open.
func (c *Child) Close() error { return c.close() }
