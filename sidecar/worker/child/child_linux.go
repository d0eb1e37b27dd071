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

// Start starts a command under a supervisor, in a folder that it makes: dir must
// not be there yet. self is the file of berth. The command is stopped by
// trustedUntil, a time of [lease.BootClock], unless [Child.Trust] puts that off.
//
// That there is no such command, or that it can't be run, is a [Result] and no
// error of Start. The worker's death at any moment leaves a folder that [Open] can
// judge.
func Start(self, dir string, c Command, trustedUntil time.Duration) (*Child, error) {
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
	child, err := start(self, dir, c, trustedUntil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a command: %w", err), os.RemoveAll(dir))
	}
	return child, nil
}

func start(self, dir string, c Command, trustedUntil time.Duration) (*Child, error) {
	if err := prepare(dir, c, trustedUntil); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, controlName)
	// The supervisor gets the pipe open, for reading and for writing: so it is in use
	// from now on until the supervisor has ended, whatever becomes of this process.
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

// prepare makes the files of a folder.
func prepare(dir string, c Command, trustedUntil time.Duration) error {
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil { // of "" the current one
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
	if err := createTrust(dir, trustedUntil); err != nil {
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

// startSupervisor starts berth anew, in a session of its own and without any
// environment. What it has to complain about comes to the command's output.
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
		Env:   []string{"GOMAXPROCS=2"}, // it does next to nothing
		Files: []*os.File{null, out, out, control},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// openControl opens the pipe for writing. It is ENXIO if no supervisor has it.
func openControl(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
}

// checkPipe closes a file that is no pipe: nothing could be heard of it.
func checkPipe(f *os.File) error {
	info, err := f.Stat()
	if err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		err = &FileError{Name: controlName, Reason: errors.New("it is no pipe")}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// Open finds the child of a folder that an earlier worker has made: it is running,
// has ended, or has vanished. The folder must belong to no other Child.
func Open(dir string) (*Child, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find a command again: %w", err)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("find a command again: %w", err)
	}
	control, err := openControl(filepath.Join(dir, controlName))
	if err == nil {
		err = checkPipe(control)
	}
	switch {
	case errors.Is(err, unix.ENXIO), errors.Is(err, fs.ErrNotExist): // nobody has it; or Start did not come so far
		control = nil
	case err != nil:
		return nil, fmt.Errorf("find a command again: %w", err)
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

// watch waits for the supervisor's end, and then for that of all it has left
// behind. A supervisor of ours is reaped last: until then its number, which is that
// of its session, is nobody else's.
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
		_, _ = c.process.Wait() // the result tells all there is to know
	}
	close(c.done)
}

// begun tells whether a command may have been begun: its supervisor has said who it is.
func begun(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, runningName))
	return !errors.Is(err, fs.ErrNotExist)
}

// waitForReader waits until nobody has the pipe open for reading. It is false if
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

// sweepPause is how long the first pause is between two looks at what is left of a
// session; each is twice the one before, up to proc.CheckEvery.
const sweepPause = 5 * time.Millisecond

// sweep kills what is left of the session of a vanished supervisor, and waits until
// it is gone. It is false if this child was closed before.
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

// killLeft kills what is left, and tells whether there was anything.
func (c *Child) killLeft() bool {
	data, err := os.ReadFile(filepath.Join(c.dir, runningName))
	if err != nil {
		return false // no command was started
	}
	r, err := decodeRunning(data)
	if err != nil {
		return false // the machine has crashed, and nothing is left
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

// Dir is the child's folder.
func (c *Child) Dir() string { return c.dir }

// Output is the path of the file that the command's output goes to, stdout and
// stderr in their order. Lines are added to it as they come; of more than the limit it has
// the beginning and the end: see [Child.Shift].
func (c *Child) Output() string { return filepath.Join(c.dir, outputName) }

// Shift is what is to be added to a place in the end of that file to get the place in all
// that the command has written: what is left out before it.
func (c *Child) Shift() int64 { return readShift(c.dir) }

// Done is closed when the command has ended or vanished, and nothing of it is left.
func (c *Child) Done() <-chan struct{} { return c.done }

// Result tells how the command has ended. The error is [ErrRunning] until Done is
// closed, and [ErrVanished] if nobody knows.
func (c *Child) Result() (Result, error) {
	select {
	case <-c.done:
		return c.result, c.err
	default:
		return Result{}, ErrRunning
	}
}

// Stop tells the command to stop: its group gets SIGTERM, and what is left after
// the grace SIGKILL. It returns at once, and does no harm if the command has ended
// or was told before. The reason is found in the result.
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
	case failed == nil, errors.Is(failed, unix.EPIPE): // it has ended just now
		return nil
	case errors.Is(failed, unix.EAGAIN): // the pipe is full of such orders
		return nil
	}
	return fmt.Errorf("stop a command: %w", failed)
}

// Trust says until when the command may run on, a time of [lease.BootClock]. If it
// fails, what was said before holds.
func (c *Child) Trust(until time.Duration) error {
	if c.over() {
		return nil
	}
	if err := putTrust(c.dir, until); err != nil {
		return fmt.Errorf("put off the end of a command: %w", err)
	}
	return nil
}

// over tells whether the supervisor needs to be told nothing any more.
func (c *Child) over() bool {
	_, err := c.Result()
	return c.control == nil || !errors.Is(err, ErrRunning)
}

// Remove removes the folder of a child that has ended or vanished, with its result
// and its output. Any other it refuses with [ErrRunning].
func (c *Child) Remove() error {
	if _, err := c.Result(); errors.Is(err, ErrRunning) {
		return fmt.Errorf("remove %s: %w", c.dir, err)
	}
	return errors.Join(c.Close(), os.RemoveAll(c.dir))
}

// Close gives the child up without touching the command: it can be opened again.
// Done may never be closed then.
func (c *Child) Close() error { return c.close() }
