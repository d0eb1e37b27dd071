package ui

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

const (
	// poolsPerPage is how many pools one page has.
	poolsPerPage = 50
	// maxOpen is how many pools can be expanded at a time; maxRows bounds their
	// holders, and their waiters, all together.
	maxOpen, maxRows = 20, 1000
)

// Orders of pools.
const (
	byFullness = "fullest"
	byName     = "name"
)

// poolsQuery is what the address of the page says.
type poolsQuery struct {
	Text string // that names have
	Sort string
	Page int // from 1 on
	Open []string
}

func poolsQueryOf(q url.Values) (poolsQuery, error) {
	p := poolsQuery{Text: strings.ToLower(strings.TrimSpace(q.Get("q"))), Sort: cmp.Or(q.Get("sort"), byFullness), Page: 1}
	if p.Sort != byFullness && p.Sort != byName {
		return p, problem.Field("sort", "must be %s or %s, and not %q", byFullness, byName, problem.Clip(p.Sort))
	}
	if text := q.Get("page"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return p, problem.Field("page", "must be a number of 1 or more, and not %q", problem.Clip(text))
		}
		p.Page = n
	}
	for _, name := range q["open"] {
		if !slices.Contains(p.Open, name) {
			p.Open = append(p.Open, name)
		}
	}
	return p, nil
}

// poolsPage is what the page of pools shows.
type poolsPage struct {
	Sums  poolSums
	Query poolsQuery
	Cards []poolCard
	// Found is how many pools there are of that name. From and To are the numbers
	// of the first and the last that are shown.
	Found, From, To int
	// Previous and Next are the pages before and behind; 0 is none.
	Previous, Next, Pages int
	// TooMany is how many pools on the page were to be expanded and are not.
	TooMany int
}

// poolSums are of all pools, shown or not.
type poolSums struct {
	Pools int
	// Claimed of Slots, in pools that have a limit; Unlimited is what is claimed of
	// others.
	Claimed, Slots int
	Unlimited      int
	HasUnlimited   bool
	Waiting        int // in all pools
	Paused         int
	Troubled       int // can't be read
}

// poolCard is one pool.
type poolCard struct {
	pool.Status
	Open   bool
	Use    use
	Detail *poolDetail // of an open one
}

// Unlimited reports whether the pool has no limit.
func (c poolCard) Unlimited() bool { return c.Limit == pool.Unlimited }

// Dispatches says which instance offers slots to the waiting claims; empty without any.
func (c poolCard) Dispatches() string {
	if c.Waiting == 0 {
		return ""
	}
	return inspect.DispatcherText(c.Dispatcher)
}

// Closed reports whether the pool grants nothing because of its limit.
func (c poolCard) Closed() bool { return c.Limit == pool.Closed && !c.Deleted && c.Problem == "" }

// Reserve says when free slots are reserved for a waiting claim.
func (c poolCard) Reserve() string { return pool.ReserveText(c.ReserveAfter) }

// poolDetail is who holds a pool's slots, and who waits.
type poolDetail struct {
	Holders []holderRow
	Waiters []pool.WaiterStatus
	// HoldersLeftOut and WaitersLeftOut are those that are not shown.
	HoldersLeftOut, WaitersLeftOut int
}

// holderRow is a claim that holds slots.
type holderRow struct {
	pool.HolderStatus
	Ends time.Time // zero: not known
	Near string    // "near" the end of its lease, "past" it, or neither
}

// poolsOf is the page of pools: which are shown, in which order. Those that are expanded have no
// detail yet.
func poolsOf(all []pool.Status, q poolsQuery, moments []moment) poolsPage {
	p := poolsPage{Query: q, Sums: sumPools(all)}
	found := slices.DeleteFunc(slices.Clone(all), func(s pool.Status) bool { return !strings.Contains(s.Name, q.Text) })
	slices.SortStableFunc(found, func(a, b pool.Status) int {
		if q.Sort == byName {
			return cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(compareFullness(a, b), cmp.Compare(a.Name, b.Name))
	})
	p.Found, p.Pages = len(found), max(1, (len(found)+poolsPerPage-1)/poolsPerPage)
	p.Query.Page = min(q.Page, p.Pages)
	first := (p.Query.Page - 1) * poolsPerPage
	found = found[first:min(first+poolsPerPage, len(found))]
	p.From, p.To = first+1, first+len(found)
	if p.Query.Page > 1 {
		p.Previous = p.Query.Page - 1
	}
	if p.Query.Page < p.Pages {
		p.Next = p.Query.Page + 1
	}
	opened := 0
	for _, s := range found {
		c := poolCard{Status: s, Use: useOf(moments, s.Name, s.Limit)}
		if slices.Contains(q.Open, s.Name) {
			if c.Open = opened < maxOpen; c.Open {
				opened++
			} else {
				p.TooMany++
			}
		}
		p.Cards = append(p.Cards, c)
	}
	return p
}

// sumPools adds up all pools. A deleted one has no slots but those that are held.
func sumPools(all []pool.Status) poolSums {
	sums := poolSums{Pools: len(all)}
	for _, s := range all {
		sums.Waiting += s.Waiting
		if s.Paused {
			sums.Paused++
		}
		if s.Problem != "" {
			sums.Troubled++
		}
		if s.Limit == pool.Unlimited {
			sums.Unlimited += s.Claimed
			sums.HasUnlimited = true
			continue
		}
		sums.Claimed += s.Claimed
		sums.Slots += s.Limit
	}
	return sums
}

// compareFullness orders pools, those first that need attention:
//
//  1. those that can't be read,
//  2. the fuller of two, unlimited ones being empty,
//  3. that with more waiters.
func compareFullness(a, b pool.Status) int {
	troubled := func(s pool.Status) int {
		if s.Problem != "" {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(troubled(b), troubled(a)),
		cmp.Compare(fullness(b), fullness(a)),
		cmp.Compare(b.Waiting, a.Waiting),
	)
}

func fullness(s pool.Status) float64 {
	switch {
	case s.Limit > 0:
		return float64(s.Claimed) / float64(s.Limit)
	case s.Limit == pool.Unlimited, s.Claimed == 0:
		return 0
	}
	return float64(s.Claimed) + 1 // more than there is
}

// poolDetailOf is who holds a pool's slots and who waits, most of each at most. The leases of claims
// last as long as those of the pool that has the shortest: durations has them by pool.
func poolDetailOf(d pool.Detail, ends map[store.LeaseID]time.Time, durations map[string]time.Duration, most int, now time.Time) *poolDetail {
	holders, waiters := d.Holders[:min(len(d.Holders), most)], d.Waiters[:min(len(d.Waiters), most)]
	p := &poolDetail{
		Waiters:        waiters,
		HoldersLeftOut: len(d.Holders) - len(holders), WaitersLeftOut: len(d.Waiters) - len(waiters),
	}
	for _, h := range holders {
		row := holderRow{HolderStatus: h, Ends: ends[h.Lease]}
		row.Near = nearness(row.Ends, shortestLease(h.Pools, durations), now)
		p.Holders = append(p.Holders, row)
	}
	return p
}

// shortestLease is how long the lease of a claim of these pools lasts.
func shortestLease(pools map[string]int, durations map[string]time.Duration) time.Duration {
	var shortest time.Duration
	for name := range pools {
		if d := durations[name]; d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return cmp.Or(shortest, pool.DefaultLeaseDuration)
}

// nearEnd is how long before its end a lease is near it: renewals come each third of its
// duration, and one or two were missed then. Of a short lease it is the half.
const nearEnd = 30 * time.Second

// nearness returns how near its end a lease is.
func nearness(end time.Time, lease time.Duration, now time.Time) string {
	left := end.Sub(now)
	switch {
	case end.IsZero():
		return ""
	case left <= 0:
		return "past"
	case left < min(nearEnd, lease/2):
		return "near"
	}
	return ""
}

// viewPools reads the page of pools.
func (p *Pages) viewPools(ctx context.Context, s *Session, r *http.Request) (*view, error) {
	q, err := poolsQueryOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	all, err := s.Client.Pools(ctx)
	if err != nil {
		return nil, err
	}
	page := poolsOf(all, q, p.history.show())
	if err := p.openPools(ctx, s, &page, all); err != nil {
		return nil, err
	}
	return &view{Title: "Pools", Data: page}, nil
}

// openPools reads the details of pools that are expanded.
func (p *Pages) openPools(ctx context.Context, s *Session, page *poolsPage, all []pool.Status) error {
	details := map[int]pool.Detail{}
	for i, c := range page.Cards {
		if !c.Open {
			continue
		}
		d, err := s.Client.Pool(ctx, c.Name)
		if problem.CodeOf(err) == problem.PoolNotFound {
			continue // it went just now
		}
		if err != nil {
			return err
		}
		details[i] = d
	}
	if len(details) == 0 {
		return nil
	}
	durations := make(map[string]time.Duration, len(all))
	for _, one := range all {
		durations[one.Name] = one.LeaseDuration
	}
	most := maxRows / len(details)
	var leases []store.LeaseID
	for _, d := range details {
		for _, h := range d.Holders[:min(len(d.Holders), most)] {
			leases = append(leases, h.Lease)
		}
	}
	ends := p.ends.of(ctx, leases, s.Client.LeaseEnds)
	for i, d := range details {
		page.Cards[i].Detail = poolDetailOf(d, ends, durations, most, time.Now())
	}
	return nil
}
