package sidecar_test

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// A request of the simple form, and one that says the same in another form, which huma answers.
func TestSimpleRequestsAreAnsweredAsOthers(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 3)
	r.claim(api.ClaimRequest{ID: "mine", Pools: api.Slots{"db": 1}})
	claim := func(body string) request { return request{method: "POST", path: "/v1/claims", body: body} }
	release := func(path string) request { return request{method: "DELETE", path: "/v1/claims/" + path} }
	preferring := func(q request) request {
		q.change = func(req *http.Request) { req.Header.Set("Prefer", "handling=strict") }
		return q
	}
	const escaped = "?fence=%31" // is 1
	for what, test := range map[string]struct {
		simple, other request
		status        int
	}{
		"a claim":              {claim(`{"pools":{"db":1},"run_id":"<&>","ttl":"1m"}`), request{}, 201},
		"a claim again":        {claim(`{"id":"mine","pools":{"db":1}}`), request{}, 201},
		"an id in use":         {claim(`{"id":"mine","pools":{"db":2}}`), request{}, 409},
		"a claim that waits":   {claim(`{"pools":{"db":3},"wait":"10ms"}`), request{}, 409},
		"a claim of too much":  {claim(`{"pools":{"db":4}}`), request{}, 422},
		"a claim of nothing":   {claim(`{"pools":{}}`), request{}, 422},
		"a claim of no pool":   {claim(`{"pools":{"none":1},"wait":"0s"}`), request{}, 404},
		"half a claim":         {claim(`{"pools":`), request{}, 400},
		"a claim by process 0": {claim(`{"pools":{"db":1},"pid":0}`), request{}, 422},
		"the same in disguise": {claim(`{"pools":{"db":1},"p\u0069d":0}`), request{}, 422},
		"an unknown field":     {claim(`{"pools":{"db":1},"prio":1}`), request{}, 422},
		"a release":            {release("gone?fence=1"), release("gone" + escaped), 204},
		"one of a later claim": {release("mine?fence=1"), release("mine" + escaped), 204},
		"one of a bad id":      {release("a%20b?fence=1"), release("a%20b" + escaped), 422},
	} {
		t.Run(what, func(t *testing.T) {
			if test.other.method == "" {
				test.other = preferring(test.simple)
			}
			simple, other := r.raw(test.simple), r.raw(test.other)
			if simple.status != test.status || other.status != test.status {
				t.Errorf("status %d and %d, want %d: %s", simple.status, other.status, test.status, simple.body)
			}
			if a, b := plain(simple.body), plain(other.body); a != b {
				t.Errorf("the answers are\n%s\n%s", a, b)
			}
			if a, b := named(simple.header), named(other.header); !slices.Equal(a, b) {
				t.Errorf("the headers are\n%v\n%v", a, b)
			}
			held, err := r.client.Claims(t.Context(), client.ClaimFilter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range held {
				if c.ID != "mine" {
					r.raw(release(c.ID))
				}
			}
		})
	}
}

// changing is what differs from one answer to the next: ids, times and fencing tokens.
var changing = regexp.MustCompile(`"(id|request_id|claimed_at|valid_until|valid_for|since|fence)":("[^"]*"|\d+)|01[0-9A-Z]{24}|for [0-9]+m?s`)

func plain(body []byte) string { return changing.ReplaceAllString(string(body), "…") }

// named returns the names of headers, and the type of the answer.
func named(h http.Header) []string {
	return append(slices.Sorted(maps.Keys(h)), h.Get("Content-Type"), h.Get(api.RetryAfter))
}
