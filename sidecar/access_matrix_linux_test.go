package sidecar_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/testcert"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
)

// accessPage is the page with the table of what operations need.
const accessPage = "../docs/reference/access.md"

// need is a row of that table.
type need struct {
	op, method, path string
	role             access.Role // empty: none
	on               string      // "", "its pools", "its queues" or "all"
	owner            bool
}

// allows reports what the row says of a caller that does not own the object.
func (n need) allows(grants access.Grants) bool {
	switch {
	case n.role == "":
		return true
	case n.on == "":
		return grants.Has(n.role)
	case n.on == "all":
		return grants.Allow(n.role, access.Everything)
	}
	return grants.Allow(n.role, matched)
}

// matched is the name of the pool and of the queue of all objects.
const matched = "db"

func readNeeds(t *testing.T) []need {
	t.Helper()
	page, err := os.ReadFile(accessPage)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ([a-z-]+) \\| `([A-Z]+) (/[^`]*)` \\| (?:–|`([a-z]+)`) \\| ([a-z ]*) \\| (yes)? ?\\|$")
	var all []need
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		all = append(all, need{m[1], m[2], m[3], access.Role(m[4]), strings.TrimSpace(m[5]), m[6] != ""})
	}
	return all
}

// The table is that of the code, and has each operation of the document.
func TestTheTableOfAccessIsComplete(t *testing.T) {
	want := map[access.On]string{access.Anything: "", access.OnPools: "its pools", access.OnQueues: "its queues", access.EveryThing: "all"}
	listed := map[string]bool{}
	for _, n := range readNeeds(t) {
		got, ok := access.Needs[n.op]
		if !ok || got.Open != (n.role == "") || got.Role != n.role || want[got.On] != n.on || got.Own != n.owner {
			t.Errorf("the page says %+v, the code %+v", n, got)
		}
		listed[n.op] = true
	}
	for op := range access.Needs {
		if !listed[op] {
			t.Errorf("%s is not in the table of the page", op)
		}
	}
	r := single(t)
	var doc struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"`
		} `json:"paths"`
	}
	decode(t, r.raw(request{method: "GET", path: "/openapi.json"}), &doc)
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if !slices.ContainsFunc(readNeeds(t), func(n need) bool {
				return n.op == op.ID && n.path == path && strings.EqualFold(n.method, method)
			}) {
				t.Errorf("%s %s (%s) is not in the table of the page", method, path, op.ID)
			}
		}
	}
}

// caller is one identity of a kind, with roles.
type caller struct {
	name   string
	grants access.Grants
	client *http.Client
	base   string
	token  string
}

// send sends a request, and returns the status and the code of a refusal.
func (c *caller) send(t *testing.T, method, path, body string, into any) (status int, code string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // streams
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 400 {
		if into != nil {
			if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
				t.Error(err)
			}
		}
		return resp.StatusCode, ""
	}
	var p api.Problem
	if data, err := io.ReadAll(resp.Body); err != nil || json.Unmarshal(data, &p) != nil {
		t.Errorf("%s %s: %s %s", method, path, resp.Status, data)
	}
	return resp.StatusCode, p.Code
}

// ownerSet has what one needs to own something, and no more.
const ownerSet = "owner"

// roleSets are what callers of each kind have: nothing, and each role for all, for the objects
// of the test, and for others.
func roleSets() map[string][]string {
	sets := map[string][]string{"nothing": nil, ownerSet: {"claim", "submit", "execute:db"}}
	for _, role := range access.Roles {
		sets[string(role)] = []string{string(role)}
		if role.Of() != "" {
			sets[string(role)+"-db"] = []string{string(role) + ":d*"}
			sets[string(role)+"-other"] = []string{string(role) + ":other"}
		}
	}
	return sets
}

// matrix is a sidecar with callers of all kinds and with all role sets.
type matrix struct {
	*dock
	admin           *caller
	callers, owners []*caller
	n               int
}

func newMatrix(t *testing.T) *matrix {
	ca := testcert.New(t)
	cert := ca.Server(t)
	server, err := tls.LoadX509KeyPair(cert.CertFile, cert.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)

	m := &matrix{}
	sets := roleSets()
	var rules []string
	var tokens access.Tokens
	now := time.Now()
	secure := func(certs ...tls.Certificate) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs}}}
	}
	uid := 61000
	for name, roles := range sets {
		grants, err := access.ParseGrants(roles)
		if err != nil {
			t.Fatal(err)
		}
		token, secret, err := access.NewToken(name, grants, now, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if err := tokens.Add(token, now); err != nil {
			t.Fatal(err)
		}
		m.callers = append(m.callers, &caller{name: "token:" + name, grants: grants, client: secure(), token: secret})

		pair := ca.Client(t, name)
		own, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		m.callers = append(m.callers, &caller{name: "cert:" + name, grants: grants, client: secure(own)})
		if len(roles) > 0 {
			rules = append(rules, "cert:"+name+" "+strings.Join(roles, " "), fmt.Sprintf("user:%d %s", uid, strings.Join(roles, " ")))
		}
		if os.Geteuid() == 0 {
			m.callers = append(m.callers, &caller{name: fmt.Sprintf("user:%d (%s)", uid, name), grants: grants, client: asUser(uid), base: "http://localhost"})
		}
		uid++
		if name == ownerSet {
			m.owners = slices.Clone(m.callers[max(0, len(m.callers)-map[bool]int{true: 3, false: 2}[os.Geteuid() == 0]):])
		}
	}
	m.callers = append(m.callers, &caller{name: "anonymous", client: secure()})
	policy, err := access.ParsePolicy(append(rules, "user:* none"))
	if err != nil {
		t.Fatal(err)
	}
	m.dock = led(t, 1000, func(c *sidecar.Config) {
		c.Policy, c.Tokens = policy, func() access.Tokens { return tokens }
		c.TLS = func() *tls.Config {
			return &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
		}
	})
	m.connect(strings.Replace(m.base, "http:", "https:", 1))
	return m
}

// connect has the callers reach the sidecar: those without an address over TCP, and the others
// over the socket.
func (m *matrix) connect(base string) {
	m.t.Helper()
	m.admin = &caller{name: "the sidecar's user", client: asUser(os.Geteuid()), base: "http://localhost"}
	m.openSocket()
	if _, err := m.client.SetLimits(m.t.Context(), api.LimitsChange{MaxConcurrentRuns: new(-1)}); err != nil {
		m.t.Fatal(err)
	}
	for _, c := range append(slices.Clone(m.callers), m.admin) {
		if c.base == "" {
			c.base = base
		} else {
			dial := c.client.Transport.(*http.Transport).DialContext
			c.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dial(ctx, "unix", m.cfg.Socket)
			}
		}
		m.t.Cleanup(c.client.CloseIdleConnections)
	}
}

// asUser returns a client whose connections the kernel reports as a user's.
func asUser(uid int) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dialAs(uid, new(net.Dialer).DialContext)}}
}

// does sends a request that must be allowed, and decodes the answer.
func (c *caller) does(t *testing.T, path, body string, into any) {
	t.Helper()
	if status, code := c.send(t, "POST", path, body, into); status >= 300 {
		t.Fatalf("POST %s %s by %s: %d %s", path, body, c.name, status, code)
	}
}

// made makes what an operation is about, as a caller's own: the parts of the path, and the body.
func (m *matrix) made(t *testing.T, by *caller, op string) map[string]string {
	t.Helper()
	m.n++
	id := fmt.Sprintf("o%d", m.n)
	parts := map[string]string{"{id}": id, "{step}": "x", "{index}": "0", "{pool}": matched, "{queue}": matched, "{name}": "none", "{host}": "no", "{instance}": "one"}
	submits := func(more string) { by.does(t, "/v1/runs", fmt.Sprintf(`{"id":%q%s}`, id, more), nil) }
	external := fmt.Sprintf(`,"steps":[{"name":"x","queue":%q,"external":true}]`, matched)
	var attempt struct {
		Fence int64 `json:"fence"`
	}
	with := func(more string) { parts["body"] = fmt.Sprintf(`{"fence":%d%s}`, attempt.Fence, more) }
	switch op {
	case "claim":
		parts["body"] = fmt.Sprintf(`{"id":%q,"client_token":"x","pools":{%q:1},"wait":"0s"}`, id, matched)
	case "get-claim", "why-claim", "renew-claim", "release-claim", "revoke-claim", "events":
		by.does(t, "/v1/claims", fmt.Sprintf(`{"id":%q,"pools":{%q:1}}`, id, matched), nil)
		parts["query"] = map[string]string{"events": "?claim=" + id}[op]
	case "put-pool", "patch-pool":
		parts["body"] = `{"limit":1000}`
	case "delete-pool":
		m.pool(matched, 1000)
	case "put-limits", "patch-limits":
		parts["body"] = `{"max_concurrent_runs":-1}`
	case "submit-run":
		parts["body"] = fmt.Sprintf(`{"id":%q,"delay":"24h"%s}`, id, external)
	case "start-run":
		submits("")
	case "heartbeat-run", "finish-run":
		submits("")
		eventually(t, id+" is started", func() bool {
			status, _ := by.send(t, "POST", "/v1/runs/"+id+"/start", "{}", &attempt)
			return status < 300
		})
		with(map[string]string{"finish-run": `,"status":"succeeded"`}[op])
	case "take-step", "renew-step", "finish-step":
		submits(external)
		m.published(store.StepID{Run: id, Step: "x"})
		if op != "take-step" {
			by.does(t, "/v1/runs/"+id+"/steps/x/0/take", "{}", &attempt)
			with(map[string]string{"finish-step": `,"status":"succeeded"`}[op])
		}
	default:
		if strings.Contains(op, "run") || strings.Contains(op, "step") {
			submits(`,"delay":"24h"` + external)
		}
	}
	return parts
}

// try has a caller try an operation, and reports whether it was allowed.
func (m *matrix) try(t *testing.T, c *caller, n need, parts map[string]string) bool {
	t.Helper()
	path := n.path + parts["query"]
	for part, value := range parts {
		path = strings.ReplaceAll(path, part, value)
	}
	status, code := c.send(t, n.method, path, parts["body"], nil)
	refusal := map[int]string{http.StatusUnauthorized: "unauthorized", http.StatusForbidden: "forbidden"}
	if want, refused := refusal[status]; refused {
		if anonymous := c.name == "anonymous"; code != want || anonymous != (status == http.StatusUnauthorized) {
			t.Errorf("%s %s: %s is refused with %d %s", n.method, path, c.name, status, code)
		}
		return false
	}
	if status == http.StatusBadRequest || status == http.StatusUnprocessableEntity || status >= 500 {
		t.Errorf("%s %s by %s: %d %s", n.method, path, c.name, status, code)
	}
	return true
}

// check tries each row of the table with each caller, and returns how many cases that were.
func (m *matrix) check(t *testing.T) (cases int) {
	for _, n := range readNeeds(t) {
		t.Run(n.op, func(t *testing.T) {
			var parts map[string]string
			for _, c := range m.callers {
				if parts == nil {
					parts = m.made(t, m.admin, n.op)
				}
				got, want := m.try(t, c, n, parts), n.allows(c.grants)
				if got != want {
					t.Errorf("%s with %v: allowed: %v, the table says %v", c.name, c.grants.Texts(), got, want)
				}
				if cases++; got { // it may be used up; what was refused has changed nothing
					parts = nil
				}
			}
			if !n.owner {
				return
			}
			for _, c := range m.owners {
				cases++
				if !m.try(t, c, n, m.made(t, c, n.op)) {
					t.Errorf("%s may not do it with what is its own", c.name)
				}
			}
		})
	}
	return cases
}

func TestEveryOperationIsAllowedAsTheTableSays(t *testing.T) {
	if testing.Short() {
		t.Skip("the table of anonymous callers shows the race detector as much")
	}
	t.Logf("%d cases", newMatrix(t).check(t))
}

// Callers on loopback who show nothing have what rules of anonymous say, or the default.
func TestAnonymousCallersAreAllowedAsTheTableSays(t *testing.T) {
	for _, rule := range []string{"", "anonymous none", "anonymous view", "anonymous claim:d* submit:d*", "anonymous claim:other submit:other"} {
		t.Run(rule, func(t *testing.T) {
			grants := access.DefaultGrants
			var policy access.Policy
			if rule != "" {
				var err error
				if policy, err = access.ParsePolicy([]string{rule}); err != nil {
					t.Fatal(err)
				}
				grants = policy.Rules[0].Grants
			}
			m := &matrix{dock: led(t, 1000, func(c *sidecar.Config) { c.Policy = policy })}
			m.callers = []*caller{{name: "anonymous", grants: grants, client: &http.Client{Transport: &http.Transport{}}}}
			m.connect(m.base)
			t.Logf("%d cases", m.check(t))
		})
	}
}
