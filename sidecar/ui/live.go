package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
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

const (
	// askEvery is how often etcd is asked when a lease ends; the more leases are
	// looked at, the less often, so that it is not asked about more than 100 a second.
	askEvery = time.Second
	askMost  = 100
	// sameEnd is by how much two answers about a lease can differ that was not
	// renewed between them: etcd answers in whole seconds.
	sameEnd = 1200 * time.Millisecond
	// keepEnds is how long it is known when a lease ends that nobody looks at.
	keepEnds = time.Minute
)

// expiries is when leases end, as far as pages show it, however many look.
type expiries struct {
	asking chan struct{} // held while etcd is asked

	mu  sync.Mutex // guards all
	all map[store.LeaseID]expiry
}

// expiry is when a lease ends unless it is renewed. A lease that is gone ended then.
type expiry struct {
	end           time.Time // zero if it is not known
	asked, wanted time.Time
}

func newExpiries() *expiries {
	return &expiries{asking: make(chan struct{}, 1), all: map[store.LeaseID]expiry{}}
}

// asker asks etcd how long leases still live: see [berth.Client.LeaseEnds].
type asker func(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error)

// of returns when leases end. What is not known is left out: it is worth showing, and no reason to
// fail.
func (e *expiries) of(ctx context.Context, ids []store.LeaseID, ask asker) map[store.LeaseID]time.Time {
	if len(ids) == 0 {
		return nil
	}
	select {
	case e.asking <- struct{}{}:
		if due := e.due(ids, time.Now()); len(due) > 0 {
			begun := time.Now()
			left, _ := ask(ctx, due) // what is missing is told
			e.learn(due, left, begun)
		}
		<-e.asking
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ends := make(map[store.LeaseID]time.Time, len(ids))
	for _, id := range ids {
		if one := e.all[id]; !one.end.IsZero() {
			ends[id] = one.end
		}
	}
	return ends
}

// due returns the leases that etcd is to be asked about, and forgets those that nobody looks at.
func (e *expiries) due(ids []store.LeaseID, now time.Time) []store.LeaseID {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, one := range e.all {
		if now.Sub(one.wanted) > keepEnds {
			delete(e.all, id)
		}
	}
	for _, id := range ids {
		one := e.all[id]
		one.wanted = now
		e.all[id] = one
	}
	every := max(askEvery, time.Duration(len(e.all))*time.Second/askMost)
	var due []store.LeaseID
	taken := map[store.LeaseID]bool{}
	for _, id := range ids {
		// A little less than askEvery: looks that come as often find it due.
		if !taken[id] && now.Sub(e.all[id].asked) > every-100*time.Millisecond {
			due = append(due, id)
			taken[id] = true
		}
	}
	return due
}

// learn takes in what etcd has told of the leases that it was asked about at begun.
func (e *expiries) learn(asked []store.LeaseID, left map[store.LeaseID]time.Duration, begun time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range asked {
		one := e.all[id]
		one.asked = begun
		one.end = laterEnd(one.end, begun, left, id)
		e.all[id] = one
	}
}

// laterEnd is when a lease ends after etcd was asked about it. Two answers that may mean the same
// end are the same one, so that what is shown does not flicker.
func laterEnd(known, begun time.Time, left map[store.LeaseID]time.Duration, id store.LeaseID) time.Time {
	d, told := left[id]
	if !told {
		if known.Before(begun) {
			return time.Time{} // it may have been renewed since
		}
		return known
	}
	end := begun.Add(d)
	if diff := end.Sub(known); !known.IsZero() && diff < sameEnd && diff > -sameEnd || d == 0 && !known.IsZero() && known.Before(begun) {
		return known
	}
	return end.Truncate(time.Second)
}
