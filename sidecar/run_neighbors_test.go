package sidecar_test

import (
	"context"
	"testing"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// claimsOf has a client make claims that name a run, one that holds slots of db and one that
// waits for those of full.
func (d *dock) claimsOf(c *client.Client, name, of string) (waits <-chan error) {
	d.t.Helper()
	held := api.ClaimRequest{ID: name, Pools: api.Slots{"db": 1}, RunID: of, TTL: api.DurationOf(time.Hour)}
	if _, err := c.Claim(d.t.Context(), held); err != nil {
		d.t.Fatal(err)
	}
	outcome := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	d.t.Cleanup(cancel)
	go func() {
		_, err := c.Claim(ctx, api.ClaimRequest{ID: name + "-waits", Pools: api.Slots{"full": 1}, RunID: of, TTL: api.DurationOf(time.Hour)})
		outcome <- err
	}()
	eventually(d.t, name+" waits", func() bool {
		got, err := c.Get(d.t.Context(), name+"-waits")
		return err == nil && got.Status == api.ClaimWaiting
	})
	return outcome
}

// claimsEnd waits until the claims of [dock.claimsOf] have ended with their run.
func (d *dock) claimsEnd(c *client.Client, name string, waits <-chan error) {
	d.t.Helper()
	if err := <-waits; problem.CodeOf(err) != problem.ClaimRevoked {
		d.t.Errorf("the claim of %s that waits: %v", name, err)
	}
	eventually(d.t, "the claim of "+name+" is revoked", func() bool {
		_, err := c.Renew(d.t.Context(), name, api.RenewRequest{})
		return problem.CodeOf(err) == problem.ClaimRevoked
	})
}

// Anyone can name any run in a claim. A run of another identity does not end such a claim, and
// shows nothing of it.
func TestTheEndOfARunLeavesTheClaimsOfOthersThatNameIt(t *testing.T) {
	t.Parallel()
	d := led(t, 20, bearers(map[string]string{"ann": "view submit execute claim", "bob": "view claim"}))
	ann, bob := d.bearer("ann"), d.bearer("bob")
	d.pool("full", 1)
	d.claim(api.ClaimRequest{ID: "fills", Pools: api.Slots{"full": 1}, TTL: api.DurationOf(time.Hour)})

	bobWaits := d.claimsOf(bob, "bob-named-it-before", "nightly")
	if _, err := ann.SubmitRun(t.Context(), api.RunRequest{ID: "nightly"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run is started", func() bool {
		_, err := ann.StartRun(t.Context(), "nightly", api.RunStart{TTL: api.DurationOf(time.Hour)})
		return err == nil
	})
	later := d.claimsOf(bob, "bob", "nightly")
	annWaits := d.claimsOf(ann, "ann", "nightly")
	if _, err := ann.CancelRun(t.Context(), "nightly", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	d.claimsEnd(ann, "ann", annWaits)

	// The claims of one run are revoked together: when those of a second one are, those of the
	// first are done.
	if _, err := ann.SubmitRun(t.Context(), api.RunRequest{ID: "second"}); err != nil {
		t.Fatal(err)
	}
	secondWaits := d.claimsOf(ann, "ann-second", "second")
	if _, err := ann.CancelRun(t.Context(), "second", api.RunCancel{}); err != nil {
		t.Fatal(err)
	}
	d.claimsEnd(ann, "ann-second", secondWaits)
	for _, id := range []string{"bob-named-it-before", "bob"} {
		if _, err := bob.Renew(t.Context(), id, api.RenewRequest{}); err != nil {
			t.Errorf("%s is not left alone: %v", id, err)
		}
	}
	for _, waits := range []<-chan error{bobWaits, later} {
		select {
		case err := <-waits:
			t.Errorf("a claim of bob that waits has ended: %v", err)
		default:
		}
	}

	events, err := d.store.Events(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, e := range events {
		if e.Type == run.StepSlotClaimed || e.Type == run.StepSlotWaiting {
			of[e.Metadata["claim"]]++
		}
	}
	if of["ann"] != 1 || of["ann-waits"] != 1 || len(of) != 2 {
		t.Errorf("the events of the run have the claims %v", of)
	}
}
