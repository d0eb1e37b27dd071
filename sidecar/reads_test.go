package sidecar_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar/api"
)

// One identity reads a large run 64 times in parallel, over TCP, while another holds a claim with a
// lease of 10 s, through the socket.
func TestReadsOfALargeRunLoseNoClaimOfAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("it stores and reads a run of 20,000 step instances")
	}
	t.Parallel()
	d := newDock(t)
	limit, lease := 1, api.Duration(10*time.Second)
	if _, err := d.client.SetPool(t.Context(), "db", api.PoolChange{Limit: &limit, LeaseDuration: &lease}); err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	d.submit(api.RunRequest{ID: "big", Steps: api.RunSteps{fan("x", n, func(s *step.Spec) { s.Input = json.RawMessage(`"` + strings.Repeat("x", 200) + `"`) })}})
	var ops []*pb.RequestOp
	for i := range n {
		r := step.Record{Status: step.Failed, Attempt: 1, Error: fmt.Sprintf("item %d has failed, and this says at some length why it has", i), EndedAt: time.Now()}
		if ops = append(ops, store.Put(d.store.Keys.Step(store.StepID{Run: "big", Step: "x", Index: i}), r.Encode(), 0)); len(ops) == 100 {
			if _, err := store.Commit(t.Context(), d.store.Backend, nil, ops...); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
	ttl := api.Duration(0)
	held, err := d.client.Claim(t.Context(), api.ClaimRequest{ID: "held", Pools: api.Slots{"db": 1}, TTL: &ttl})
	if err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	begun := time.Now()
	for i := range 64 {
		reads.Go(func() {
			for time.Since(begun) < time.Duration(lease) {
				resp, err := http.Get(d.base + []string{"/v1/runs/big/steps", "/v1/runs/big/steps/x?limit=10000"}[i%2])
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("a read was answered with %d", resp.StatusCode)
				}
			}
		})
	}
	reads.Wait()
	c, err := d.client.Get(t.Context(), "held")
	if err != nil || c.Status != api.ClaimHeld || c.Fence != held.Fence || c.ValidFor == nil || *c.ValidFor == 0 {
		t.Errorf("the claim of another identity was lost: %+v, %v", c, err)
	}
}
