package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

const (
	// watchPause and maxWatchPause are those before a stream is opened again.
	watchPause, maxWatchPause = 100 * time.Millisecond, 2 * time.Second
)

// Watch waits until a claim of the server ends: with nil when it was released,
// and with a problem, claim_lost or claim_revoked, when trust in it has ended. A
// server that knows nothing of the claim is claim_not_found. While the server is
// away Watch waits for it: how long the claim can be trusted meanwhile is told by
// [Claim.Trust].
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
		if code := problem.CodeOf(err); err != nil && code.Status() < http.StatusInternalServerError {
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

// watchOnce follows a claim on one stream. It calls heard when there is one. If
// the claim has not ended, the stream has.
func (c *Client) watchOnce(ctx context.Context, id string, heard func()) (ended bool, err error) {
	var result error
	err = c.Events(ctx, id, "", func(ev api.Event) error {
		heard()
		switch {
		case ev.Type == api.EventHello && ev.State == "unknown":
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
