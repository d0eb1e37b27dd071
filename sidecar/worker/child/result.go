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

// Stop is why a command was told to stop before it ended by itself.
type Stop string

// The reasons.
const (
	// NotStopped: it was not told.
	NotStopped Stop = ""
	// ByWorker: its worker has asked for it, with [Child.Stop].
	ByWorker Stop = "worker"
	// ByTimeout: it has run for as long as it may.
	ByTimeout Stop = "timeout"
	// ByTrust: its worker could not put off the end of trust.
	ByTrust Stop = "trust"
	// BySignal: its supervisor was told to stop, as when the machine is shut down.
	BySignal Stop = "signal"
)

var stops = []Stop{NotStopped, ByWorker, ByTimeout, ByTrust, BySignal}

// Result is how a command has ended.
type Result struct {
	// ExitCode is the command's own, or 128 and the number of the signal that has
	// ended it; 127 if there is no such command and 126 if it can't be run.
	ExitCode int `json:"exit_code"`
	// Signal is the name of that signal, such as SIGKILL.
	Signal string `json:"signal,omitempty"`
	// StartedAt and EndedAt are by the clock on the wall, and Took is by one that
	// nobody sets.
	StartedAt time.Time     `json:"started_at"`
	EndedAt   time.Time     `json:"ended_at"`
	Took      time.Duration `json:"took"`
	// Stopped is why it was told to stop, if it was. It may have ended well all the
	// same.
	Stopped Stop `json:"stopped,omitempty"`
	// Reason is the one that was given to [Child.Stop], or the name of the signal
	// that told the supervisor.
	Reason string `json:"reason,omitempty"`
	// Error is why the command could not be started. No part of it has run then.
	Error string `json:"error,omitempty"`
	// OutputCut is how many bytes of its output were not kept.
	OutputCut int64 `json:"output_cut,omitempty"`
}

// maxText bounds the texts in a result.
const maxText = 1 << 10

// clip makes one line of s, of at most maxText bytes.
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
		return fmt.Errorf("exit_code: %d is none", r.ExitCode)
	case !slices.Contains(stops, r.Stopped):
		return fmt.Errorf("stopped: %q is none of the reasons", r.Stopped)
	case r.StartedAt.IsZero() || r.EndedAt.IsZero() || r.Took < 0:
		return errors.New("started_at, ended_at, took: they are missing")
	case r.OutputCut < 0:
		return fmt.Errorf("output_cut: %d is no number of bytes", r.OutputCut)
	}
	return nil
}

// readResult reads the result of a folder. Its error is fs.ErrNotExist if there is
// none.
func readResult(dir string) (Result, error) {
	data, err := os.ReadFile(filepath.Join(dir, resultName))
	if err != nil {
		return Result{}, err
	}
	return decodeResult(data)
}
