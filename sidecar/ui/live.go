package ui

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/server"
)

// streamLife bounds a stream: its browser opens another, and is authorized again.
const streamLife = 15 * time.Minute

// live streams a page: its main part now, and whenever it differs from what was sent.
func (p *Pages) live(w http.ResponseWriter, r *http.Request, pg *page) {
	leave, err := p.streams.Enter(server.KeyOf(r.Context()))
	if err != nil {
		w.Header().Set("Retry-After", "5")
		writeProblem(w, refusalOf(problem.TooManyRequests, problem.Of(err).Message))
		return
	}
	defer leave()
	if p.cfg.HTTP != nil {
		p.cfg.HTTP.Streams.Inc()
		defer p.cfg.HTTP.Streams.Dec()
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	defer context.AfterFunc(p.closed, cancel)()
	s := server.NewStream(ctx, w)
	s.Retry(2 * time.Second)
	s.BeatWith(server.Message{Event: "beat", Data: []byte("still here")})

	var title string
	var sent []byte
	draw := func(time.Time) bool {
		f, body, status := p.render(r, pg, true)
		if status == http.StatusTooManyRequests && sent != nil {
			return false // it stays as it is until its turn comes
		}
		if f.Title != title {
			s.Add(server.Message{Event: "title", Data: escapeCR([]byte(f.Title))})
			title = f.Title
		}
		if !bytes.Equal(body, sent) {
			s.Add(server.Message{Event: "main", Data: escapeCR(body)})
			sent = body
		}
		return false
	}
	draw(time.Now())
	tick := time.NewTicker(pg.every)
	defer tick.Stop()
	server.Follow(s, tick.C, draw)
}

// escapeCR writes each CR such that it does not end a line of a stream. To HTML it is a
// line's end as well.
func escapeCR(html []byte) []byte { return bytes.ReplaceAll(html, []byte("\r"), []byte("&#13;")) }

const (
	// askEvery is how often etcd is asked when a lease ends. With many leases it is less often:
	// about at most askMost leases a second.
	askEvery = time.Second
	askMost  = 100
	// sameEnd is by how much two answers about a lease can differ that was not
	// renewed between them: etcd answers in whole seconds.
	sameEnd = 1200 * time.Millisecond
	// keepEnds is how long the end of a lease is kept that no page shows.
	keepEnds = time.Minute
)

// expiries caches when leases end, for all pages.
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

// leaseReader reads from etcd how long leases still live: see [berth.Client.LeaseEnds].
type leaseReader func(ctx context.Context, ids []store.LeaseID) (map[store.LeaseID]time.Duration, error)

// of returns when leases end. Unknown ends are left out: they are no reason to fail.
func (e *expiries) of(ctx context.Context, ids []store.LeaseID, ask leaseReader) map[store.LeaseID]time.Time {
	if len(ids) == 0 {
		return nil
	}
	select {
	case e.asking <- struct{}{}:
		if due := e.due(ids, time.Now()); len(due) > 0 {
			begun := time.Now()
			left, _ := ask(ctx, due) // the page shows what is missing
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

// due returns the leases to ask etcd about, and forgets those that no page shows.
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
		// A little less than askEvery: pages that are read as often find it due.
		if !taken[id] && now.Sub(e.all[id].asked) > every-100*time.Millisecond {
			due = append(due, id)
			taken[id] = true
		}
	}
	return due
}

// learn records what etcd answered about leases at begun.
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

// laterEnd returns when a lease ends after etcd was asked about it. Two answers that may mean the
// same end are the same one, so that the page does not flicker.
func laterEnd(known, begun time.Time, left map[store.LeaseID]time.Duration, id store.LeaseID) time.Time {
	d, ok := left[id]
	if !ok {
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
