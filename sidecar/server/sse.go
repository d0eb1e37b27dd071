package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/access"
)

// StreamType is the media type of server-sent events.
const StreamType = "text/event-stream"

const (
	// Heartbeat is the time after which a stream shows that it is alive, to its reader
	// and to proxies on the way.
	Heartbeat = 15 * time.Second
	// writeTimeout bounds the wait for a reader that takes nothing.
	writeTimeout = 10 * time.Second
)

// Message is a server-sent event.
type Message struct {
	ID    string // where a later stream resumes (Last-Event-ID); empty for nowhere
	Event string
	Data  []byte
}

// Stream writes server-sent events to one reader. Fill it with [Stream.Add] and send
// with [Follow].
type Stream struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	done  context.Context
	who   access.Identity // when it began
	buf   []byte
	begun bool
	beat  []byte
}

// NewStream returns a stream that answers a request. It ends with ctx.
func NewStream(ctx context.Context, w http.ResponseWriter) *Stream {
	header := w.Header()
	header.Set("Content-Type", StreamType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	return &Stream{w: w, ctl: http.NewResponseController(w), done: ctx, who: access.Of(ctx), beat: []byte(": still here\n\n")}
}

// Retry adds after which pause the reader is to connect again.
func (s *Stream) Retry(pause time.Duration) {
	s.buf = fmt.Appendf(s.buf, "retry: %d\n\n", pause.Milliseconds())
}

// BeatWith makes a message of the heartbeat, for readers that have to see it. It is a
// comment otherwise.
func (s *Stream) BeatWith(m Message) { s.beat = m.append(nil) }

// Add adds a message to what is sent next.
func (s *Stream) Add(m Message) { s.buf = m.append(s.buf) }

// append writes the message behind buf. Its data must not hold a CR, which would end a
// line.
func (m Message) append(buf []byte) []byte {
	if m.ID != "" {
		buf = append(append(append(buf, "id: "...), m.ID...), '\n')
	}
	buf = append(append(append(buf, "event: "...), m.Event...), '\n')
	for line := range bytes.Lines(m.Data) {
		buf = append(append(append(buf, "data: "...), bytes.TrimSuffix(line, []byte("\n"))...), '\n')
	}
	return append(buf, '\n')
}

// Follow sends what was added to a stream. Then it calls next with each value of in, and
// sends what that has added, until next returns true, in is closed or the reader has
// left. It waits for a slow reader and takes nothing from in meanwhile; a reader that
// takes nothing for 10 s has left. A quiet stream gets a heartbeat. The stream ends as well, and
// sends nothing more, when the identity of its request has ended or may do something else, as
// that of a token that was revoked.
func Follow[T any](s *Stream, in <-chan T, next func(T) (last bool)) {
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for s.flush() == nil {
		select {
		case v, ok := <-in:
			if !s.lasts() {
				return
			}
			if !ok || next(v) {
				_ = s.flush() // nothing follows
				return
			}
		case <-beat.C:
			if !s.lasts() {
				return
			}
			s.buf = append(s.buf, s.beat...)
		case <-s.done.Done():
			return
		}
	}
}

// lasts reports whether the identity of the reader is still the same, and may do the same.
func (s *Stream) lasts() bool {
	now, err := IdentityNow(s.done)
	return err == nil && now.String() == s.who.String() && slices.Equal(now.Grants, s.who.Grants)
}

// flush sends what was added; at first also the header alone.
func (s *Stream) flush() error {
	if s.begun && len(s.buf) == 0 {
		return nil
	}
	s.begun = true
	if err := s.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	return errors.Join(err, s.ctl.Flush())
}

// Accepts reports whether an Accept header names a media type.
func Accepts(header, kind string) bool {
	for part := range strings.SplitSeq(header, ",") {
		got, params, err := mime.ParseMediaType(part)
		q, weighed := params["q"]
		if err == nil && got == kind && (!weighed || strings.Trim(q, "0.") != "") { // q=0 is not at all
			return true
		}
	}
	return false
}
