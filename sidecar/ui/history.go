package ui

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
)

const (
	// sampleEvery is how often the use of pools is sampled, and sampled is for how
	// long samples are kept.
	sampleEvery = 5 * time.Second
	sampled     = 10 * time.Minute
)

// history is how many slots of each pool were claimed, of late. It is what this server has seen,
// and begins with it. Pools are sampled for as long as a page shows them, and somewhat longer.
type history struct {
	mu      sync.Mutex // guards what follows; the maps do not change
	moments []moment   // first the oldest, one for each sample
	shown   time.Time  // when a page showed them last
}

// moment is a sample: slots by pool. Where etcd was away, or no page showed the pools, there are
// none, and the map is nil.
type moment map[string]int

// maxMoments is how many samples are kept: one more than the steps between them.
const maxMoments = int(sampled/sampleEvery) + 1

func newHistory() *history { return &history{} }

// add keeps a sample, in place of the oldest if there are enough.
func (h *history) add(m moment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.moments) == maxMoments {
		copy(h.moments, h.moments[1:])
		h.moments = h.moments[:maxMoments-1]
	}
	h.moments = append(h.moments, m)
}

// show returns the samples there are, for a page.
func (h *history) show() []moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shown = time.Now()
	return append([]moment(nil), h.moments...)
}

// wanted reports whether a page showed the samples while those that are kept were taken.
func (h *history) wanted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.shown.IsZero() && time.Since(h.shown) < sampled
}

// sample samples the use of pools until ctx ends.
func (p *Pages) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		p.history.add(p.takeSample(ctx))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// takeSample takes a sample.
func (p *Pages) takeSample(ctx context.Context) moment {
	if !p.history.wanted() {
		return nil
	}
	s, err := p.cfg.Ready()
	if err != nil || p.old(ctx, s) != nil {
		return nil
	}
	all, err := s.Client.Pools(ctx)
	if err != nil {
		return nil
	}
	return momentOf(all)
}

// momentOf makes a sample of what pools are like.
func momentOf(all []pool.Status) moment {
	m := make(moment, len(all))
	for _, s := range all {
		m[s.Name] = s.Claimed
	}
	return m
}

// Size of the picture of a pool's use, in units of its own.
const useWidth, useHeight = 120, 24

// use is the picture of a pool's recent use.
type use struct {
	// Lines are the points of lines: more than one if there are gaps between.
	Lines []string
	// Limit is the height of the limit, empty if there is none to show.
	Limit string
	Text  string // the same in words
}

// useOf draws the use of a pool. Whether the pool was there before is not known: a sample without
// it is a gap.
func useOf(moments []moment, name string, limit int) use {
	most, least, seen := 0, 0, 0
	for _, m := range moments {
		if n, ok := m[name]; ok {
			if seen == 0 || n < least {
				least = n
			}
			most = max(most, n)
			seen++
		}
	}
	if seen < 2 {
		return use{}
	}
	top := float64(max(most, limit, 1))
	height := func(n int) string { return short(float64(useHeight) - 1 - float64(n)/top*(useHeight-2)) }
	u := use{Text: fmt.Sprintf("claimed in the last %s: %s", coarse(time.Duration(len(moments)-1)*sampleEvery), fromTo(least, most))}
	if limit > 0 {
		u.Limit = height(limit)
	}
	var line []string
	last, drawn := 0, 0 // of the line: the value, and the samples
	end := func(x float64) {
		if drawn > 0 {
			u.Lines = append(u.Lines, strings.Join(append(line, short(x)+","+height(last)), " "))
		}
		line, drawn = nil, 0
	}
	at := func(i int) float64 { return useWidth - float64(len(moments)-1-i)*useWidth/float64(maxMoments-1) }
	for i, m := range moments {
		n, ok := m[name]
		switch {
		case !ok:
			end(at(i))
			continue
		case drawn == 0:
			line = append(line, short(at(i))+","+height(n))
		case n != last:
			line = append(line, short(at(i))+","+height(last), short(at(i))+","+height(n))
		}
		last = n
		drawn++
	}
	end(useWidth)
	return u
}

func fromTo(least, most int) string {
	if least == most {
		return plural(most, "slot", "slots") + " all the time"
	}
	return fmt.Sprintf("%s to %s", text.Number(int64(least)), plural(most, "slot", "slots"))
}

// short writes a coordinate: a tenth is less than can be seen.
func short(f float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
}
