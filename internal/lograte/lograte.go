// Package lograte bounds how often is logged what callers cause, so that no caller can fill a log, and what fails
// try after try.
package lograte

import (
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// Most is how many lines of one kind are logged within Window.
	Most   = 10
	Window = 10 * time.Second
)

// Limit logs at most [Most] lines of each kind within [Window]. How many it has suppressed it logs at
// the end of the window. The zero value is ready.
type Limit struct {
	// mu guards what follows.
	mu    sync.Mutex
	kinds map[string]*kind
}

// kind is what is known of the lines of a kind.
type kind struct {
	begun      time.Time // of the window: when its first line came
	logged     int
	suppressed int
	end        *time.Timer // set while lines are suppressed
	log        hclog.Logger
	level      hclog.Level
}

// Log logs a line of a kind, or counts it as suppressed. There is a fixed number of kinds: none comes
// from a caller.
func (l *Limit) Log(log hclog.Logger, level hclog.Level, name, message string, args ...any) {
	if level >= log.GetLevel() && l.Allow(log, level, name) {
		log.Log(level, message, args...)
	}
}

// Allow reports whether a line of a kind is within the limit, and otherwise counts it as suppressed:
// how many those are is logged to log.
func (l *Limit) Allow(log hclog.Logger, level hclog.Level, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]*kind{}
	}
	k := l.kinds[name]
	if k == nil {
		k = &kind{}
		l.kinds[name] = k
	}
	now := time.Now()
	if age := now.Sub(k.begun); k.end == nil && (age >= Window || age < 0) {
		k.begun, k.logged = now, 0
	}
	if k.logged < Most {
		k.logged++
		return true
	}
	if k.suppressed++; k.end == nil {
		k.log, k.level = log, level
		k.end = time.AfterFunc(Window-now.Sub(k.begun), func() { l.flush(name) })
	}
	return false
}

// flush ends the window of a kind, and logs how many lines were suppressed in it.
func (l *Limit) flush(name string) {
	l.mu.Lock()
	k := l.kinds[name]
	n, log, level := k.suppressed, k.log, k.level
	if k.end != nil {
		k.end.Stop()
	}
	*k = kind{}
	l.mu.Unlock()
	if n > 0 {
		log.Log(level, "lines were suppressed, since there were too many of their kind", "kind", name, "suppressed", n, "within", Window)
	}
}

// Flush ends all windows: see [Limit]. It is called at the end of a process.
func (l *Limit) Flush() {
	l.mu.Lock()
	names := make([]string, 0, len(l.kinds))
	for name := range l.kinds {
		names = append(names, name)
	}
	l.mu.Unlock()
	for _, name := range names {
		l.flush(name)
	}
}
