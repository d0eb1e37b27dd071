package berth_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/berthhq/berth"
	"github.com/berthhq/berth/internal/store/embed"
)

// exampleEtcd starts an etcd for an example. Yours runs already: put its
// addresses into [berth.Options].
func exampleEtcd() (endpoints []string, stop func()) {
	dir, err := os.MkdirTemp("", "berth-example")
	if err != nil {
		log.Fatal(err)
	}
	srv, err := embed.Start(context.Background(), embed.Config{
		DataDir: filepath.Join(dir, "etcd"), ClientListen: "127.0.0.1:0",
		Tick: 10 * time.Millisecond, Election: 100 * time.Millisecond, UnsafeNoFsync: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	return []string{srv.Endpoint()}, func() {
		if err := errors.Join(srv.Close(), os.RemoveAll(dir)); err != nil {
			log.Fatal(err)
		}
	}
}

// examplePool makes a pool, as `berth pools set` does.
func examplePool(ctx context.Context, c *berth.Client, name string, limit int) {
	if err := c.SetPool(ctx, name, limit); err != nil {
		log.Fatal(err)
	}
}

func Example() {
	ctx := context.Background()
	endpoints, stop := exampleEtcd()
	defer stop()

	c, err := berth.Open(ctx, berth.Options{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	examplePool(ctx, c, "db", 3)

	claim, err := c.Claim(ctx, berth.Slots{"db": 2})
	if err != nil {
		log.Fatal(err)
	}
	// Work under claim.Context(): it ends when the claim is released, lost or revoked.
	fmt.Println("holding", claim.Slots(), "with a fence:", claim.Fence() > 0, "ended:", claim.Context().Err() != nil)
	if err := claim.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ended:", claim.Context().Err() != nil, "because of:", claim.Err())
	// Output:
	// holding map[db:2] with a fence: true ended: false
	// ended: true because of: <nil>
}

func Example_severalPools() {
	ctx := context.Background()
	endpoints, stop := exampleEtcd()
	defer stop()
	c, err := berth.Open(ctx, berth.Options{Endpoints: endpoints, Host: "build-7"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	examplePool(ctx, c, "db", 3)
	examplePool(ctx, c, "licenses", 1)

	// Slots of several pools are taken all or none.
	nightly, err := c.Claim(ctx, berth.Slots{"db": 2, "licenses": 1}, berth.WithRun("nightly", "load"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Claim(ctx, berth.Slots{"db": 1, "licenses": 1}, berth.WithWait(0))
	fmt.Println(berth.ErrorCode(err), "-", err)

	pools, err := c.Pools(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range pools {
		fmt.Printf("%s: %d of %d\n", p.Name, p.Claimed, p.Limit)
	}
	if err := nightly.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// no_capacity - pool 'licenses' full (1/1 slots)
	// db: 2 of 3
	// licenses: 1 of 1
}

func ExampleClient_Claim_waiting() {
	ctx := context.Background()
	endpoints, stop := exampleEtcd()
	defer stop()
	c, err := berth.Open(ctx, berth.Options{Endpoints: endpoints, Host: "build-7"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	examplePool(ctx, c, "db", 1)

	first, err := c.Claim(ctx, berth.Slots{"db": 1}, berth.WithID("import-41"), berth.WithRun("import", "41"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Claim(ctx, berth.Slots{"db": 1}, berth.WithID("import-42"), berth.WithWait(20*time.Millisecond))
	var p *berth.Error
	if errors.As(err, &p) {
		// The reason is data as well: who holds the slots, and the position in the queue.
		holder := p.Reason.Pools[0].Holders[0]
		fmt.Println(p.Code, "-", p.Reason.Text, "- held by", holder.Claim, "of", holder.Host)
	}

	// The next one waits until the slot is given back.
	if err := first.Release(ctx); err != nil {
		log.Fatal(err)
	}
	second, err := c.Claim(ctx, berth.Slots{"db": 1}, berth.WithID("import-42"))
	if err != nil {
		log.Fatal(err)
	}
	// What a claim protects can refuse an older holder by its fence.
	fmt.Println("the fence has grown:", second.Fence() > first.Fence())
	if err := second.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// claim_timeout - pool 'db' full (1/1 slots) - held by import-41 of build-7
	// the fence has grown: true
}

func ExampleClient_SetPool() {
	ctx := context.Background()
	endpoints, stop := exampleEtcd()
	defer stop()
	c, err := berth.Open(ctx, berth.Options{Endpoints: endpoints})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	if err := c.SetPool(ctx, "db", 5, berth.WithLeaseDuration(time.Minute)); err != nil {
		log.Fatal(err)
	}
	if err := c.PausePool(ctx, "db"); err != nil {
		log.Fatal(err)
	}
	db, err := c.Pool(ctx, "db")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(db.Name, "limit", db.Limit, "leases of", db.LeaseDuration, "paused:", db.Paused, "holders:", len(db.Holders))
	// Output:
	// db limit 5 leases of 1m0s paused: true holders: 0
}
