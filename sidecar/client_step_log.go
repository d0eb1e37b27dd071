package sidecar

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/berthhq/berth/sidecar/api"
)

// StepOutput is the end of what an attempt of a step instance has written.
type StepOutput struct {
	Text []byte
	// Attempt is the number of the attempt. It is that of the instance, unless that has
	// written nothing, or was lost.
	Attempt int
	// LeftOut is how many bytes it has written before Text.
	LeftOut int64
	// Running tells that it runs still, and may write more.
	Running bool
	// Host and File are where all of it is; empty if it is kept nowhere.
	Host, File string
}

// StepOutput reads the end of what an attempt of an instance has written: the last that
// has ended, or one that a worker runs, as far as it has come. For that it waits at most
// for so long, up to 10s. If nothing is kept of it, that is a not_found problem.
func (c *Client) StepOutput(ctx context.Context, run, step string, index int, wait time.Duration) (*StepOutput, error) {
	path := stepPath(run, step, strconv.Itoa(index), "log") + "?wait=" + url.QueryEscape(wait.String())
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	defer drop(resp.Body)
	out := &StepOutput{Running: resp.Header.Get(api.OutputRunning) == "true"}
	if out.Text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return nil, c.failed(ctx, err)
	}
	// A sidecar of another version may leave them out.
	out.Attempt, _ = strconv.Atoi(resp.Header.Get(api.OutputAttempt))
	out.LeftOut, _ = strconv.ParseInt(resp.Header.Get(api.OutputLeftOut), 10, 64)
	if u, err := url.Parse(resp.Header.Get(api.OutputFile)); err == nil {
		out.Host, out.File = u.Host, u.Path
	}
	return out, nil
}
