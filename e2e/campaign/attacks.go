//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// attack is one way in which a neighbor tries to hurt the other. A round is bounded, in its requests and
// in its time.
type attack struct {
	name  string
	each  time.Duration // the pause before a round
	round func(context.Context, *neighbor, *rand.Rand)
}

// attackRows are all attacks.
var attackRows = []attack{
	{"extreme numbers", 3 * time.Second, sendExtremes},
	{"runs that claims of the other name", 500 * time.Millisecond, cancelNamedRuns},
	{"claims that name no run", 500 * time.Millisecond, claimForNoRun},
	{"large submits", time.Second, submitLarge},
	{"many submits", time.Second, submitMany},
	{"parallel reads", time.Second, readInParallel},
	{"connections", 4 * time.Second, keepConnections},
	{"slow bodies", 2 * time.Second, sendSlowly},
	{"claims of the other", 100 * time.Millisecond, seizeClaims},
	{"ids of the other's claims", 20 * time.Millisecond, claimSameIDs},
	{"processes of others", time.Second, bindProcesses},
	{"wrong tokens", 300 * time.Millisecond, guessTokens},
	{"task pools", time.Second, declareTasks},
}

const (
	extremeEach    = 10 * time.Millisecond // the pause between two extreme numbers
	largeItems     = 128                   // of a large run
	largeInput     = 16 << 10              // bytes of the input of each
	manyRuns       = 10                    // submitted in a round
	mostRuns       = 300                   // of a neighbor that are not canceled
	readsAtOnce    = 80                    // more than may be under way and wait
	connections    = 5500                  // that are opened in a round, more than one user may have
	fewConnections = 4000                  // if both may do it: two users may not take those of all others
	connectionsFor = 4 * time.Second
	connectionsEnd = 9 * time.Second // of a round
	slowBodies     = 40
	slowFor        = 8 * time.Second // longer than a body waits for others
	seizures       = 4               // requests under way for one claim
	sameIDs        = 50              // claims with the id of one claim, one after the other
)

// extremeNumbers and extremeTimes are what no field can have.
var (
	extremeNumbers = []string{"-9223372036854775808", "9223372036854775807", "-9223372036854775809", "-1", "1e308"}
	extremeTimes   = []string{"-9223372036854775808ns", "-2562047h47m16.854775808s", "9223372036854775807ns", "2562048h", "-1ns"}
)

// extremes are requests with extreme numbers and times wherever there is a number or a time. id makes
// the id of a run.
// own is a pool that the neighbor may change.
func extremes(own string, id func() string) (all []request) {
	run := func(fields string) request {
		return request{http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":%q,%s}`, id(), fields), false}
	}
	step := func(fields string) request {
		return run(fmt.Sprintf(`"delay":"1h","steps":[{"name":"s","external":true,%s}]`, fields))
	}
	claim := func(fields string) request {
		return request{http.MethodPost, "/v1/claims", "{" + fields + "}", false}
	}
	for _, n := range extremeNumbers {
		all = append(all,
			request{http.MethodPatch, "/v1/limits", fmt.Sprintf(`{"max_concurrent_runs":%s}`, n), false},
			request{http.MethodPatch, "/v1/limits", fmt.Sprintf(`{"tags":[{"key":"a","value":"b","limit":%s}]}`, n), false},
			claim(fmt.Sprintf(`"pools":{%q:%s},"wait":"0s"`, spitePool, n)),
			claim(fmt.Sprintf(`"pools":{%q:1},"wait":"0s","priority":%s`, spitePool, n)),
			claim(fmt.Sprintf(`"pools":{%q:1},"wait":"0s","pid":%s`, spitePool, n)),
			request{http.MethodPost, "/v1/claims/none/renew", fmt.Sprintf(`{"fence":%s}`, n), false},
			request{http.MethodPost, "/v1/claims/none/renew", fmt.Sprintf(`{"pid":%s}`, n), false},
			request{http.MethodDelete, "/v1/claims/none?fence=" + url.QueryEscape(n), "", false},
			run(fmt.Sprintf(`"delay":"1h","priority":%s`, n)), run(fmt.Sprintf(`"delay":"1h","retries":%s`, n)),
			run(fmt.Sprintf(`"delay":"1h","pools":{%q:%s}`, spitePool, n)),
			run(fmt.Sprintf(`"delay":"1h","steps":[{"name":"s","external":true}],"max_concurrent_steps":%s`, n)),
			run(fmt.Sprintf(`"delay":"1h","steps":[{"name":"s","external":true}],"max_steps_per_tick":%s`, n)),
			step(fmt.Sprintf(`"concurrency":%s`, n)), step(fmt.Sprintf(`"retries":%s`, n)), step(fmt.Sprintf(`"pools":{%q:%s}`, spitePool, n)),
			step(fmt.Sprintf(`"items":{"from":%s,"to":1}`, n)), step(fmt.Sprintf(`"items":{"from":1,"to":%s}`, n)),
			step(fmt.Sprintf(`"items":{"from":1,"to":2,"by":%s}`, n)), step(fmt.Sprintf(`"task":{"name":"spite","limit":%s}`, n)),
			request{http.MethodPost, "/actions/revoke", url.Values{"claim": {"none"}, "fence": {n}, "sure": {"yes"}, "back": {"//evil/"}}.Encode(), true},
		)
		for _, pool := range []string{calmPool, own} {
			all = append(all,
				request{http.MethodPatch, "/v1/pools/" + pool, fmt.Sprintf(`{"limit":%s}`, n), false},
				request{http.MethodPut, "/v1/pools/" + pool, fmt.Sprintf(`{"limit":%s}`, n), false},
				request{http.MethodPost, "/actions/limit", url.Values{"pool": {pool}, "limit": {n}, "from": {"8"}, "sure": {"yes"}, "back": {"//evil/"}}.Encode(), true},
				request{http.MethodGet, "/actions/limit?" + url.Values{"pool": {pool}, "limit": {n}, "from": {n}}.Encode(), "", false},
			)
		}
		for _, path := range []string{"/v1/claims", "/v1/runs", "/v1/actions", "/v1/runs/none/steps/s", "/v1/queues/default/ready"} {
			all = append(all, request{http.MethodGet, path + "?limit=" + url.QueryEscape(n), "", false})
		}
	}
	for _, d := range extremeTimes {
		for _, field := range []string{"lease_duration", "reserve_after"} {
			for _, pool := range []string{calmPool, own} {
				all = append(all, request{http.MethodPatch, "/v1/pools/" + pool, fmt.Sprintf(`{%q:%q}`, field, d), false})
			}
		}
		all = append(all,
			claim(fmt.Sprintf(`"pools":{%q:100},"wait":%q`, spitePool, d)), claim(fmt.Sprintf(`"pools":{%q:1},"wait":"0s","ttl":%q`, spitePool, d)),
			request{http.MethodPost, "/v1/claims/none/renew", fmt.Sprintf(`{"ttl":%q}`, d), false},
			run(fmt.Sprintf(`"delay":%q`, d)), run(`"not_before":"9999-12-31T23:59:59Z"`),
			step(fmt.Sprintf(`"backoff":%q`, d)), step(fmt.Sprintf(`"timeout":%q`, d)),
			request{http.MethodGet, "/v1/queues/default/ready?wait=" + url.QueryEscape(d), "", false},
			request{http.MethodGet, "/v1/runs/none/steps/s/0/log?wait=" + url.QueryEscape(d), "", false},
			request{http.MethodPost, "/v1/runs/none/steps/s/0/take", fmt.Sprintf(`{"ttl":%q,"wait":%q}`, d, d), false},
			request{http.MethodPost, "/v1/sources/none/wake", fmt.Sprintf(`{"wait":%q}`, d), false},
		)
	}
	return all
}

func sendExtremes(ctx context.Context, n *neighbor, r *rand.Rand) {
	own := ownPool(neighborUIDs[n.index])
	n.send(ctx, "extreme numbers", request{http.MethodPut, "/v1/pools/" + own, `{"limit":8}`, false})
	all := extremes(own, func() string {
		id := n.newID("extreme", r)
		n.submits(id)
		return id
	})
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, q := range all {
		if ctx.Err() != nil {
			return
		}
		n.send(ctx, "extreme numbers", q)
		pause(ctx, extremeEach)
	}
}

// seenClaim is a claim as the list of claims shows it.
type seenClaim struct {
	ID    string `json:"id"`
	RunID string `json:"run_id"`
	Fence int64  `json:"fence"`
}

// others returns the claims that the other neighbor has made as it should, as any user can list them.
func (n *neighbor) others(ctx context.Context, attack string) (all []seenClaim) {
	_, text := n.send(ctx, attack, request{http.MethodGet, "/v1/claims?limit=100&pool=" + calmPool, "", false})
	var list struct {
		Items []seenClaim `json:"items"`
	}
	_ = json.Unmarshal(text, &list) // a refusal has none
	own := fmt.Sprintf("calm-%d-", neighborUIDs[n.index])
	for _, c := range list.Items {
		if !strings.HasPrefix(c.ID, own) {
			all = append(all, c)
		}
	}
	return all
}

// cancelNamedRuns submits the runs that claims of the other name, and cancels them.
func cancelNamedRuns(ctx context.Context, n *neighbor, _ *rand.Rand) {
	const name = "runs that claims of the other name"
	for _, c := range n.others(ctx, name) {
		if c.RunID == "" || ctx.Err() != nil {
			continue
		}
		n.submits(c.RunID)
		n.send(ctx, name, request{http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":%q,"delay":"1h"}`, c.RunID), false})
		n.send(ctx, name, request{http.MethodPost, "/v1/runs/" + c.RunID + "/cancel", "", false})
	}
}

// claimForNoRun makes claims that name runs that do not exist, so that events of them are written.
func claimForNoRun(ctx context.Context, n *neighbor, r *rand.Rand) {
	const name = "claims that name no run"
	for range 10 {
		if ctx.Err() != nil {
			return
		}
		id := n.newID("event", r)
		body := fmt.Sprintf(`{"id":%q,"pools":{%q:1},"wait":"0s","run_id":%q,"step_key":%q}`, id, spitePool, "no-"+id, strings.Repeat("k", 100))
		n.send(ctx, name, request{http.MethodPost, "/v1/claims", body, false})
		n.send(ctx, name, request{http.MethodDelete, "/v1/claims/" + id, "", false})
	}
}

// large is a run that is far larger once its steps are rendered.
func large(id string) string {
	return fmt.Sprintf(`{"id":%q,"delay":"1h","steps":[{"name":"s","external":true,"items":{"from":1,"to":%d},"input":"%s{{.item}}"}]}`,
		id, largeItems, strings.Repeat("x", largeInput))
}

// mayRun says whether a neighbor may submit more runs: those that it has not canceled are bounded.
func (n *neighbor) mayRun() bool {
	n.sending.Lock()
	defer n.sending.Unlock()
	return len(n.runs) < mostRuns
}

func submitLarge(ctx context.Context, n *neighbor, r *rand.Rand) {
	if n.mayRun() {
		id := n.newID("large", r)
		n.submits(id)
		n.send(ctx, "large submits", request{http.MethodPost, "/v1/runs", large(id), false})
	}
}

func submitMany(ctx context.Context, n *neighbor, r *rand.Rand) {
	for range manyRuns {
		if ctx.Err() == nil && n.mayRun() {
			id := n.newID("many", r)
			n.submits(id)
			n.send(ctx, "many submits", request{http.MethodPost, "/v1/runs", fmt.Sprintf(`{"id":%q,"delay":"1h"}`, id), false})
		}
	}
}

// largeRun submits a large run, and returns its id; that of an earlier one if it is refused.
func (n *neighbor) largeRun(ctx context.Context, attack string, r *rand.Rand) string {
	id := n.newID("read", r)
	n.submits(id)
	status, _ := n.send(ctx, attack, request{http.MethodPost, "/v1/runs", large(id), false})
	n.sending.Lock()
	defer n.sending.Unlock()
	if n.large == "" || status == http.StatusCreated {
		n.large = id
	}
	return n.large
}

// readInParallel reads a large run, and all that can be listed, many times at once.
func readInParallel(ctx context.Context, n *neighbor, r *rand.Rand) {
	const name = "parallel reads"
	id := n.largeRun(ctx, name, r)
	paths := []string{
		"/v1/runs/" + id + "/steps/s?limit=1000", "/v1/runs/" + id + "/steps", "/v1/runs/" + id, "/v1/runs?limit=1000", "/v1/runs?status=queued",
		"/v1/runs/" + id + "/events", "/v1/claims", "/v1/queues/default/ready?limit=1", "/v1/runs/" + id + "/why", "/runs", "/pools",
	}
	var all sync.WaitGroup
	for i := range readsAtOnce {
		path := paths[i%len(paths)]
		if i%2 == 0 {
			path = paths[0]
		}
		all.Go(func() { n.send(ctx, name, request{http.MethodGet, path, "", false}) })
	}
	all.Wait()
}

// connectionsNow returns how many connections a neighbor opens in a round that begins now.
func connectionsNow(index int, at int64) int {
	for _, then := range []int64{at, at + int64(connectionsEnd)} {
		if attacks(1-index, then) {
			return fewConnections
		}
	}
	return connections
}

// keepConnections opens many connections, and keeps them for a time.
func keepConnections(ctx context.Context, n *neighbor, _ *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, connectionsEnd)
	defer cancel()
	var all []net.Conn
	for range connectionsNow(n.index, now()) {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", n.socket)
		if err != nil {
			n.count("connections", "refused")
			break
		}
		n.count("connections", "opened")
		all = append(all, c)
	}
	pause(ctx, connectionsFor)
	for _, c := range all {
		if isClosed(c) {
			n.count("connections", "closed by the sidecar")
		}
		c.Close()
	}
}

// isClosed says whether the other side has closed a connection on which nothing was sent.
func isClosed(c net.Conn) (closed bool) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Read(func(fd uintptr) bool {
		k, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = k >= 0 && err == nil || err != nil && err != syscall.EAGAIN
		return true
	})
	return closed || err != nil
}

// sendSlowly sends bodies that hardly arrive.
func sendSlowly(ctx context.Context, n *neighbor, _ *rand.Rand) {
	var all sync.WaitGroup
	for i := range slowBodies {
		path := []string{"/v1/runs", "/v1/claims"}[i%2]
		all.Go(func() { n.count("slow bodies", n.sendOneSlowly(ctx, path)) })
	}
	all.Wait()
}

// sendOneSlowly sends a byte at a time, and returns the status line of the answer, if there is one.
func (n *neighbor) sendOneSlowly(ctx context.Context, path string) string {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", n.socket)
	if err != nil {
		return "refused"
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{", path)
	answer := make(chan string, 1)
	go func() {
		text := make([]byte, 64)
		k, err := c.Read(text)
		line, _, _ := strings.Cut(string(text[:k]), "\r\n")
		if _, status, ok := strings.Cut(line, " "); ok {
			line = status
		}
		if err != nil {
			line = "closed"
		}
		answer <- line
	}()
	end := time.After(slowFor)
	for {
		select {
		case line := <-answer:
			return line
		case <-end:
			return "no answer to a part"
		case <-ctx.Done():
			return "no answer to a part"
		case <-time.After(200 * time.Millisecond):
			if !attacks(n.index, now()) {
				return "no answer to a part" // the turn is over: what follows would hurt only its sender
			}
			_, _ = c.Write([]byte(" ")) // an answer says why it is not read
		}
	}
}

// seizeClaims sends requests with the ids of the other's claims while the other holds and releases them.
func seizeClaims(ctx context.Context, n *neighbor, _ *rand.Rand) {
	const name = "claims of the other"
	var all sync.WaitGroup
	for _, c := range n.others(ctx, name) {
		requests := []request{
			{http.MethodDelete, "/v1/claims/" + c.ID, "", false},
			{http.MethodDelete, fmt.Sprintf("/v1/claims/%s?fence=%d", c.ID, c.Fence), "", false},
			{http.MethodPost, "/v1/claims/" + c.ID + "/renew", fmt.Sprintf(`{"fence":%d,"ttl":"1s"}`, c.Fence), false},
			{http.MethodPost, "/v1/claims/" + c.ID + "/revoke", "{}", false},
		}
		for i := range seizures {
			all.Go(func() {
				for j := range requests {
					if ctx.Err() == nil {
						n.send(ctx, name, requests[(i+j)%len(requests)])
					}
				}
			})
		}
	}
	all.Wait()
}

// claimSameIDs claims with the ids of the other's claims, as fast as it is answered. What it gets after
// the other has released its claim, it releases.
func claimSameIDs(ctx context.Context, n *neighbor, r *rand.Rand) {
	const name = "ids of the other's claims"
	var all sync.WaitGroup
	for i, c := range n.others(ctx, name) {
		wait := []string{"0s", "1s"}[(i+r.IntN(2))%2]
		q := request{http.MethodPost, "/v1/claims", fmt.Sprintf(`{"id":%q,"pools":{%q:1},"wait":%q,"run_id":%q}`, c.ID, spitePool, wait, c.RunID), false}
		all.Go(func() {
			for range sameIDs {
				if status, _ := n.send(ctx, name, q); ctx.Err() != nil || status < 300 {
					break
				}
			}
			n.send(ctx, name, request{http.MethodDelete, "/v1/claims/" + c.ID, "", false})
		})
	}
	all.Wait()
}

// bindProcesses binds claims to processes of others.
func bindProcesses(ctx context.Context, n *neighbor, r *rand.Rand) {
	pids := []int{1, os.Getppid()}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range all {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(path))
		if owner, ok := info.Sys().(*syscall.Stat_t); err == nil && ok && int(owner.Uid) != neighborUIDs[n.index] {
			pids = append(pids, pid)
		}
	}
	for range 5 {
		id, pid := n.newID("pid", r), pids[r.IntN(len(pids))]
		n.send(ctx, "processes of others", request{http.MethodPost, "/v1/claims", fmt.Sprintf(`{"id":%q,"pools":{%q:1},"wait":"0s","pid":%d}`, id, spitePool, pid), false})
	}
}

// guessTokens sends wrong tokens over TCP.
func guessTokens(ctx context.Context, n *neighbor, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, inTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.tcp+"/v1/whoami", nil)
	if err != nil {
		return
	}
	req.Header.Set("Authorization", fmt.Sprintf("Bearer wrong-token-%016x", r.Uint64()))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.count("wrong tokens", "no answer")
		return
	}
	resp.Body.Close()
	n.count("wrong tokens", strconv.Itoa(resp.StatusCode))
}

// declareTasks submits runs whose steps declare the limit of a task.
func declareTasks(ctx context.Context, n *neighbor, r *rand.Rand) {
	for _, name := range []string{"spite", n.newID("spite", r)} {
		if id := n.newID("task", r); n.mayRun() {
			n.submits(id)
			n.send(ctx, "task pools", request{http.MethodPost, "/v1/runs", fmt.Sprintf(
				`{"id":%q,"delay":"1h","steps":[{"name":"s","external":true,"task":{"name":%q,"limit":1}}]}`, id, name), false})
		}
	}
}
