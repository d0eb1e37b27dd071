package sidecar_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

// post sends a request for a claim as a client that does not read.
func post(t *testing.T, network, address, body string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(c, "POST /v1/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAClaimWhoseClientIsGoneBeforeItReadsTheAnswerIsReleased(t *testing.T) {
	r := single(t)
	r.pool("db", 1)
	for range 10 {
		c := post(t, "unix", r.cfg.Socket, `{"pools":{"db":1},"ttl":"24h"}`)
		eventually(t, "it is granted", func() bool { return r.claimed("db") == 1 })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		r.free("db")
	}
	// One that has read its answer keeps what it holds, however it goes.
	c := post(t, "unix", r.cfg.Socket, `{"pools":{"db":1},"ttl":"24h"}`)
	if n, err := c.Read(make([]byte, 64<<10)); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server has seen it go", func() bool {
		_, err := r.client.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"db": 1}, Wait: api.DurationOf(50 * time.Millisecond)})
		return problem.CodeOf(err) == problem.ClaimTimeout
	})
}

func TestAClaimWithoutAnIDIsNeverHeldForEver(t *testing.T) {
	r := single(t)
	r.readDocument()
	r.pool("db", 1)
	got := r.raw(request{method: "POST", path: "/v1/claims", body: `{"pools":{"db":1},"ttl":"0s"}`})
	if got.status != http.StatusUnprocessableEntity {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if p := got.problem(t); p.Code != "invalid" || len(p.Errors) != 1 || p.Errors[0].Field != "ttl" {
		t.Errorf("%+v", p)
	}
	r.claim(api.ClaimRequest{ID: "named", Pools: api.Slots{"db": 1}, TTL: api.DurationOf(0)})
}
