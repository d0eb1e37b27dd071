package berth

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// logTo returns a logger for the internal packages that writes to l; nil if l is nil.
func logTo(l *slog.Logger) hclog.Logger {
	if l == nil {
		return nil
	}
	// The logger itself writes nothing: its sink gets all levels.
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard})
	log.RegisterSink(sink{l})
	return log
}

// sink passes the entries of an hclog logger to a slog logger.
type sink struct{ to *slog.Logger }

// levels are the levels of slog for those of hclog.
var levels = map[hclog.Level]slog.Level{
	hclog.Trace: slog.LevelDebug - 4, hclog.Debug: slog.LevelDebug, hclog.Info: slog.LevelInfo,
	hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError,
}

// Accept implements [hclog.SinkAdapter].
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	log := s.to
	if name != "" {
		log = log.With("logger", name)
	}
	log.Log(context.Background(), levels[level], msg, args...)
}
