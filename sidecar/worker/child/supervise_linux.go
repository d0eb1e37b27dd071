package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/lease"
)

// Supervise runs the command of a folder that [Start] has created, until all its processes
// have ended and its result is on disk. It must be all that its process does: it closes
// unknown files, changes the directory and the environment, and adopts orphans.
func Supervise(dir string) error {
	control, err := takeControl(dir)
	if err != nil {
		return err
	}
	defer control.Close()
	if err := closeInherited(); err != nil {
		return err
	}
	s := &supervisor{
		dir: dir, control: control, clock: lease.BootClock(),
		orders: make(chan string, 1), signals: make(chan os.Signal, 8), ended: make(chan os.Signal, 1),
	}
	signal.Notify(s.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	signal.Notify(s.ended, unix.SIGCHLD)
	return s.save(s.perform())
}

// supervisor supervises one command. All but the reading of the pipes is done by one
// goroutine.
type supervisor struct {
	dir     string
	clock   lease.Clock
	control *os.File

	orders  chan string // the reasons of Stop
	signals chan os.Signal
	ended   chan os.Signal // SIGCHLD

	command Command
	guard   guard
	leader  *proc.Group
	orphans bool // adopted children may have ended
	result  Result
	// outsideUntil is when processes outside of the session are killed.
	outsideUntil time.Duration
}

// outsideGrace is how long processes outside of the session may take to stop after the
// command has ended. The grace of the command does not apply: a command waits for all that
// it needs.
const outsideGrace = time.Second

// perform runs the command and returns how it has ended.
func (s *supervisor) perform() Result {
	began := s.clock.Now()
	s.result.StartedAt = time.Now()
	if err := s.run(began); err != nil {
		var start *proc.StartError
		s.result.ExitCode, s.result.Error = proc.ExitNotExecutable, err.Error()
		if errors.As(err, &start) {
			s.result.ExitCode = start.Code
		}
	}
	s.result.EndedAt, s.result.Took = time.Now(), s.clock.Now()-began
	return s.result
}

// run runs the command. An error means that it was not started.
func (s *supervisor) run(began time.Duration) error {
	hasStdin, err := s.prepare(began)
	if err != nil {
		return err
	}
	out, err := openOutput(s.dir, s.command.OutputLimit)
	if err != nil {
		return err
	}
	s.leader, err = startLeader(s.command, stdinOf(s.dir, hasStdin), out.end)
	out.started()
	if err == nil {
		go s.listen()
		s.await()
	}
	s.result.OutputCut = out.finish()
	return err
}

// prepare reads the command, and prepares its start.
func (s *supervisor) prepare(began time.Duration) (hasStdin bool, err error) {
	data, err := os.ReadFile(filepath.Join(s.dir, commandName))
	if err != nil {
		return false, err
	}
	if s.command, hasStdin, err = decodeCommand(data); err != nil {
		return false, err
	}
	if s.guard.Until, err = readValidity(s.dir); err != nil {
		return false, err
	}
	s.guard.Grace = s.command.StopGrace
	if s.command.Timeout > 0 {
		s.guard.timeoutAt = began + s.command.Timeout
	}
	if s.guard.check(s.clock.Now()) != proc.CarryOn {
		s.result.Stopped = s.guard.why
		return false, errors.New("it was not started: its validity ends before it could be stopped")
	}
	if err := adopt(); err != nil {
		return false, fmt.Errorf("adopt orphans: %w", err)
	}
	self, err := proc.Self()
	if err != nil {
		return false, err
	}
	return hasStdin, writeWhole(s.dir, runningName, store.Encode(running{store.Now, self}))
}

// listen reads orders from the pipe.
func (s *supervisor) listen() {
	for lines := bufio.NewScanner(s.control); lines.Scan(); {
		if reason, ok := decodeStop(lines.Text()); ok {
			select {
			case s.orders <- reason:
			default: // one is pending
			}
		}
	}
}

// await waits until all processes of the command have ended, and stops them in time.
func (s *supervisor) await() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ended:
			s.orphans = true
		case reason := <-s.orders:
			s.stop(ByWorker, reason)
		case got := <-s.signals:
			s.stop(BySignal, unix.SignalName(got.(unix.Signal)))
		case <-timer.C:
			if s.orphans && !s.leader.Ended() {
				s.orphans = false
				reapOrphans(s.leader)
			}
		}
		now := s.clock.Now()
		s.readValidity()
		if s.step(now) {
			return
		}
		timer.Reset(s.guard.next(now))
	}
}

// readValidity reads until when the command may run. An incomplete write is read again at
// the next check.
func (s *supervisor) readValidity() {
	if until, err := readValidity(s.dir); err == nil {
		s.guard.Until = until
	}
}

func (s *supervisor) stop(why Stop, reason string) {
	if !s.guard.Stopping() {
		s.result.Reason = reason
	}
	s.guard.stop(s.clock.Now(), why)
}

// step does what is due, and reports whether all processes of the command have ended.
func (s *supervisor) step(now time.Duration) (over bool) {
	if !s.leader.Reaped() && s.leader.Ended() {
		s.bury(now)
	}
	if s.leader.Reaped() {
		if !reapAll() {
			return true
		}
		s.guard.stop(now, NotStopped)
		if now >= s.outsideUntil {
			signalOutside(unix.SIGKILL)
		}
	}
	switch s.guard.check(now) {
	case proc.Terminate:
		s.leader.Terminate()
	case proc.Kill:
		s.leader.Signal(unix.SIGKILL)
		if s.leader.Reaped() && !killChildren() {
			return true
		}
	}
	return false
}

// bury reaps a leader that has ended, and stops the processes that it leaves.
func (s *supervisor) bury(now time.Duration) {
	if s.guard.Terminated() {
		s.result.Stopped = s.guard.why
	} else {
		s.result.Reason = "" // it has ended by itself
		s.guard.SkipTerminate()
		s.leader.Terminate()
	}
	status := s.leader.Reap()
	s.result.ExitCode = proc.ExitCode(status)
	if status.Signaled() {
		s.result.Signal = proc.SignalName(status.Signal())
	}
	s.outsideUntil = now + outsideGrace
	signalOutside(unix.SIGTERM)
	signalOutside(unix.SIGCONT)
}

// save writes the result, and tries again until the validity has ended.
func (s *supervisor) save(r Result) error {
	for {
		err := writeDurably(s.dir, resultName, encodeResult(r))
		if err == nil {
			return nil
		}
		if s.readValidity(); s.clock.Now() >= s.guard.Until {
			return fmt.Errorf("the result cannot be written: %w", err)
		}
		<-time.After(proc.CheckEvery)
	}
}

// drainTimeout bounds the reading of the remaining output after all processes have ended.
// It takes time only if another process has got hold of the pipe.
const drainTimeout = 2 * time.Second

// outputPipe copies the output of the command into the file.
type outputPipe struct {
	end  int // of the command
	from *os.File
	file *os.File
	to   *output
	done sync.WaitGroup
}

func openOutput(dir string, limit int64) (*outputPipe, error) {
	file, err := os.OpenFile(filepath.Join(dir, outputName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	to := &output{to: file, limit: limit, shifted: func(by int64) {
		_ = writeWhole(dir, shiftName, []byte(strconv.FormatInt(by, 10))) // if it fails, offsets are too small
	}}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// Only this end: programs expect that theirs blocks.
	if err := unix.SetNonblock(ends[0], true); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	p := &outputPipe{end: ends[1], from: os.NewFile(uintptr(ends[0]), outputName), file: file, to: to}
	p.done.Go(p.copy)
	return p, nil
}

func (p *outputPipe) copy() {
	for buffer := make([]byte, 32<<10); ; {
		n, err := p.from.Read(buffer)
		_, _ = p.to.Write(buffer[:n]) // it never fails
		if err != nil {
			return
		}
	}
}

// started closes the end of the command in this process.
func (p *outputPipe) started() { _ = unix.Close(p.end) }

// finish waits for the remaining output, and returns how many bytes were not kept.
func (p *outputPipe) finish() int64 {
	_ = p.from.SetReadDeadline(time.Now().Add(drainTimeout)) // a pipe has deadlines
	p.done.Wait()
	cut := p.to.finish()
	_ = errors.Join(p.from.Close(), p.file.Close()) // the result counts what was not written
	return cut
}
