package ui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
)

func TestAClaimIsReleasedFromThePages(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	two := d.joins(instance.Options{Host: "two", Role: "exec"})
	held, err := two.Claim(t.Context(), instance.Slots{"db": 2}, instance.WithID("c"))
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() {
		<-held.Context().Done()
		released <- held.Release(t.Context())
	}()
	const at = "/actions/revoke?claim=c"
	d.eventually("the claim is seen", func() bool { return d.get(at).status == http.StatusOK })
	page := d.page(at)
	page.says("Revoke claim c?", "db=2", "two", "Host two ends the validity of the claim, and stops the holder", "Its 2 slots are free when the holder has stopped, after at most 15s")
	if got := page.fact("Fencing token"); got != fmt.Sprint(held.Fence()) {
		t.Errorf("its fence is %q", got)
	}
	page, path, message := d.follow(d.confirm(at))
	if path != "/pools" || message != "Claim c is revoked: its holder on host two has stopped." {
		t.Errorf("came to %s: %q", path, message)
	}
	if err := <-released; err != nil && problem.CodeOf(err) != problem.ClaimRevoked {
		t.Errorf("the holder: %v", err)
	}
	if got := text(page.must("pool-db")); !strings.Contains(got, "0/3") {
		t.Errorf("the pool: %q", got)
	}
	d.wantActions(fmt.Sprintf("anonymous: revoke-claim c () done: held with fencing token %d -> . Claim c is revoked: its holder on host two has stopped.", held.Fence()))
	d.refused(d.get(at), problem.ClaimNotFound, `"c"`)
	d.refused(d.post("/actions/revoke", url.Values{"claim": {"c"}, "fence": {"7"}}), problem.ClaimNotFound, `"c"`)
}

func TestAHolderThatDoesNotStopIsWaitedForByItsHost(t *testing.T) {
	t.Parallel()
	d := newRunSite(t)
	d.pool("db", 3)
	d.hold(api.ClaimRequest{ID: "c", Pools: api.Slots{"db": 2}})
	_, _, message := d.follow(d.confirm("/actions/revoke?claim=c"))
	if !strings.HasPrefix(message, "Claim c is being revoked. Its slots are free when the holder on host one has stopped") {
		t.Errorf("%q", message)
	}
	if _, err := d.client.Renew(t.Context(), "c", api.RenewRequest{}); problem.CodeOf(err) != problem.ClaimRevoked {
		t.Errorf("its host has not notified the holder: %v", err)
	}
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Claimed != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestSlotsAreFreedByForceOnlyBySayingSo(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	c := d.hold(api.ClaimRequest{ID: "c", Pools: api.Slots{"db": 2}})
	other := d.page("/actions/revoke?claim=c&back=/queue").must("other")
	at := attr(other, "href")
	page := d.page(at)
	page.says("Free the slots of claim c by force?", "The old holder may still run", fmt.Sprintf("Its fencing token is %d", c.Fence), "I know that the old holder may still run.")
	if !has(page.must("sure"), "required") {
		t.Error("one can go on without saying that one knows")
	}
	d.refused(d.confirm(at), problem.Invalid, "confirm that the old holder may still run")
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Claimed != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	_, path, message := d.follow(d.confirm(at, "sure", "yes"))
	if want := fmt.Sprintf("The slots of claim c are free. Its old holder on host one may still run; its fencing token is %d.", c.Fence); path != "/queue" || message != want {
		t.Errorf("came to %s: %q", path, message)
	}
	if p, err := d.client.Pool(t.Context(), "db"); err != nil || p.Claimed != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	d.wantActions(fmt.Sprintf("anonymous: revoke-claim c (by force) done: held with fencing token %d -> . %s", c.Fence, message))
}

func TestALaterClaimOfTheSameIDIsNotReleased(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 3)
	req := api.ClaimRequest{ID: "c", Pools: api.Slots{"db": 2}}
	first := d.hold(req)
	if err := d.client.Release(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	later := d.hold(req)
	form := url.Values{"claim": {"c"}, "fence": {fmt.Sprint(first.Fence)}}
	for range 2 {
		page, path, message := d.follow(d.post("/actions/revoke", form))
		if path != "/actions/revoke" || message != "Nothing was done: claim c was released, and claimed again" {
			t.Errorf("came to %s: %q", path, message)
		}
		if got := page.fact("Fencing token"); got != fmt.Sprint(later.Fence) {
			t.Errorf("it is asked for again with the fencing token %q", got)
		}
		form.Set("force", "yes")
		form.Set("sure", "yes")
	}
	if got, err := d.client.Get(t.Context(), "c"); err != nil || got.Fence != later.Fence {
		t.Errorf("the later claim: %+v, %v", got, err)
	}
}

func TestAClaimThatWaitsIsNotReleased(t *testing.T) {
	d := newRunSite(t)
	d.pool("db", 1)
	c := d.hold(api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 1}})
	d.wait(api.ClaimRequest{ID: "waits", Pools: api.Slots{"db": 1}})
	page := d.page("/actions/revoke?claim=waits")
	page.says("It holds no slots: it waits. To end the wait, stop the process on host one.")
	if page.id("confirm") != nil {
		t.Error("it can be released")
	}
	_, _, message := d.follow(d.post("/actions/revoke", url.Values{"claim": {"waits"}, "fence": {fmt.Sprint(c.Fence)}}))
	if message != "Nothing was done: claim waits holds no slots any more" {
		t.Errorf("%q", message)
	}
}
