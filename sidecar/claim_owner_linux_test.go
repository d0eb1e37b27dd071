package sidecar_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// neighbors are two callers, each of whom has a claim that the other tries to get at.
type neighbors struct {
	*running
	mine, others *client.Client
	// token is what the owner's requests for claims carry.
	token string
}

// eachOther calls a test with users of the socket, and with callers on loopback that have only
// client tokens.
func eachOther(t *testing.T, test func(t *testing.T, s *neighbors)) {
	closed := func(c *sidecar.Config) { c.Policy = access.Policy{} }
	t.Run("users of the socket", func(t *testing.T) {
		needsUsers(t)
		r := single(t, closed)
		test(t, &neighbors{running: r, mine: r.as(alice), others: r.as(bob)})
	})
	t.Run("callers on loopback", func(t *testing.T) {
		r := single(t, closed)
		test(t, &neighbors{running: r, mine: r.overTCP().WithClientToken("a"), others: r.overTCP().WithClientToken("b"), token: "a"})
	})
}

// refused wants a request to be refused because the claim is another's.
func (s *neighbors) refused(what string, err error) {
	s.t.Helper()
	want := problem.Forbidden
	if s.token != "" {
		want = problem.Unauthorized
	}
	if problem.CodeOf(err) != want || !strings.Contains(err.Error(), "role operate") {
		s.t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestAClaimIsOfWhoMadeIt(t *testing.T) {
	eachOther(t, func(t *testing.T, s *neighbors) {
		ctx := t.Context()
		s.pool("db", 2)
		s.readDocument()
		req := api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}
		p := spawn(t, sleeper)
		if s.token == "" {
			p = spawnAs(t, alice)
			req.PID = p.pid()
		}
		mine, err := s.mine.Claim(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		theirs := spawnAs(t, bob)
		for what, ask := range map[string]func() error{
			"a renewal":                func() error { _, err := s.others.Renew(ctx, "job", api.RenewRequest{}); return err },
			"a renewal with its fence": func() error { _, err := s.others.Renew(ctx, "job", api.RenewRequest{Fence: mine.Fence}); return err },
			"a short ttl": func() error {
				_, err := s.others.Renew(ctx, "job", api.RenewRequest{TTL: api.DurationOf(time.Second)})
				return err
			},
			"a release":                func() error { return s.others.Release(ctx, "job") },
			"a release with its fence": func() error { return s.others.ReleaseFence(ctx, "job", mine.Fence) },
			"a revocation":             func() error { _, err := s.others.Revoke(ctx, "job", false); return err },
			"a revocation by force":    func() error { _, err := s.others.Revoke(ctx, "job", true); return err },
			"a revocation of its host": func() error {
				_, err := s.others.RevokeOn(ctx, mine.Host, mine.Instance, "job", true)
				return err
			},
		} {
			s.refused(what, ask())
		}
		if s.token == "" {
			_, err := s.others.Renew(ctx, "job", api.RenewRequest{PID: theirs.pid()})
			s.refused("a binding to another process", err)
		}
		for what, change := range map[string]func(*api.ClaimRequest){
			"the same request": func(*api.ClaimRequest) {},
			"another request":  func(r *api.ClaimRequest) { r.Pools = api.Slots{"db": 2} },
		} {
			again := req
			again.PID = 0
			change(&again)
			_, err := s.others.Claim(ctx, again)
			if wantCode(t, err, problem.IDInUse); t.Failed() {
				t.Log(what)
			}
		}
		// What anyone may read, who may view.
		if c, err := s.others.Get(ctx, "job"); err != nil || c.ClaimedBy != mine.ClaimedBy || c.ClaimedBy == "" {
			t.Errorf("%+v, %v", c, err)
		}
		again, err := s.mine.Claim(ctx, req)
		if err != nil || again.Fence != mine.Fence || !p.lives() {
			t.Errorf("its owner finds %+v, %v; its process lives: %t", again, err, p.lives())
		}
		if s.claimed("db") != 1 {
			t.Errorf("%d slots are held", s.claimed("db"))
		}
		// All of that its owner may.
		if _, err := s.mine.Renew(ctx, "job", api.RenewRequest{TTL: api.DurationOf(time.Hour)}); err != nil {
			t.Error(err)
		}
		if _, err := s.mine.Why(ctx, "job"); err != nil {
			t.Error(err)
		}
		if err := s.mine.Release(ctx, "job"); err != nil || !p.lives() {
			t.Errorf("%v; its process lives: %t", err, p.lives())
		}
		if _, err := s.mine.Claim(ctx, req); err != nil {
			t.Error(err)
		}
		if _, err := s.mine.Revoke(ctx, "job", false); err != nil {
			t.Errorf("its owner revokes it: %v", err)
		}
		if s.token == "" {
			p.endedBy()
		} else if err := s.mine.Release(ctx, "job"); err != nil {
			t.Error(err)
		}
		s.free("db")
		if !theirs.lives() {
			t.Error("the process of the other was stopped")
		}
	})
}

func TestAClaimThatWaitsIsOfWhoMadeIt(t *testing.T) {
	eachOther(t, func(t *testing.T, s *neighbors) {
		ctx := t.Context()
		s.pool("db", 1)
		s.claim(api.ClaimRequest{ID: "holder", Pools: api.Slots{"db": 1}})
		req := api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}
		granted := make(chan error, 1)
		go func() {
			_, err := s.mine.Claim(ctx, req)
			granted <- err
		}()
		eventually(t, "it waits", func() bool {
			c, err := s.mine.Get(ctx, "job")
			return err == nil && c.Status == api.ClaimWaiting
		})
		s.refused("a release", s.others.Release(ctx, "job"))
		_, err := s.others.Claim(ctx, req)
		wantCode(t, err, problem.IDInUse)
		if err := s.client.Release(ctx, "holder"); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil {
			t.Errorf("its owner gets %v", err)
		}
		if err := s.mine.Release(ctx, "job"); err != nil {
			t.Error(err)
		}
		s.free("db")
	})
}

// TestAnAsynchronousClaimIsOfWhoMadeIt sends the requests that the client has no method for.
func TestAnAsynchronousClaimIsOfWhoMadeIt(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.Policy = access.Policy{} })
	r.pool("db", 1)
	r.claim(api.ClaimRequest{ID: "holder", Pools: api.Slots{"db": 1}})
	ask := func(method, path, token, body string) answer {
		q, err := http.NewRequestWithContext(t.Context(), method, r.base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Prefer", "respond-async")
		q.Header.Set(api.ClientTokenHeader, token)
		return r.roundTrip(&http.Transport{DisableKeepAlives: true}, q)
	}
	body := `{"id":"job","pools":{"db":1},"client_token":"%s"}`
	if got := ask("POST", "/v1/claims", "", fmt.Sprintf(body, "a")); got.status != http.StatusAccepted {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := ask("POST", "/v1/claims", "", fmt.Sprintf(body, "b")); got.status != http.StatusConflict {
		t.Errorf("another finds it: %d %s", got.status, got.body)
	}
	for _, token := range []string{"", "b"} {
		if got := ask("DELETE", "/v1/claims/job", token, ""); got.status != http.StatusUnauthorized {
			t.Errorf("%q releases it: %d %s", token, got.status, got.body)
		}
	}
	if err := r.client.Release(t.Context(), "holder"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is granted", func() bool { return r.claimed("db") == 1 })
	if got := ask("POST", "/v1/claims/job/renew", "b", ""); got.status != http.StatusUnauthorized {
		t.Errorf("another renews it: %d %s", got.status, got.body)
	}
	if got := ask("DELETE", "/v1/claims/job", "a", ""); got.status != http.StatusNoContent {
		t.Errorf("its owner releases it: %d %s", got.status, got.body)
	}
	r.free("db")
}

func TestAClaimOfNobodyNeedsAClientToken(t *testing.T) {
	r := single(t, func(c *sidecar.Config) { c.Policy = access.Policy{} })
	r.pool("db", 1)
	_, err := r.overTCP().Claim(t.Context(), api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}})
	if wantField(t, err, "client_token"); !strings.Contains(err.Error(), api.ClientTokenHeader) {
		t.Error(err)
	}
	r = single(t) // which is open
	r.pool("db", 1)
	c := r.overTCP()
	if _, err := c.Claim(t.Context(), api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}); err != nil {
		t.Error(err)
	}
	if err := c.Release(t.Context(), "job"); err != nil {
		t.Error(err)
	}
}

// TestOwnersNeedNoRoleToRead has callers that may claim, and not view.
func TestOwnersNeedNoRoleToRead(t *testing.T) {
	rule, err := access.ParsePolicy([]string{"anonymous claim"})
	if err != nil {
		t.Fatal(err)
	}
	rule.Local = true
	r := single(t, func(c *sidecar.Config) { c.Policy = rule })
	r.pool("db", 1)
	mine, others := r.overTCP().WithClientToken("a"), r.overTCP().WithClientToken("b")
	if _, err := mine.Claim(t.Context(), api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}}); err != nil {
		t.Fatal(err)
	}
	follow := func(c *client.Client) error {
		return c.Events(t.Context(), "job", "", func(api.Event) error { return io.EOF })
	}
	reads := map[string]func(c *client.Client) error{
		"get":    func(c *client.Client) error { _, err := c.Get(t.Context(), "job"); return err },
		"why":    func(c *client.Client) error { _, err := c.Why(t.Context(), "job"); return err },
		"events": follow,
	}
	for what, read := range reads {
		if err := read(mine); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		wantCode(t, read(others), problem.Unauthorized)
	}
	_, err = mine.Claims(t.Context(), client.ClaimFilter{})
	wantCode(t, err, problem.Unauthorized)
	wantCode(t, mine.Events(t.Context(), "", "", func(api.Event) error { return io.EOF }), problem.Unauthorized)
	if _, err := r.client.Revoke(t.Context(), "job", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return problem.CodeOf(reads["get"](mine)) == problem.ClaimLost })
	wantCode(t, reads["get"](others), problem.Unauthorized) // also why it has ended
}

// runs asks the kernel whether the process runs. It knows of the end before [child.lives] does.
func (c *child) runs() bool {
	var end unix.Siginfo
	err := unix.Waitid(unix.P_PID, c.pid(), &end, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && end.Signo == 0
}

// An operator's release is no promise of the holder.
func TestAnOperatorsReleaseStopsTheProcessFirst(t *testing.T) {
	needsUsers(t)
	policy, err := access.ParsePolicy([]string{"user:" + nameOf(bob) + " operate:d*"})
	if err != nil {
		t.Fatal(err)
	}
	r := single(t, func(c *sidecar.Config) { c.Policy = policy })
	r.pool("db", 1)
	r.pool("gpu", 1)
	p := spawnAs(t, alice)
	if _, err := r.as(alice).Claim(t.Context(), api.ClaimRequest{ID: "both", Pools: api.Slots{"db": 1, "gpu": 1}, PID: p.pid()}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.as(bob).Release(t.Context(), "both"), problem.Forbidden) // of one of its pools only
	if err := r.as(alice).Release(t.Context(), "both"); err != nil || !p.lives() {
		t.Errorf("%v; its process lives: %t", err, p.lives())
	}
	if _, err := r.as(alice).Claim(t.Context(), api.ClaimRequest{ID: "job", Pools: api.Slots{"db": 1}, PID: p.pid()}); err != nil {
		t.Fatal(err)
	}
	own := spawnAs(t, bob)
	_, err = r.as(bob).Renew(t.Context(), "job", api.RenewRequest{PID: own.pid()})
	wantCode(t, err, problem.Forbidden)
	if err := r.as(bob).Release(t.Context(), "job"); err != nil {
		t.Error(err)
	}
	if p.runs() {
		t.Error("its slots are free, and its process lives")
	}
	r.free("db")
	_, err = r.as(alice).Get(t.Context(), "job")
	if wantCode(t, err, problem.ClaimRevoked); !strings.Contains(err.Error(), "released by user:") {
		t.Error(err)
	}
}
