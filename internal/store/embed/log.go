package embed

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge receives etcd's log. It passes warnings and errors on at their own level, and the rest at
// trace. It also replaces the exit of the process when etcd gives up.
type bridge struct {
	log  hclog.Logger
	with []zapcore.Field
	// quiet is set while the server is closing: etcd's warnings are then only effects of the close.
	quiet *atomic.Bool
}

// harmless lists messages of etcd that do not apply to the way berth uses it, or that belong to what works as
// it should, with a text that their error must contain.
var harmless = map[string]string{
	"Running http and grpc server on single port. This is not recommended for production.": "",
	"simple token is not cryptographically signed":                                         "",
	// Of a data directory that Config.SocketGroup may enter.
	"check file permission": "",
	// Of the socket of httpSocket.
	"scheme is http or unix while key and cert files are present; ignoring key and cert files":           "",
	"scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL": "",
	// Of a learner that does not have the data of the cluster yet.
	"Failed to detect schema version":  noTerm,
	"failed to update storage version": noTerm,
	// Of a member that reads the log of a cluster of which a member was replaced.
	"skipped attributes update of removed member": "",
}

// noTerm is an error of etcd in a data directory without an entry of the log of raft.
const noTerm = "missing term information"

// repeats is how often a message is logged in each period of repeatsIn: a member that the others
// refuse, say, repeats its warnings some 50 times a second. At trace, all are logged.
const (
	repeats   = 3
	repeatsIn = 10 * time.Second
)

// zapLogger returns the logger for etcd. It calls stopped with the reason when etcd gives up;
// stopped may be called more than once, and must not block.
func (b *bridge) zapLogger(stopped func(error)) *zap.Logger {
	hook := &giveUp{stopped: stopped}
	var core zapcore.Core = b
	if !b.log.IsTrace() {
		core = zapcore.NewSamplerWithOptions(b, repeatsIn, repeats, 0)
	}
	return zap.New(core, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// giveUp replaces etcd's os.Exit: it ends the goroutine that failed, and reports why. The
// goroutine's locks stay locked, so every goroutine that needs them blocks; the owner of the server
// should close it and exit.
type giveUp struct{ stopped func(error) }

// OnWrite is called after a fatal entry was written.
func (g *giveUp) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	g.stopped(err)
	runtime.Goexit()
}

// Enabled reports whether entries of a level are logged, so that etcd does not create others.
func (b *bridge) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || b.log.IsTrace()
}

// With returns a core that adds fields to every entry.
func (b *bridge) With(fields []zapcore.Field) zapcore.Core {
	c := *b
	c.with = slices.Concat(b.with, fields)
	return &c
}

// Check adds the core to an entry if its level is enabled.
func (b *bridge) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(entry.Level) {
		return checked.AddCore(entry, b)
	}
	return checked
}

// Write passes the entry on.
func (b *bridge) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(b.with, fields) {
		f.AddTo(enc)
	}
	args := make([]any, 0, 2*len(enc.Fields))
	for _, key := range slices.Sorted(maps.Keys(enc.Fields)) {
		args = append(args, key, enc.Fields[key])
	}
	b.log.Log(b.level(entry, fmt.Sprint(enc.Fields["error"])), entry.Message, args...)
	return nil
}

// level returns the level of an entry with the text of its error.
func (b *bridge) level(entry zapcore.Entry, cause string) hclog.Level {
	needs, expected := harmless[entry.Message]
	switch {
	case entry.Level > zapcore.ErrorLevel: // etcd gives up
		return hclog.Error
	case entry.Level < zapcore.WarnLevel, b.quiet.Load(), expected && strings.Contains(cause, needs):
		return hclog.Trace
	case entry.Level == zapcore.WarnLevel:
		return hclog.Warn
	}
	return hclog.Error
}

// Sync has nothing to flush.
func (b *bridge) Sync() error { return nil }
