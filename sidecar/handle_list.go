package sidecar

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// listInput is the input of GET /v1/claims.
type listInput struct {
	Pool   string `query:"pool" doc:"Only claims of this pool."`
	Host   string `query:"host" doc:"Only claims of this host."`
	State  string `query:"state" enum:"held,waiting" doc:"Only claims that are held, or that wait."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many to answer at most."`
	Cursor string `query:"cursor" maxLength:"512" doc:"Where to begin: next of the page before."`
}

// listClaims answers GET /v1/claims.
func (a *apiServer) listClaims(ctx context.Context, in *listInput) (*output[api.List[api.Claim]], error) {
	begun := time.Now()
	s, err := a.ready()
	if err != nil {
		return nil, err
	}
	after, err := parseCursor(in.Cursor)
	if err != nil {
		return nil, err
	}
	holders, waiters, err := s.client.Claims(ctx)
	if err != nil {
		return nil, err
	}
	var page claimPage
	for _, h := range holders {
		page.add(in, after, inspect.HeldClaimOf(h))
	}
	for _, w := range waiters {
		page.add(in, after, inspect.WaitingClaimOf(w))
	}
	list := page.cut(in.Limit)
	for i, c := range list.Items {
		list.Items[i] = s.known(c, begun)
	}
	return outputOf(list, nil)
}

// cursor is a place in the list of claims: those that are held by fence, then
// those that wait by priority and time. It stays good while claims come and go.
type cursor struct {
	Waiting  bool   `json:"w,omitempty"`
	Fence    int64  `json:"f,omitempty"`
	Priority int    `json:"p,omitempty"`
	Since    int64  `json:"s,omitempty"`
	ID       string `json:"i"`
}

func cursorOf(c api.Claim) cursor {
	if c.State == api.StateWaiting {
		return cursor{Waiting: true, Priority: c.Priority, Since: c.QueuedAt.UnixNano(), ID: c.ID}
	}
	return cursor{Fence: c.Fence, ID: c.ID}
}

// compare orders places: held before waiting, then by age, then by id.
func (c cursor) compare(o cursor) int {
	if c.Waiting != o.Waiting {
		if o.Waiting {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(c.Fence, o.Fence),
		cmp.Compare(o.Priority, c.Priority),
		cmp.Compare(c.Since, o.Since),
		cmp.Compare(c.ID, o.ID),
	)
}

func (c cursor) String() string {
	data, err := json.Marshal(c)
	if err != nil {
		return "" // plain values can be written
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// parseCursor reads a cursor. The place before all is that of an empty one.
func parseCursor(text string) (c cursor, err error) {
	if text == "" {
		return cursor{}, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return cursor{}, problem.Field("cursor", "%s is none that was answered as next", problem.Quote(text))
	}
	return c, nil
}

// claimPage gathers what belongs on a page.
type claimPage struct {
	items []placedClaim
}

type placedClaim struct {
	at    cursor
	claim api.Claim
}

func (p *claimPage) add(in *listInput, after cursor, c api.Claim) {
	if in.Host != "" && c.Host != in.Host || in.State != "" && c.State != in.State {
		return
	}
	if _, ok := c.Pools[in.Pool]; in.Pool != "" && !ok {
		return
	}
	if at := cursorOf(c); at.compare(after) > 0 {
		p.items = append(p.items, placedClaim{at, c})
	}
}

// cut returns the page, and where the next one begins.
func (p *claimPage) cut(limit int) api.List[api.Claim] {
	slices.SortFunc(p.items, func(a, b placedClaim) int { return a.at.compare(b.at) })
	page := api.List[api.Claim]{Items: make([]api.Claim, 0, min(limit, len(p.items)))}
	for _, item := range p.items[:min(limit, len(p.items))] {
		page.Items = append(page.Items, item.claim)
	}
	if len(p.items) > limit {
		page.Next = p.items[limit-1].at.String()
	}
	return page
}
