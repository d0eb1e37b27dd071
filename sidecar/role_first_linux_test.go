package sidecar_test

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
)

// Numbers at the ends of what Go can count overflow when they are negated or summed. One that is
// written by recursion ends the process: that can't be recovered.
func TestNumbersAtTheEndsOfTheirRangeAreRefused(t *testing.T) {
	r := single(t)
	r.pool("x", 5)
	body := func(format string, n int64) string { return fmt.Sprintf(format, n) }
	span := func(format string, n int64) string { return fmt.Sprintf(format, time.Duration(n)) }
	for _, c := range []struct {
		method, path, body, field string
		write                     func(string, int64) string
	}{
		{"PATCH", "/v1/pools/x", `{"limit":%d}`, "limit", body},
		{"PATCH", "/v1/pools/x", `{"lease_duration":%q}`, "lease_duration", span},
		{"PATCH", "/v1/pools/x", `{"reserve_after":%q}`, "reserve_after", span},
		{"PUT", "/v1/pools/y", `{"limit":%d}`, "limit", body},
		{"PUT", "/v1/pools/y", `{"limit":1,"lease_duration":%q}`, "lease_duration", span},
		{"PATCH", "/v1/limits", `{"max_concurrent_runs":%d}`, "max_concurrent_runs", body},
		{"PATCH", "/v1/limits", `{"tags":[{"key":"a","limit":%d}]}`, "tags[0]", body},
		{"POST", "/v1/claims", `{"pools":{"x":%d}}`, "pools.x", body},
		{"POST", "/v1/claims", `{"pools":{"x":1},"priority":%d}`, "priority", body},
		{"POST", "/v1/claims", `{"pools":{"x":1},"wait":%q}`, "wait", span},
		{"POST", "/v1/claims", `{"pools":{"x":1},"ttl":%q}`, "ttl", span},
		{"POST", "/v1/claims", `{"pools":{"x":1},"pid":%d}`, "pid", body},
		{"POST", "/v1/runs", `{"priority":%d}`, "priority", body},
		{"POST", "/v1/runs", `{"retries":%d}`, "retries", body},
		{"POST", "/v1/runs", `{"delay":%q}`, "delay", span},
		{"POST", "/v1/runs", `{"pools":{"x":%d}}`, "pools.x", body},
		{"POST", "/v1/runs", `{"steps":[{"name":"a","external":true,"items":{"from":%[1]d,"to":%[1]d,"by":-1}}]}`, "steps.a.items.from", body},
		{"POST", "/v1/runs", `{"steps":[{"name":"a","external":true,"backoff":%q}]}`, "steps.a.backoff", span},
		{"POST", "/v1/runs", `{"steps":[{"name":"a","shell":"x","timeout":%q}]}`, "steps.a.timeout", span},
		{"POST", "/v1/runs", `{"max_concurrent_steps":%d,"steps":[{"name":"a","external":true}]}`, "max_concurrent_steps", body},
	} {
		for _, n := range []int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64} {
			a := r.raw(request{method: c.method, path: c.path, body: c.write(c.body, n)})
			p := a.problem(t)
			if p.Code != string(problem.Invalid) || len(p.Errors) == 0 || !strings.HasPrefix(p.Errors[0].Field, c.field) {
				t.Errorf("%s %s %s: %s", c.method, c.path, c.write(c.body, n), a.body)
			}
		}
	}
	for _, q := range []string{"/v1/claims?limit=%d", "/v1/runs?limit=%d", "/v1/queues/x/ready?limit=%d", "/v1/runs/x/events?limit=%d", "/v1/runs/x/steps/a?cursor=%d"} {
		for _, n := range []int64{math.MinInt64, math.MaxInt64} {
			if a := r.raw(request{method: "GET", path: fmt.Sprintf(q, n)}); a.status >= 500 || a.status < 400 {
				t.Errorf("%s: %d %s", fmt.Sprintf(q, n), a.status, a.body)
			}
		}
	}
	for _, form := range []string{"pool=x&limit=%[1]d&from=%[1]d", "pool=x&limit=7&from=%d"} {
		for _, n := range []int64{math.MinInt64, math.MaxInt64} {
			r.sendTCP("POST", "/actions/limit", fmt.Sprintf(form, n), "Sec-Fetch-Site", "same-origin", "Content-Type", "application/x-www-form-urlencoded")
			r.sendTCP("GET", "/actions/limit?"+fmt.Sprintf(form, n), "")
		}
	}
	if p, err := r.client.Pool(t.Context(), "x"); err != nil || p.Limit != 5 {
		t.Errorf("the pool is %+v, %v", p, err)
	}
}

// sendTCP sends a request with headers over TCP.
func (r *running) sendTCP(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return r.roundTrip(&http.Transport{DisableKeepAlives: true}, req)
}

// The owner of a claim, a run or an attempt needs no role. Whether a caller is the owner is known from
// the path, before it is asked for the body.
func TestTheBodyIsNotReadOfACallerThatIsNotTheOwner(t *testing.T) {
	var tokens access.Tokens
	grants := map[string][]string{
		"nothing": nil, "views": {"view"}, "claims": {"claim"}, "operates": {"operate:other"}, "executes": {"execute:other"},
		ownerSet: {"claim", "submit", "execute:db"},
	}
	for name, roles := range grants {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	m := &matrix{dock: led(t, 1000, func(c *sidecar.Config) {
		c.Policy, c.Tokens = access.Policy{}, func() access.Tokens { return tokens }
	})}
	owner := &caller{name: ownerSet, token: ownerSet + "-secret", client: &http.Client{Transport: &http.Transport{}}}
	m.callers = []*caller{owner}
	m.connect(m.base)
	status := func(n need, parts map[string]string, header string) string {
		t.Helper()
		path := n.path + parts["query"]
		for part, value := range parts {
			path = strings.ReplaceAll(path, part, value)
		}
		c := m.conn()
		if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 60\r\n\r\n", n.method, path, header); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		return strings.Fields(line)[1]
	}
	// An executor shows with the fence of its attempt, in the body, that it had the attempt once.
	reports := map[string]bool{"heartbeat-run": true, "finish-run": true, "renew-step": true, "finish-step": true}
	for _, n := range readNeeds(t) {
		if !n.owner {
			continue
		}
		t.Run(n.op, func(t *testing.T) {
			parts := m.made(t, owner, n.op)
			for name, roles := range grants {
				set, err := access.ParseGrants(roles)
				if err != nil {
					t.Fatal(err)
				}
				want := "403"
				if name == ownerSet || n.allows(set) || name == "executes" && reports[n.op] {
					want = "100"
				}
				if got := status(n, parts, "Authorization: Bearer "+name+"-secret"); got != want {
					t.Errorf("%s %s by %s, without the body: %s, want %s", n.method, n.path, name, got, want)
				}
			}
			if got := status(n, parts, "Berth-Client-Token: guessed"); got != "401" {
				t.Errorf("%s %s with a client token of another claim, without the body: %s, want 401", n.method, n.path, got)
			}
			for _, id := range []string{"unknown", "NO%20id"} {
				parts := maps.Clone(parts)
				parts["{id}"], parts["query"] = id, strings.ReplaceAll(parts["query"], parts["{id}"], id)
				if got := status(n, parts, "Authorization: Bearer nothing-secret"); got != "403" {
					t.Errorf("%s %s about %s, without the body: %s, want 403", n.method, n.path, id, got)
				}
			}
		})
	}
}

func TestTheFormOfACallerThatMayOperateNoPoolIsNotRead(t *testing.T) {
	var tokens access.Tokens
	for name, roles := range map[string][]string{"submits": {"view", "submit", "claim"}, "operates": {"operate:other"}} {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r := single(t, func(c *sidecar.Config) {
		c.Policy, c.Tokens = access.Policy{}, func() access.Tokens { return tokens }
	})
	for action, want := range map[string]string{"pause": "403", "resume": "403", "limit": "403", "delete": "403", "none": "403", "cancel": "100", "retry": "100", "revoke": "100"} {
		for name, want := range map[string]string{"submits": want, "operates": "100"} {
			c := r.conn()
			if _, err := fmt.Fprintf(c, "POST /actions/%s HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nAuthorization: Bearer %s-secret\r\nContent-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\nContent-Length: 60\r\n\r\n", action, name); err != nil {
				t.Fatal(err)
			}
			status, err := bufio.NewReader(c).ReadString('\n')
			if err := errors.Join(err, c.Close()); err != nil || !strings.HasPrefix(status, "HTTP/1.1 "+want+" ") {
				t.Errorf("%s by %s, without the form: %q, %v, want %s", action, name, status, err, want)
			}
		}
	}
}

// A caller that may not do something learns nothing of what the server makes of the request.
func TestTheRoleIsCheckedBeforeWhatARequestSays(t *testing.T) {
	var tokens access.Tokens
	for name, roles := range map[string][]string{"nothing": nil, "other": {"operate:other", "claim:other", "submit:other", "execute:other"}} {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r := single(t, func(c *sidecar.Config) {
		c.Policy.Open = false
		c.Tokens = func() access.Tokens { return tokens }
	})
	places := strings.NewReplacer("{pool}", "x", "{queue}", "x", "{host}", "x", "{instance}", "x", "{name}", "x", "{id}", "x", "{step}", "x", "{index}", "0")
	for _, n := range readNeeds(t) {
		if n.role == "" || n.method == "GET" || n.method == "DELETE" {
			continue
		}
		who, want := "Authorization: Bearer nothing-secret\r\n", "403"
		if n.owner { // what a token has made is its own
			who, want = "", "401"
		}
		for _, length := range []string{"Content-Length: 60", "Content-Length: 60000", "Transfer-Encoding: chunked"} {
			c := r.conn()
			if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/json\r\nExpect: 100-continue\r\n%s\r\n\r\n",
				n.method, places.Replace(n.path), who, length); err != nil {
				t.Fatal(err)
			}
			if status, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(status, "HTTP/1.1 "+want+" ") {
				t.Errorf("%s %s, without the body: %q, %v", n.method, n.path, status, err)
			}
		}
	}
	junk := `{"limit":-9223372036854775808,"lease_duration":"-9223372036854775808ns","junk":[`
	for _, n := range readNeeds(t) {
		if n.role == "" || n.owner {
			continue
		}
		by := []string{"nothing"}
		if strings.Contains(n.path, "{pool}") && n.on != "" || strings.Contains(n.path, "{queue}") {
			by = append(by, "other")
		}
		for _, name := range by {
			path := n.path + "?limit=-9223372036854775808&junk=1"
			for _, part := range []string{"{pool}", "{queue}", "{host}", "{instance}", "{name}", "{id}", "{step}", "{index}"} {
				path = strings.ReplaceAll(path, part, url.PathEscape("NO\u202e name"))
			}
			a := r.sendTCP(n.method, path, junk, "Authorization", "Bearer "+name+"-secret", "If-Match", "junk")
			if p := a.problem(t); a.status != http.StatusForbidden || p.RequestID == "" || strings.Contains(p.Detail, "\u202e") {
				t.Errorf("%s %s by %s: %d %s", n.method, path, name, a.status, a.body)
			}
		}
	}
	for _, action := range []string{"pause", "resume", "limit", "delete"} {
		for _, q := range []string{"pool=NO", "pool=x&limit=-9223372036854775808&from=-9223372036854775808"} {
			a := r.sendTCP("POST", "/actions/"+action, q, "Sec-Fetch-Site", "same-origin", "Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html")
			if a.status != http.StatusUnauthorized {
				t.Errorf("%s %s: %d %s", action, q, a.status, a.body)
			}
		}
	}
}
