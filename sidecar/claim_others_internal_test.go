package sidecar

import (
	"context"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// shared is a server that two users share, of whom each may claim slots and nothing else.
type shared struct {
	*testing.T
	a          *apiServer
	s          *session
	alice, bob context.Context
}

func newShared(t *testing.T) *shared {
	t.Helper()
	a, s := testSession(t)
	limit := 1
	if _, err := s.client.SetPool(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
		t.Fatal(err)
	}
	policy, err := access.ParsePolicy([]string{"user:* claim"})
	if err != nil {
		t.Fatal(err)
	}
	as := func(name string) context.Context {
		id := access.Identity{Kind: access.User, Name: name}
		id.Grants = policy.Grants(id, nil)
		return accesstest.As(t.Context(), id)
	}
	return &shared{T: t, a: a, s: s, alice: as("alice"), bob: as("bob")}
}

func request(id string) api.ClaimRequest { return api.ClaimRequest{ID: id, Pools: api.Slots{"db": 1}} }

// claim makes a claim that is held.
func (s *shared) claim(ctx context.Context, id string) api.Claim {
	s.Helper()
	out, err := s.a.claim(ctx, s.s, &claimInput{}, request(id))
	if err != nil {
		s.Fatal(err)
	}
	return out.Body
}

// underWay begins a request for a claim, as far as it is before etcd has answered it.
func (s *shared) underWay(ctx context.Context, id string) (*wanted, context.Context, *wait) {
	s.Helper()
	w, err := s.s.want(ctx, request(id), false)
	if err != nil {
		s.Fatal(err)
	}
	waiting, one, err := s.a.waits.enter(s.Context(), id, w)
	if err != nil {
		s.Fatal(err)
	}
	return w, waiting, one
}

// reads sends the requests that read a claim, and returns their errors by name.
func (s *shared) reads(ctx context.Context, id string) map[string]error {
	_, get := s.a.getClaim(ctx, s.s, &idInput{ID: id})
	_, why := s.a.whyClaim(ctx, s.s, &idInput{ID: id})
	_, events := s.a.events(ctx, s.s, &eventsInput{Claim: id})
	return map[string]error{"get": get, "why": why, "events": events}
}

func (s *shared) release(ctx context.Context, id string, fence int64) error {
	_, err := s.a.releaseClaim(ctx, s.s, &releaseInput{ID: id, Fence: fence})
	return err
}

func (s *shared) want(err error, code problem.Code) {
	s.Helper()
	if problem.CodeOf(err) != code {
		s.Errorf("%v, want %s", err, code)
	}
}

// ownerMay wants the owner of a claim that is held to be able to read, renew and release it.
func (s *shared) ownerMay(id string, fence int64) {
	s.Helper()
	for what, err := range s.reads(s.alice, id) {
		if err != nil {
			s.Errorf("its owner can't read it: %s: %v", what, err)
		}
	}
	if _, err := s.a.renewClaim(s.alice, s.s, &claimBody{ID: id}, api.RenewRequest{}); err != nil {
		s.Errorf("its owner can't renew it: %v", err)
	}
	if err := s.release(s.alice, id, fence); err != nil {
		s.Errorf("its owner can't release it: %v", err)
	}
	if c, err := s.s.client.Lookup(s.Context(), id); err != nil || c != nil {
		s.Errorf("it is still held: %v, %v", c, err)
	}
}

func TestAnOwnerReleasesItsClaimWhileAnotherSendsRequestsWithItsID(t *testing.T) {
	s := newShared(t)
	for what, meanwhile := range map[string]func(id string) (after func()){
		"that wait": func(id string) func() {
			_, _, one := s.underWay(s.bob, id)
			return func() { s.a.waits.leave(one) }
		},
		"that wait without a connection": func(id string) func() {
			w, err := s.s.want(s.bob, request(id), true)
			if err != nil {
				s.Fatal(err)
			}
			end := make(chan struct{})
			_, check, _, _, err := s.a.waits.enterAsync(s.Context(), w, func(_ context.Context, one *wait) {
				<-end
				s.a.waits.leave(one)
			})
			if err != nil {
				s.Fatal(err)
			}
			return func() {
				s.a.waits.leave(check)
				close(end)
				s.a.waits.tasks.Wait()
			}
		},
		"that are refused": func(id string) func() {
			for _, async := range []bool{false, true} {
				_, err := s.a.claim(s.bob, s.s, &claimInput{async: async}, request(id))
				s.want(err, problem.IDInUse)
				s.a.waits.tasks.Wait()
			}
			return func() {}
		},
	} {
		for _, byFence := range []bool{false, true} {
			s.T = t
			t.Run(what, func(t *testing.T) {
				s.T = t
				held := s.claim(s.alice, "job")
				after := meanwhile("job")
				defer after()
				fence := int64(0)
				if byFence {
					fence = held.Fence
				}
				s.want(s.release(s.bob, "job", held.Fence), problem.Forbidden)
				s.ownerMay("job", fence)
			})
		}
	}
}

// The owner's own request is at the moment between its grant and its holder.
func TestAnOwnerReleasesItsClaimAtTheMomentOfTheGrantWhileAnotherSendsRequestsWithItsID(t *testing.T) {
	s := newShared(t)
	w, ctx, own := s.underWay(s.alice, "job")
	claim, err := s.a.take(ctx, s.s, w, own)
	if err != nil {
		t.Fatal(err)
	}
	seen(t, s.s, "job")
	_, _, other := s.underWay(s.bob, "job")
	defer s.a.waits.leave(other)
	s.want(s.release(s.bob, "job", int64(claim.Fence())), problem.Forbidden)
	done := make(chan error, 1)
	go func() { done <- s.release(s.alice, "job", 0) }()
	select {
	case <-ctx.Done(): // the release has ended the owner's request, and not the other's
	case err := <-done:
		t.Fatalf("the owner's request is not ended: %v", err)
	}
	if err := s.a.waits.ended(other); err != nil {
		t.Errorf("the other's request was ended: %v", err)
	}
	s.s.holders.Add(claim, w.bind, nil)
	s.a.waits.leave(own)
	if err := <-done; err != nil {
		t.Errorf("its owner can't release it: %v", err)
	}
	if c, err := s.s.client.Lookup(t.Context(), "job"); err != nil || c != nil {
		t.Errorf("it is still held: %v, %v", c, err)
	}
}

// A request that is canceled at the moment of its grant leaves slots of which no client is the
// holder, and which are given back.
func TestAnOwnerReleasesAClaimWhoseRequestWasCanceledAtTheMomentOfTheGrant(t *testing.T) {
	s := newShared(t)
	for what, fenced := range map[string]bool{"by its id": false, "by its fence": true} {
		claim, err := s.s.client.Claim(t.Context(), instance.Slots{"db": 1}, instance.WithID("job"), instance.WithClaimedBy("user:alice"))
		if err != nil {
			t.Fatal(err)
		}
		seen(t, s.s, "job")
		fence := int64(0)
		if fenced {
			fence = int64(claim.Fence())
		}
		s.want(s.release(s.bob, "job", fence), problem.Forbidden)
		if err := s.release(s.alice, "job", fence); err != nil {
			t.Errorf("%s: its owner can't release it: %v", what, err)
		}
		if c, err := s.s.client.Lookup(t.Context(), "job"); err != nil || c != nil {
			t.Errorf("%s: it is still held: %v, %v", what, c, err)
		}
	}
}

// endedClaim makes a claim of alice that ends.
func (s *shared) endedClaim(id string) int64 {
	s.Helper()
	held := s.claim(s.alice, id)
	operator := s.s.operator(accesstest.As(s.Context(), accesstest.Admin))
	if _, err := operator.RevokeClaim(s.Context(), id, true); err != nil {
		s.Fatal(err)
	}
	for s.s.holders.Fenced(id, 0) != nil {
		select {
		case <-time.After(releaseCheck):
		case <-s.Context().Done():
			s.Fatal("never ended")
		}
	}
	return held.Fence
}

func TestAnOwnerReadsWhyItsClaimEndedAlthoughAnotherHasItsID(t *testing.T) {
	for what, meanwhile := range map[string]func(s *shared){
		"that is held": func(s *shared) { s.claim(s.bob, "job") },
		"that waits": func(s *shared) {
			_, _, one := s.underWay(s.bob, "job")
			s.Cleanup(func() { s.a.waits.leave(one) })
		},
		"that was refused": func(s *shared) {
			s.claim(s.bob, "holder")
			wait := api.Duration(100 * time.Millisecond)
			r := request("job")
			r.Wait = &wait
			if _, err := s.a.claim(s.bob, s.s, &claimInput{async: true}, r); err != nil {
				s.Fatal(err)
			}
			s.a.waits.tasks.Wait()
			s.want(s.reads(s.bob, "job")["get"], problem.ClaimTimeout)
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newShared(t)
			fence := s.endedClaim("job")
			meanwhile(s)
			_, err := s.a.getClaim(s.alice, s.s, &idInput{ID: "job"})
			s.want(err, problem.ClaimLost)
			for _, f := range []int64{0, fence} {
				_, err = s.a.renewClaim(s.alice, s.s, &claimBody{ID: "job"}, api.RenewRequest{Fence: f})
				s.want(err, problem.ClaimLost)
				if err := s.release(s.alice, "job", f); err != nil {
					t.Errorf("the release of what has ended: %v", err)
				}
			}
			if _, err := s.a.events(s.alice, s.s, &eventsInput{Claim: "job"}); err != nil {
				t.Errorf("its events: %v", err)
			}
			if what == "that is held" {
				if c, err := s.s.client.Lookup(t.Context(), "job"); err != nil || c == nil {
					t.Errorf("the other's claim was released: %v", err)
				}
			}
		})
	}
}

func TestTheStreamOfAnOwnerShowsThatItsWaitHasEndedAlthoughAnotherHasItsID(t *testing.T) {
	s := newShared(t)
	events, _ := s.s.hub.Subscribe(server.Selection{Topic: "job", Owner: callerOf(s.alice, access.View, "").Owner().Key()}, "")
	defer s.s.hub.Unsubscribe(events)
	s.claim(s.bob, "holder")
	_, _, others := s.underWay(s.bob, "job")
	defer s.a.waits.leave(others)
	for wait := 100 * time.Millisecond; ; wait *= 2 { // until it is answered before its wait has ended
		r := request("job")
		r.Wait = api.DurationOf(wait)
		_, err := s.a.claim(s.alice, s.s, &claimInput{async: true}, r)
		if problem.CodeOf(err) == problem.ClaimTimeout {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	s.a.waits.tasks.Wait()
	queue, _, _, _ := events.Take()
	if len(queue) == 0 || queue[len(queue)-1].Event != api.EventClaimEnded {
		t.Errorf("its stream shows %v, want %s as the last", queue, api.EventClaimEnded)
	}
}

func TestAnOwnerReadsItsClaimWhileOneOfAnotherHostWithItsIDWaitsBeforeIt(t *testing.T) {
	s := newShared(t)
	s.claim(asAdmin(t), "holder")
	o := s.a.cfg.Options
	o.Host = "two"
	two, err := instance.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 2)
	go func() {
		_, err := two.Claim(ctx, instance.Slots{"db": 1}, instance.WithID("job"), instance.WithClaimedBy("user:bob"), instance.WithPriority(900))
		answered <- err
	}()
	waits := func(n int) {
		t.Helper()
		for {
			if _, all, err := s.s.client.Claims(t.Context()); err != nil {
				t.Fatal(err)
			} else if len(all) == n {
				return
			}
			select {
			case <-time.After(releaseCheck):
			case <-t.Context().Done():
				t.Fatal("never seen")
			}
		}
	}
	waits(1)
	go func() {
		_, err := s.a.claim(s.alice, s.s, &claimInput{}, request("job"))
		answered <- err
	}()
	waits(2)
	for what, err := range s.reads(s.alice, "job") {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	why, err := s.a.whyClaim(s.alice, s.s, &idInput{ID: "job"})
	if err != nil || why.Body.Claim.ClaimedBy != "user:alice" {
		t.Errorf("%+v, %v", why, err)
	}
	if err := s.release(s.alice, "job", 0); err != nil {
		t.Error(err)
	}
	s.want(<-answered, problem.ClaimCanceled)
	waits(1)
	cancel()
	<-answered
	if err := two.Leave(); err != nil {
		t.Error(err)
	}
}

// A caller that is refused for others' claims may still have none of its own.
func TestWhoHasNoClaimIsRefusedThoseOfOthers(t *testing.T) {
	s := newShared(t)
	s.claim(s.alice, "job")
	for what, err := range s.reads(s.bob, "job") {
		if problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.want(s.release(s.bob, "job", 0), problem.Forbidden)
	_, err := s.a.renewClaim(s.bob, s.s, &claimBody{ID: "job"}, api.RenewRequest{})
	s.want(err, problem.Forbidden)
	_, _, one := s.underWay(s.alice, "next")
	defer s.a.waits.leave(one)
	s.want(s.release(s.bob, "next", 0), problem.Forbidden)
	if s.a.waits.ended(one) != nil {
		t.Error("the wait of another was ended")
	}
}
