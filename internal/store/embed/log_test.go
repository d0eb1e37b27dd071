package embed

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
)

func logger(level hclog.Level) (*bytes.Buffer, *bridge) {
	var out bytes.Buffer
	log := hclog.New(&hclog.LoggerOptions{Output: &out, Level: level, DisableTime: true})
	return &out, &bridge{log: log, quiet: new(atomic.Bool)}
}

func TestOnlyWarningsAndErrorsOfEtcdReachTheLog(t *testing.T) {
	out, b := logger(hclog.Debug)
	l := b.zapLogger(func(error) {}).With(zap.String("member", "m"))
	l.Debug("a debug line")
	l.Info("an info line")
	l.Warn("simple token is not cryptographically signed")
	l.Warn("slow", zap.Int("ms", 5))
	l.Error("failed", zap.Error(errors.New("why")))
	want := "[WARN]  slow: member=m ms=5\n[ERROR] failed: error=why member=m\n"
	if out.String() != want {
		t.Errorf("the log is\n%swant\n%s", out, want)
	}
}

func TestAnErrorThatIsHarmlessForALearnerIsLoggedWithAnotherCause(t *testing.T) {
	out, b := logger(hclog.Debug)
	l := b.zapLogger(func(error) {})
	l.Error("failed to update storage version", zap.Error(errors.New("cannot detect storage schema version: missing term information")))
	if out.Len() > 0 {
		t.Errorf("the log of a learner without data is\n%s", out)
	}
	l.Error("failed to update storage version", zap.Error(errors.New("disk full")))
	if !strings.Contains(out.String(), "[ERROR] failed to update storage version: error=\"disk full\"") {
		t.Errorf("the log is\n%s", out)
	}
}

func TestWhatEtcdSaysWhileClosingIsQuiet(t *testing.T) {
	out, b := logger(hclog.Debug)
	b.quiet.Store(true)
	b.zapLogger(func(error) {}).Error("use of closed network connection")
	if out.Len() > 0 {
		t.Errorf("the log is\n%swant nothing", out)
	}
}

func TestRepeatsOfAMessageAreFew(t *testing.T) {
	out, b := logger(hclog.Debug)
	l := b.zapLogger(func(error) {})
	for i := range 100 {
		l.Warn("rejected connection", zap.Int("n", i))
	}
	l.Warn("another")
	if n := strings.Count(out.String(), "rejected"); n != repeats || !strings.Contains(out.String(), "another") {
		t.Errorf("the log is\n%s", out)
	}
}

func TestTraceShowsAll(t *testing.T) {
	out, b := logger(hclog.Trace)
	b.zapLogger(func(error) {}).Debug("a debug line")
	if !strings.Contains(out.String(), "[TRACE] a debug line") {
		t.Errorf("the log is\n%swant the line", out)
	}
}

func TestEtcdGivingUpEndsItsGoroutineAndNotTheProcess(t *testing.T) {
	cause := errors.New("no space left")
	for name, giveUp := range map[string]func(*zap.Logger){
		"fatal": func(l *zap.Logger) { l.Fatal("failed to save", zap.Error(cause)) },
		"panic": func(l *zap.Logger) { l.Panic("failed to save", zap.Error(cause)) },
	} {
		t.Run(name, func(t *testing.T) {
			out, b := logger(hclog.Debug)
			b.quiet.Store(true) // even then
			reported := make(chan error, 1)
			l := b.zapLogger(func(err error) { reported <- err })
			ended, after := make(chan struct{}), false
			go func() {
				defer close(ended)
				giveUp(l)
				after = true
			}()
			<-ended
			if after {
				t.Error("the goroutine went on")
			}
			if err := <-reported; !errors.Is(err, cause) || !strings.Contains(err.Error(), "failed to save") {
				t.Errorf("got %q, want the message and the cause", err)
			}
			if !strings.Contains(out.String(), "[ERROR] failed to save") {
				t.Errorf("the log is\n%swant the message", out)
			}
		})
	}
}
