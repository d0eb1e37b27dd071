package client

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	// maxLine bounds a line of a stream.
	maxLine = 1 << 20
	// silence is how long a stream may say nothing before it counts as broken: two
	// heartbeats, and some patience.
	silence = 2*server.Heartbeat + 5*time.Second
)

// streamed is a server-sent event as it has come.
type streamed struct {
	id, event string
	data      []byte
}

// stream follows a stream of server-sent events, from the one after last on, and
// calls f with each. It returns nil when the stream ends, and what f returns.
func (c *Client) stream(ctx context.Context, path, last string, f func(streamed) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := c.send(ctx, http.MethodGet, path, nil, "Accept", server.StreamType, "Last-Event-ID", last)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	quiet := time.AfterFunc(silence, func() {
		cancel(problem.New(problem.Unavailable, "the sidecar at %s has said nothing for %s", c.addr, silence))
	})
	defer quiet.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	var m streamed
	for lines.Scan() {
		quiet.Reset(silence)
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data = []byte(value)
		case "": // also a heartbeat, which comes between events
			if m.data == nil {
				continue
			}
			if err := f(m); err != nil {
				return err
			}
			m = streamed{}
		}
	}
	if err := lines.Err(); err != nil {
		return c.failed(ctx, err)
	}
	return nil
}
