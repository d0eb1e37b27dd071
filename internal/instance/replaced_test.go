package instance_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/embed"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/internal/testlog"
)

// becomes waits until a client is ready, or is not.
func becomes(t *testing.T, c *instance.Client, ready bool) (why error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if why = c.Unready(t.Context()); (why == nil) == ready {
			return why
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("it does not become ready (%t): %v", ready, why)
		}
	}
}

// The other cluster is full at first, so that the host cannot be announced there.
func TestAClientWhoseClusterIsReplacedGoesOnInTheOther(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "other")
	other := embedtest.New(t, func(cfg *embed.Config) { cfg.DataDir, cfg.Token = dir, "other" })
	founder := open(t, other)
	setPool(t, founder, "db", 1, time.Minute)
	if err := founder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	embedtest.SetFull(t, other, true)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}

	first := embedtest.New(t)
	log := testlog.New(t)
	c, err := instance.Open(t.Context(), instance.Options{
		Endpoints: []string{first.Endpoint()}, Host: "one", Logger: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Warn}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Leave() })
	setPool(t, c, "db", 1, time.Minute)
	claim := claimed(t, c, instance.Slots{"db": 1})
	waits := make(chan error, 1)
	go func() {
		claim, err := c.Claim(context.WithoutCancel(t.Context()), instance.Slots{"db": 1}, instance.WithID("waits"), instance.WithWait(10*time.Minute))
		if err == nil {
			err = claim.Release(context.Background())
		}
		waits <- err
	}()
	if err := c.Unready(t.Context()); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
	address := strings.TrimPrefix(first.Endpoint(), "http://")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	other = embedtest.New(t, func(cfg *embed.Config) { cfg.DataDir, cfg.ClientListen = dir, address })

	<-claim.Context().Done()
	if err := claim.Err(); problem.CodeOf(err) != problem.ClaimLost || !strings.Contains(err.Error(), "another etcd cluster answers") {
		t.Errorf("the claim has ended with %v", err)
	}
	if left, _ := claim.ValidFor(); left != 0 {
		t.Errorf("it is valid for %s", left)
	}
	if err := claim.Release(t.Context()); err != nil { // its holder has stopped
		t.Error(err)
	}
	why := becomes(t, c, false)
	if problem.CodeOf(why) != problem.EtcdUnavailable || !strings.Contains(why.Error(), "has replaced") {
		t.Errorf("it is not ready: %v", why)
	}
	embedtest.SetFull(t, other, false)
	becomes(t, c, true)
	if err := <-waits; err != nil {
		t.Errorf("the claim that waited: %v", err)
	}
	if n := strings.Count(log.String(), "[ERROR]"); n != 1 {
		t.Errorf("%d error lines, want 1:\n%s", n, log.String())
	}
}

// A sidecar tries to open its instance until that succeeds, and ends at any other problem.
func TestAClusterThatWasReplacedBetweenTwoTriesToOpenIsUnavailableOnce(t *testing.T) {
	t.Parallel()
	first := embedtest.New(t)
	shared := store.NewCluster(nil, nil)
	on := func(o *instance.Options) { o.Cluster = shared }
	c := open(t, first, on)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(first.Endpoint(), "http://")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	other := embedtest.New(t, func(cfg *embed.Config) { cfg.Token, cfg.ClientListen = "other", address })
	o := instance.Options{Endpoints: []string{other.Endpoint()}, Host: "one", Cluster: shared}
	c, err := instance.Open(t.Context(), o)
	if err == nil {
		t.Error("it opens with what it knew of the cluster before", c.Leave())
	}
	wantCode(t, err, "etcd_unavailable", "has replaced")
	if c, err = instance.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
