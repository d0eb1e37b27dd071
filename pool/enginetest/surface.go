package enginetest

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Claims is how an instance gets slots and gives them back.
type Claims interface {
	// Claim claims slots and waits for them as long as the request says. If ctx ends first, nothing is kept but the
	// place in the wait queue, for 10 s. Its errors are problems.
	Claim(ctx context.Context, req *pool.Request) (Claim, error)
	// Release returns when the slots are free. A claim that has ended is no error.
	Release(ctx context.Context, c Claim) error
	// ReleaseWith releases a claim and writes x in the same revision, which it returns. Place, if not nil, is free
	// for another claim in that revision; asked, if not nil, is called once the release is queued. A condition that
	// does not hold is [store.ErrChanged]; [pool.ErrNotCombined] says that a claim can't be released this way.
	// After both, nothing has happened.
	ReleaseWith(ctx context.Context, c Claim, x store.Extra, place *pool.Place, asked func()) (revision int64, err error)
	// Withdraw takes a claim out of the wait queue: its request is answered with claim_canceled, or granted.
	Withdraw(id string)
	// TakeOver makes a claim of another instance one of this engine, with a larger fence. What does not hold is
	// precondition_failed.
	TakeOver(ctx context.Context, h pool.TakeOver) (Claim, error)
	// Prospects reports of each request whether it would be granted now, after those before it.
	Prospects(ctx context.Context, asked []*pool.Request) ([]bool, error)
	// Reconsider has the engine try waiting claims again: a place was given back.
	Reconsider()
	// Held returns the claims of this instance by id, and Lookup one of them, nil if there is none of that id.
	Held(ctx context.Context) ([]Claim, error)
	Lookup(ctx context.Context, id string) (Claim, error)
}

// Lists is what an instance shows. It shows what the instance itself has just done, and what others did up to a second
// ago.
type Lists interface {
	Pools(ctx context.Context) ([]pool.Status, error)
	// Pool returns one pool with its holders and waiters. An unknown one is pool_not_found.
	Pool(ctx context.Context, name string) (pool.Detail, error)
	// Claims returns the holders, oldest first, and the waiters, in the order of the queue.
	Claims(ctx context.Context) ([]pool.HolderStatus, []pool.WaiterStatus, error)
	// Why explains a claim of any host, by ID or HOST/INSTANCE/ID. An unknown one is claim_not_found.
	Why(ctx context.Context, id string) (pool.Why, error)
	Space(ctx context.Context) (Space, error)
	// HasPool reports whether there is a pool, as it was at most a second ago; true if nothing is known.
	HasPool(name string) bool
	// Changed has lists show a revision from now on.
	Changed(rev int64)
	// Age is how long ago the engine last knew that its view was current.
	Age(ctx context.Context) time.Duration
}

// Events are what an instance publishes. A channel is never closed; a slow reader loses events and learns of it.
type Events interface {
	// Subscribe returns the events of this instance's claims, and SubscribeRuns those of claims that carry a run.
	Subscribe(ctx context.Context) (<-chan pool.Event, error)
	SubscribeRuns(ctx context.Context) (<-chan pool.Event, error)
	// SubscribePools returns the changes of some pools on any host; without names, of all.
	SubscribePools(ctx context.Context, pools ...string) (<-chan pool.Event, error)
}

// Life is how an instance starts, reports what happens to its leases, and ends.
type Life interface {
	// Adopt names leases of an earlier process, whose claims are taken over. It is called before Run.
	Adopt(ids ...store.LeaseID)
	// Run works until ctx ends. Claims are not given back.
	Run(ctx context.Context) error
	// Ready waits until claims can be made, and writes of an earlier process can no longer happen.
	Ready(ctx context.Context) error
	// Adopted returns the claims that were taken over.
	Adopted(ctx context.Context) ([]Claim, error)
	// Trouble returns why nothing can be claimed now, nil if there is no reason.
	Trouble() error
	// Restoring reports whether etcd was restored and not everything was read since.
	Restoring(ctx context.Context) (bool, error)
	// Reconcile frees slots on this instance's leases that belong to none of its claims.
	Reconcile(ctx context.Context) error

	LeasesReady()
	LeaseLost(id store.LeaseID, cause error)
	LeaseRenewed(id store.LeaseID, again bool)

	// Stop refuses new claims and those that wait.
	Stop(ctx context.Context) error
	// End ends the validity of all claims. Their slots stay taken until their holders release them.
	End(cause error)
	// Abandon leaves all claims to a later process, once Run has returned.
	Abandon(cause error)
	// Unfinished is how many claims have slots or may have some.
	Unfinished(ctx context.Context) (int, error)
	// RemoveGuard deletes the guard of the instance, once Run has returned.
	RemoveGuard(ctx context.Context) error
}

// Engine makes the claims of one instance.
type Engine interface {
	Claims
	Lists
	Events
	Life
	prometheus.Collector
}

// Claim is a claim that was granted. It is held until its context is done.
type Claim interface {
	Grant() Grant
	Context() context.Context
	// Err is nil after a release and while it is held.
	Err() error
	// Freed reports whether the slots are known to be free again.
	Freed() bool
	// Supervise says whether its owner knows when the holder has stopped.
	Supervise(on bool)
	Supervised() bool
}

// Grant is what a claim was granted.
type Grant struct {
	ID        string
	Slots     map[string]int
	Fence     store.Fence
	Lease     store.LeaseID
	Holder    pool.Holder
	Priority  int
	ClaimedAt time.Time
	// Keys is how many keys are attached to the lease.
	Keys int
	// Extra are the responses to [store.Extra.Then].
	Extra []*pb.ResponseOp
}

// Registry changes the specs of pools, for operators.
type Registry interface {
	Set(ctx context.Context, name string, ch pool.Change) (pool.Put, error)
	Change(ctx context.Context, name string, ch pool.Change) (pool.Put, error)
	Delete(ctx context.Context, name string, condition store.Condition) (revision int64, err error)
	Check(ctx context.Context, slots map[string]int) error
	Declare(ctx context.Context, name string, limit int) (*pb.Compare, *pb.RequestOp, error)
	// Unused returns what deletes a pool of a revision together with something else, if nothing of it is in use.
	Unused(name string, revision int64) (ifs []*pb.Compare, then []*pb.RequestOp)
}

// Revoker revokes claims, for operators.
type Revoker interface {
	Revoke(ctx context.Context, claim string, force bool, may ...pool.May) (pool.Revocation, error)
	RequestRevocation(ctx context.Context, host, id string, fence store.Fence) error
	RequestWithdrawal(ctx context.Context, host, id string) error
	// Free and FreeBridge free a claim immediately if it is as it was read.
	Free(ctx context.Context, in Reader, id string, fence store.Fence) (pool.Revocation, error)
	FreeBridge(ctx context.Context, in Reader, id string, fence store.Fence) error
}

// Reader is the state of all pools at one revision.
type Reader interface {
	Revision() int64
	Pools() []pool.Status
	Pool(name string) (pool.Detail, error)
	Claims() ([]pool.HolderStatus, []pool.WaiterStatus)
	Why(id string) (pool.Why, error)
	Space() Space
	// Verify returns the invariants that do not hold.
	Verify() []pool.Violation
}

// Follower is the state of all pools for a planner that needs it all the time.
type Follower interface {
	Run(ctx context.Context) error
	// Changed signals that pools have changed.
	Changed() <-chan struct{}
	// Space also returns the claims that are held under some ids.
	Space(claims []string) (s Space, held map[string][]pool.HolderStatus, revision int64, err error)
}

// Space is the free capacity of pools after all their waiters.
type Space interface {
	Has(name string) bool
	Fits(slots map[string]int) bool
	Take(slots map[string]int)
	Reserve(slots map[string]int) bool
	ReserveAfter(slots map[string]int) time.Duration
	Notes(slots map[string]int, first bool) []string
	Why(slots map[string]int) string
}
