package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
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
	r.ClientToken = cmp.Or(r.ClientToken, c.clientToken)
	claim, sent, err := c.claimCall(ctx, http.MethodPost, api.ClaimsPath, r)
	if err != nil || !isLong(sent) {
		return claim, err
	}
	if again, err := c.Renew(ctx, claim.ID, api.RenewRequest{Fence: claim.Fence}); err == nil {
		claim.Deadline = max(claim.Deadline, again.Deadline)
	} // else its holder learns it when it renews
	return claim, nil
}

// Renew reports that a claim's holder lives, and may change how that is known.
func (c *Client) Renew(ctx context.Context, id string, r api.RenewRequest) (*api.Claim, error) {
	claim, _, err := c.claimCall(ctx, http.MethodPost, claimPath(id)+"/renew", r)
	return claim, err
}

// Get returns a claim of any host. One of this server that has ended is a problem: claim_lost
// or claim_revoked.
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
	if claim.ValidFor != nil {
		claim.Deadline = inspect.Deadline(sent, *claim.ValidFor)
	}
	return &claim, sent, nil
}

func claimPath(id string) string { return api.ClaimsPath + "/" + escape(id) }

// Release releases a claim, and returns when its slots are free. A claim that does not exist
// is released already.
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

// Why returns what a claim of any host holds, or why it waits.
func (c *Client) Why(ctx context.Context, id string) (*api.Why, error) {
	var why api.Why
	if _, err := c.call(ctx, http.MethodGet, claimPath(id)+"/why", nil, &why); err != nil {
		return nil, err
	}
	return &why, nil
}

// Revoke revokes a claim of any host. With force its slots are free at once, although its
// holder may still run.
func (c *Client) Revoke(ctx context.Context, id string, force bool) (*api.Revocation, error) {
	return c.RevokeOn(ctx, "", "", id, force)
}

// RevokeOn is [Client.Revoke] of the claim of one instance of a host: several may have claims of
// one id.
func (c *Client) RevokeOn(ctx context.Context, host, instance, id string, force bool) (*api.Revocation, error) {
	var done api.Revocation
	if _, err := c.call(ctx, http.MethodPost, claimPath(id)+"/revoke", api.RevokeRequest{Host: host, Instance: instance, Force: force}, &done); err != nil {
		return nil, err
	}
	return &done, nil
}

// ClaimFilter selects claims. An empty field selects all.
type ClaimFilter struct {
	Pool, Host string
	// Status is held or waiting.
	Status string
}

// pageSize is how many claims are requested at once: the most that is allowed.
const pageSize = 1000

// Claims lists claims of all hosts: those that are held, the oldest first, and those that
// wait, in the order of the wait queue. It requests all pages.
func (c *Client) Claims(ctx context.Context, f ClaimFilter) ([]api.Claim, error) {
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for name, value := range map[string]string{"pool": f.Pool, "host": f.Host, "status": f.Status} {
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

const (
	// watchPause and maxWatchPause are those before a stream is opened again.
	watchPause, maxWatchPause = 100 * time.Millisecond, 2 * time.Second
)

// Watch waits until a claim of the server ends. It returns nil when the claim was released,
// and a problem, claim_lost or claim_revoked, when it is no longer valid. If the server does
// not know the claim, that is claim_not_found. While the server can't be reached Watch waits
// for it: [api.Claim.Remaining] returns how long the claim is valid meanwhile.
func (c *Client) Watch(ctx context.Context, id string) error {
	pause := watchPause
	for {
		ended, err := c.watchOnce(ctx, id, func() { pause = watchPause })
		if ended {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !passes(err) {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
			pause = min(2*pause, maxWatchPause)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// passes reports whether a stream that was refused may be opened later.
func passes(err error) bool {
	code := problem.CodeOf(err)
	return code == problem.TooManyRequests || code.Status() >= http.StatusInternalServerError
}

// watchOnce follows a claim on one stream. It calls opened with each event. If the claim has
// not ended, the stream has.
func (c *Client) watchOnce(ctx context.Context, id string, opened func()) (ended bool, err error) {
	var result error
	err = c.Events(ctx, id, "", func(ev api.Event) error {
		opened()
		switch {
		case ev.Type == api.EventHello && ev.Status == "unknown":
			result = problem.New(problem.ClaimNotFound, "the sidecar knows nothing of claim %q", id)
		case ev.Type == api.EventClaimEnded && ev.Claim == id:
			code := problem.ClaimLost // which it is, whatever the reason
			if ev.Code == string(problem.ClaimRevoked) {
				code = problem.ClaimRevoked
			}
			result = problem.New(code, "%s", ev.Reason)
		case ev.Type == api.EventClaimReleased && ev.Claim == id:
		case ev.Type == api.EventLagged:
			return io.EOF // a new stream begins with the state
		default:
			return nil
		}
		ended = true
		return io.EOF
	})
	if ended {
		return true, result
	}
	return false, err
}

// Events follows the events of the server, or only those of a claim or a pool,
// and calls f with each. It returns nil when the stream ends or f returns
// [io.EOF], and otherwise an error.
func (c *Client) Events(ctx context.Context, claim, pool string, f func(api.Event) error) error {
	query := url.Values{}
	if claim != "" {
		query.Set("claim", claim)
	}
	if pool != "" {
		query.Set("pool", pool)
	}
	err := c.stream(ctx, api.EventsPath+"?"+query.Encode(), "", func(m streamed) error {
		var ev api.Event
		if err := json.Unmarshal(m.data, &ev); err != nil {
			return c.failed(ctx, err)
		}
		return f(ev)
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
