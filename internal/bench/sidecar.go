package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
)

// sidecars is the driver of the HTTP API: a sidecar for each host, each behind a unix
// socket of its own.
type sidecars struct {
	sidecars []Sidecar
	clients  []*client      // by sidecar
	slots    instance.Slots // of each claim
}

// openSidecars starts one sidecar for each host.
func (r *Runner) openSidecars(ctx context.Context, hosts int, slots instance.Slots) (*sidecars, error) {
	d := &sidecars{slots: slots}
	for i := range hosts {
		o := r.Options()
		o.Host = fmt.Sprintf("bench-%d", i+1)
		s, err := r.Sidecars.Start(ctx, o)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start a sidecar: %w", err), d.Close())
		}
		d.sidecars = append(d.sidecars, s)
		d.clients = append(d.clients, &client{socket: s.Socket()})
	}
	return d, nil
}

// heldOverHTTP is a claim that a sidecar holds.
type heldOverHTTP struct {
	client *client
	id     string
}

// claimsURL is the URL of claims; the connection is to the socket, whatever the host.
const claimsURL = "http://localhost/v1/claims"

// metricsURL is the URL of a sidecar's metrics.
const metricsURL = "http://localhost/metrics"

// Claim claims through the client's sidecar.
func (d *sidecars) Claim(ctx context.Context, client int) (Held, error) {
	return d.claim(ctx, client, instance.DefaultClaimTimeout)
}

func (d *sidecars) claimUntil(ctx context.Context, client int, until time.Time) (Held, error) {
	h, err := d.claim(ctx, client, waitUntil(until))
	if refused := (*statusError)(nil); errors.As(err, &refused) && refused.code() == problem.ClaimTimeout {
		err = errCut
	}
	return h, err
}

func (d *sidecars) claim(ctx context.Context, client int, wait time.Duration) (Held, error) {
	body, err := json.Marshal(map[string]any{"pools": d.slots, "wait": wait.String()})
	if err != nil {
		return nil, fmt.Errorf("encode a claim: %w", err)
	}
	c := d.clients[client%len(d.clients)]
	response, err := c.call(ctx, http.MethodPost, claimsURL, body, http.StatusCreated)
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
	_, err := h.client.call(ctx, http.MethodDelete, claimsURL+"/"+h.id, nil, http.StatusNoContent)
	return err
}

// client calls a sidecar over its unix socket. It writes a request and reads the response in
// the goroutine of its caller, as clients do in most languages. [http.Transport] has two goroutines
// for each connection, which cost 25 of its 105 µs for a claim and its release.
type client struct {
	socket string

	mu   sync.Mutex
	idle []*connection
}

type connection struct {
	net.Conn
	r    *bufio.Reader
	used time.Time
}

// keepIdle is how long a connection is kept. A sidecar closes one that is idle for 2 minutes.
const keepIdle = time.Minute

// call sends a request and returns the body of the response, which must have the
// wanted status.
func (c *client) call(ctx context.Context, method, url string, body []byte, want int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // which ends the exchange
	status, response, last, err := conn.exchange(req)
	switch reusable := stop() && err == nil && !last; {
	case reusable:
		c.put(conn)
	case err != nil:
		return nil, errors.Join(cmp.Or(context.Cause(ctx), err), conn.Close())
	default:
		_ = conn.Close() // it may be closed, and the answer is complete
	}
	if status != want {
		return nil, &statusError{method: method, url: url, status: status, body: bytes.TrimSpace(response)}
	}
	return response, nil
}

// connect returns a connection that no other call uses.
func (c *client) connect(ctx context.Context) (*connection, error) {
	for {
		conn := c.get()
		if conn == nil {
			break
		}
		if time.Since(conn.used) < keepIdle {
			return conn, nil
		}
		_ = conn.Close()
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: conn, r: bufio.NewReader(conn)}, nil
}

// get returns the connection that was used last, nil if there is none.
func (c *client) get() *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		return nil
	}
	conn := c.idle[last]
	c.idle = c.idle[:last]
	return conn
}

// put keeps a connection for the next call.
func (c *client) put(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.used = time.Now()
	c.idle = append(c.idle, conn)
}

// close closes the connections. No call may be under way.
func (c *client) close() {
	for _, conn := range c.idle {
		_ = conn.Close()
	}
}

// exchange writes a request and reads its response, after which the sidecar may close the
// connection: it is the last one then.
func (conn *connection) exchange(req *http.Request) (status int, body []byte, last bool, err error) {
	if err := req.Write(conn); err != nil {
		return 0, nil, true, err
	}
	resp, err := http.ReadResponse(conn.r, req)
	if err != nil {
		return 0, nil, true, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, resp.Close, err
}

// statusError is a response with another status than the wanted one.
type statusError struct {
	method, url string
	status      int
	body        []byte
}

// Error returns the request, the status and the body of the response.
func (e *statusError) Error() string {
	return fmt.Sprintf("%s %s: status %d: %s", e.method, e.url, e.status, e.body)
}

// code returns the code of the problem in the body, if there is one.
func (e *statusError) code() problem.Code {
	var p struct {
		Code problem.Code `json:"code"`
	}
	_ = json.Unmarshal(e.body, &p) // what is no problem has no code
	return p.Code
}

func (d *sidecars) borrow(hosts int, slots instance.Slots) fleet {
	return borrowed{&sidecars{clients: d.clients[:hosts], slots: slots}}
}

func (d *sidecars) pids() []int {
	var all []int
	for _, s := range d.sidecars {
		all = append(all, s.PID())
	}
	return all
}

func (d *sidecars) memory() (sum float64, err error) {
	for _, pid := range d.pids() {
		now, _, err := Resident(pid)
		if err != nil {
			return 0, err
		}
		sum += now
	}
	return sum, nil
}

func (d *sidecars) count(ctx context.Context, metric string) (sum float64, err error) {
	for _, c := range d.clients {
		response, err := c.call(ctx, http.MethodGet, metricsURL, nil, http.StatusOK)
		if err != nil {
			return 0, err
		}
		sum += counter(string(response), metric)
	}
	return sum, nil
}

// counter returns the sum of the values of a counter, with whatever labels, in the text of metrics.
func counter(text, metric string) (sum float64) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, metric); ok && strings.IndexAny(rest, " {") == 0 {
			n, _ := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " ")+1:]), 64)
			sum += n
		}
	}
	return sum
}

// Close stops the sidecars.
func (d *sidecars) Close() error {
	var errs []error
	for i, s := range d.sidecars {
		d.clients[i].close()
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}
