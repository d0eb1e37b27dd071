package ui

import (
	"bytes"
	"errors"
	"net/http"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

const (
	// heartbeat keeps a stream from looking dead, to its reader and to whoever is in
	// between.
	heartbeat = 15 * time.Second
	// writeTimeout bounds the wait for a reader that takes nothing.
	writeTimeout = 10 * time.Second
	// streamLife bounds a stream: its browser opens another, and is asked again who
	// it is.
	streamLife = 15 * time.Minute
)

// live streams a page: its main part now, and whenever it differs from what was sent.
func (p *Pages) live(w http.ResponseWriter, r *http.Request, pg *page) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		writeProblem(w, refusalOf(problem.Unavailable, "as many pages are looked at as can be: this one is not kept new"))
		return
	}
	if p.cfg.Streams != nil {
		p.cfg.Streams.Inc()
		defer p.cfg.Streams.Dec()
	}
	h := w.Header()
	h.Set("Content-Type", streamType)
	h.Set("X-Accel-Buffering", "no")
	s := &sse{w: w, ctl: http.NewResponseController(w)}
	s.buf.WriteString("retry: 2000\n\n")

	look, beat, life := time.NewTicker(pg.every), time.NewTicker(heartbeat), time.NewTimer(streamLife)
	defer look.Stop()
	defer beat.Stop()
	defer life.Stop()
	var title string
	var sent []byte
	for again := true; ; {
		if again {
			f, body, _ := p.render(r, pg, true)
			if f.Title != title {
				s.add("title", []byte(f.Title))
				title = f.Title
			}
			if !bytes.Equal(body, sent) {
				s.add("main", body)
				sent = body
			}
		}
		if s.flush() != nil {
			return
		}
		select {
		case <-look.C:
			again = true
		case <-beat.C:
			again = false
			s.add("beat", []byte("still here"))
		case <-life.C:
			return
		case <-p.done:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sse writes server-sent events.
type sse struct {
	w   http.ResponseWriter
	ctl *http.ResponseController
	buf bytes.Buffer
}

// add adds an event.
func (s *sse) add(event string, data []byte) {
	s.buf.WriteString("event: " + event + "\n")
	// A CR ends a line of a stream, too. To HTML it is a line's end as well.
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("&#13;"))
	for line := range bytes.Lines(data) {
		s.buf.WriteString("data: ")
		s.buf.Write(bytes.TrimSuffix(line, []byte("\n")))
		s.buf.WriteByte('\n')
	}
	s.buf.WriteByte('\n')
}

// flush sends what was added.
func (s *sse) flush() error {
	if s.buf.Len() == 0 {
		return nil
	}
	if err := s.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := s.w.Write(s.buf.Bytes())
	s.buf.Reset()
	return errors.Join(err, s.ctl.Flush())
}
