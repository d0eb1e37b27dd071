package embed

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge is etcd's log: warnings and errors go to ours at their own level, the
// rest at trace. It is also where etcd ends a process that can't go on.
type bridge struct {
	log  hclog.Logger
	with []zapcore.Field
	// quiet is set when the server is closing: what etcd then warns of is what
	// closing looks like from inside.
	quiet *atomic.Bool
}

// harmless are warnings of etcd that say nothing about how berth uses it.
var harmless = map[string]bool{
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
}

// zapLogger returns the logger that etcd is given. stopped is called with why etcd
// gives up; it may be called more than once and must not block.
func (b *bridge) zapLogger(stopped func(error)) *zap.Logger {
	hook := &giveUp{stopped: stopped}
	return zap.New(b, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// giveUp replaces etcd's os.Exit: it ends the goroutine that failed, and reports
// why. The goroutine's locks stay locked, so what depends on them stops; the owner
// of the server closes it and exits.
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

// Enabled is what keeps etcd from making entries that nobody reads.
func (b *bridge) Enabled(level zapcore.Level) bool {
	return level >= zapcore.WarnLevel || b.log.IsTrace()
}

// With returns a log that adds fields to every entry.
func (b *bridge) With(fields []zapcore.Field) zapcore.Core {
	c := *b
	c.with = slices.Concat(b.with, fields)
	return &c
}

// Check asks for the entry if its level is wanted.
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
	b.log.Log(b.level(entry), entry.Message, args...)
	return nil
}

func (b *bridge) level(entry zapcore.Entry) hclog.Level {
	switch {
	case entry.Level > zapcore.ErrorLevel: // etcd gives up
		return hclog.Error
	case entry.Level < zapcore.WarnLevel, b.quiet.Load(), harmless[entry.Message]:
		return hclog.Trace
	case entry.Level == zapcore.WarnLevel:
		return hclog.Warn
	}
	return hclog.Error
}

// Sync has nothing to flush.
func (b *bridge) Sync() error { return nil }
