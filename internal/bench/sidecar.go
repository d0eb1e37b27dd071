package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/berthhq/berth/internal/instance"
)

// sidecars is the driver of the HTTP API: a sidecar for each host, each behind a unix
// socket of its own.
type sidecars struct {
	sidecars []Sidecar
	clients  []*http.Client // by sidecar
	body     []byte         // of each claim
}

// openSidecars starts one sidecar for each host.
func (r *Runner) openSidecars(ctx context.Context, hosts int, slots instance.Slots) (*sidecars, error) {
	body, err := json.Marshal(map[string]any{"pools": slots, "wait": "10m"})
	if err != nil {
		return nil, fmt.Errorf("encode a claim: %w", err)
	}
	d := &sidecars{body: body}
	for i := range hosts {
		o := r.Options()
		o.Host = fmt.Sprintf("bench-%d", i+1)
		s, err := r.Sidecars.Start(ctx, o)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start a sidecar: %w", err), d.Close())
		}
		d.sidecars = append(d.sidecars, s)
		d.clients = append(d.clients, unixClient(s.Socket()))
	}
	return d, nil
}

// unixClient keeps a connection for each client of the load.
func unixClient(socket string) *http.Client {
	var dialer net.Dialer
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: maxClients,
		DisableCompression:  true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}
}

// heldOverHTTP is a claim that a sidecar holds.
type heldOverHTTP struct {
	client *http.Client
	id     string
}

// claimsURL is the URL of claims; the connection is to the socket, whatever the host.
const claimsURL = "http://localhost/v1/claims"

// Claim claims through the client's sidecar.
func (d *sidecars) Claim(ctx context.Context, client int) (Held, error) {
	c := d.clients[client%len(d.clients)]
	response, err := call(ctx, c, http.MethodPost, claimsURL, d.body, http.StatusCreated)
	if err != nil {
		return nil, err
	}
	var claim struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(response, &claim); err != nil {
		return nil, fmt.Errorf("read the response to a claim: %w", err)
	}
	return &heldOverHTTP{client: c, id: claim.ID}, nil
}

// Release deletes the claim.
func (h *heldOverHTTP) Release(ctx context.Context) error {
	_, err := call(ctx, h.client, http.MethodDelete, claimsURL+"/"+h.id, nil, http.StatusNoContent)
	return err
}

// call sends a request and returns the body of the response, which must have the
// wanted status.
func call(ctx context.Context, c *http.Client, method, url string, body []byte, want int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: status %d: %s", method, url, resp.StatusCode, bytes.TrimSpace(response))
	}
	return response, err
}

// Close stops the sidecars.
func (d *sidecars) Close() error {
	var errs []error
	for i, s := range d.sidecars {
		d.clients[i].CloseIdleConnections()
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
