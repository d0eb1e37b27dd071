package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// Stop is why a command was stopped.
type Stop string

// The reasons.
const (
	// NotStopped: it was not stopped.
	NotStopped Stop = ""
	// ByWorker: its worker called [Child.Stop].
	ByWorker Stop = "worker"
	// ByTimeout: its timeout has ended.
	ByTimeout Stop = "timeout"
	// ByExpiry: its validity has ended, since its worker did not extend it.
	ByExpiry Stop = "expired"
	// BySignal: its supervisor got a signal to stop, for example at a shutdown.
	BySignal Stop = "signal"
)

var stops = []Stop{NotStopped, ByWorker, ByTimeout, ByExpiry, BySignal}

// Result is how a command has ended.
type Result struct {
	// ExitCode is the command's own, or 128 plus the number of the signal that ended it;
	// 127 if the command does not exist and 126 if it cannot be run.
	ExitCode int `json:"exit_code"`
	// Signal is the name of that signal, such as SIGKILL.
	Signal string `json:"signal,omitempty"`
	// StartedAt and EndedAt are times of the wall clock. Took is measured by the boot
	// clock.
	StartedAt time.Time     `json:"started_at"`
	EndedAt   time.Time     `json:"ended_at"`
	Took      time.Duration `json:"took"`
	// Stopped is why it was stopped. Its exit code may be 0 all the same.
	Stopped Stop `json:"stopped,omitempty"`
	// Reason is that of [Child.Stop], or the name of the signal that the supervisor got.
	Reason string `json:"reason,omitempty"`
	// Error is why the command could not be started. No part of it has run then.
	Error string `json:"error,omitempty"`
	// OutputCut is how many bytes of its output were not kept.
	OutputCut int64 `json:"output_cut,omitempty"`
}

// maxText bounds the texts in a result.
const maxText = 1 << 10

// clip makes s one line of at most maxText bytes.
func clip(s string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return text.CutWithin(line, maxText)
}

type resultFile struct {
	store.V
	Result
}

func encodeResult(r Result) []byte {
	r.Error, r.Reason = clip(r.Error), clip(r.Reason)
	return store.Encode(resultFile{store.Now, r})
}

func decodeResult(data []byte) (Result, error) {
	var f resultFile
	if err := store.Decode(resultName, data, &f); err != nil {
		return Result{}, fileError(err)
	}
	if err := f.check(); err != nil {
		return Result{}, &FileError{Name: resultName, Reason: err}
	}
	return f.Result, nil
}

func (r *Result) check() error {
	switch {
	case r.ExitCode < 0 || r.ExitCode > 255:
		return fmt.Errorf("exit_code: %d is out of range", r.ExitCode)
	case !slices.Contains(stops, r.Stopped):
		return fmt.Errorf("stopped: %q is not a reason", r.Stopped)
	case r.StartedAt.IsZero() || r.EndedAt.IsZero() || r.Took < 0:
		return errors.New("started_at, ended_at or took is missing")
	case r.OutputCut < 0:
		return fmt.Errorf("output_cut: %d is negative", r.OutputCut)
	}
	return nil
}

// readResult reads the result of a folder. Its error is fs.ErrNotExist if there is none.
func readResult(dir string) (Result, error) {
	data, err := os.ReadFile(filepath.Join(dir, resultName))
	if err != nil {
		return Result{}, err
	}
	return decodeResult(data)
}

var (
	// ErrRunning means that a child has not ended yet.
	ErrRunning = errors.New("the command is still running")
	// ErrVanished means that a child has ended without a result: its supervisor was killed,
	// or was never started.
	ErrVanished = errors.New("the command has vanished: its supervisor was killed before it wrote a result")
	// ErrNotBegun means that the command of a vanished child was never started.
	ErrNotBegun = errors.New("the command was never started")
)
