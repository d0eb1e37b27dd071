package sidecar

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/sidecar/api"
)

// Claim claims slots, and returns when they are granted or refused. If ctx ends
// first, nothing is taken. A request without an id gets one, so that a request
// which is sent again finds its claim. After a long wait the claim is renewed at once,
// to learn how long it is valid.
func (c *Client) Claim(ctx context.Context, r api.ClaimRequest) (*api.Claim, error) {
	if r.ID == "" {
		r.ID = ulid.Make().String()
	}
	claim, sent, err := c.claimCall(ctx, http.MethodPost, api.ClaimsPath, r)
	if err != nil || !isLong(sent) {
		return claim, err
	}
	if again, err := c.Renew(ctx, claim.ID, api.RenewRequest{Fence: claim.Fence}); err == nil {
		claim.Deadline = max(claim.Deadline, again.Deadline)
	} // else its holder is told when it renews
	return claim, nil
}

// Renew tells that a claim's holder lives, and may change how that is known.
func (c *Client) Renew(ctx context.Context, id string, r api.RenewRequest) (*api.Claim, error) {
	claim, _, err := c.claimCall(ctx, http.MethodPost, claimPath(id)+"/renew", r)
	return claim, err
}

// Get looks at a claim of any host. One of the server that has ended is a
// problem: claim_lost or claim_revoked.
func (c *Client) Get(ctx context.Context, id string) (*api.Claim, error) {
	claim, _, err := c.claimCall(ctx, http.MethodGet, claimPath(id), nil)
	return claim, err
}

func (c *Client) claimCall(ctx context.Context, method, path string, in any) (*api.Claim, time.Duration, error) {
	var claim api.Claim
	sent, err := c.call(ctx, method, path, in, &claim)
	if err != nil {
		return nil, sent, err
	}
	if claim.TrustedFor != nil && *claim.TrustedFor > 0 {
		claim.Deadline = sent + inspect.Milliseconds(*claim.TrustedFor)
	}
	return &claim, sent, nil
}

func claimPath(id string) string { return api.ClaimsPath + "/" + escape(id) }

// Release gives a claim back, and returns when its slots are free. One that there
// is not is released already.
func (c *Client) Release(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, claimPath(id), nil, nil)
	return err
}

// ReleaseFence is [Client.Release] of the claim with that fence: a later claim of
// the same id is left alone.
func (c *Client) ReleaseFence(ctx context.Context, id string, fence int64) error {
	query := url.Values{"fence": {strconv.FormatInt(fence, 10)}}
	_, err := c.call(ctx, http.MethodDelete, claimPath(id)+"?"+query.Encode(), nil, nil)
	return err
}

// Why tells what a claim of any host holds, or why it waits.
func (c *Client) Why(ctx context.Context, id string) (*api.Why, error) {
	var why api.Why
	if _, err := c.call(ctx, http.MethodGet, claimPath(id)+"/why", nil, &why); err != nil {
		return nil, err
	}
	return &why, nil
}

// Revoke takes a claim of any host back. By force its slots are freed at once,
// although its holder may still run.
func (c *Client) Revoke(ctx context.Context, id string, force bool) (*api.Revocation, error) {
	var done api.Revocation
	if _, err := c.call(ctx, http.MethodPost, claimPath(id)+"/revoke", api.RevokeRequest{Force: force}, &done); err != nil {
		return nil, err
	}
	return &done, nil
}

// ClaimFilter says which claims to list. What is empty lets all pass.
type ClaimFilter struct {
	Pool, Host string
	// State is held or waiting.
	State string
}

// pageSize is how many claims are asked for at once: as many as there can be.
const pageSize = 1000

// Claims lists claims of all hosts: those that are held, first come first, and
// those that wait, in line. It asks for as many pages as there are.
func (c *Client) Claims(ctx context.Context, f ClaimFilter) ([]api.Claim, error) {
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for name, value := range map[string]string{"pool": f.Pool, "host": f.Host, "state": f.State} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var all []api.Claim
	for {
		var page api.List[api.Claim]
		if _, err := c.call(ctx, http.MethodGet, api.ClaimsPath+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("cursor", page.Next)
	}
}
