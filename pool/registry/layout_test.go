package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
)

func (c *cluster) layout() registry.Layout {
	return registry.Layout{Backend: c.client, Keys: c.keys.Keys}
}

// put puts a key without a lease.
func (c *cluster) put(key, value string) {
	c.t.Helper()
	c.txn(store.Put(key, []byte(value), 0))
}

var anOldSpec = oldSpec(oldSpecs[0], "")

func TestTheFirstPoolComesWithTheVersion(t *testing.T) {
	for name, create := range map[string]func(c *cluster) error{
		"set": func(c *cluster) error {
			limit := 1
			_, err := c.reg.Set(t.Context(), "db", pool.Change{Limit: &limit})
			return err
		},
		"declared": func(c *cluster) error {
			_, err := store.Change(t.Context(), "the run was not submitted", func(ctx context.Context) (int64, error) {
				same, create, err := c.reg.Declare(ctx, "db", 1)
				if err != nil || create == nil {
					return 0, err
				}
				return store.Commit(ctx, c.client, []*pb.Compare{same}, create)
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.put(c.keys.Run("a"), "{}") // runs are the same in both layouts
			c.put("/other/pools/db/spec", anOldSpec)
			if err := c.layout().Check(t.Context()); err != nil {
				t.Error(err)
			}
			if n := c.keysUnder(c.keys.Layout()); n != 0 {
				t.Error("a check has put the version")
			}
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if err := create(c); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			kv := c.get(c.keys.Layout())
			if string(kv.Value) != `{"v":2}` || kv.Version != 1 {
				t.Errorf("%s was put %d times", kv.Value, kv.Version)
			}
			if err := c.layout().Check(t.Context()); err != nil {
				t.Error(err)
			}
			before := kv.ModRevision
			if err := create(c); err != nil || c.get(c.keys.Layout()).ModRevision != before {
				t.Error("it was put again:", err)
			}
		})
	}
}

func TestDataOfAnotherLayoutIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		key, value string
		code       problem.Code
		want       string
	}{
		"old": {"pools/db/spec", anOldSpec, problem.Precondition,
			"the data under /team/ is of the layout before 2: stop every berth process, wait until no claim is held, then run 'berth upgrade'"},
		"a slot of a deleted pool": {"pools/db/slots/00/00000", `{}`, problem.Precondition, "of the layout before 2"},
		"newer": {"layout", `{"v":3,"more":true}`, problem.CorruptValue,
			"the data under /team/ is of the layout 3, and this berth reads layouts up to 2: it is too old, run a newer one"},
		"more than a version": {"layout", `{"v":2,"more":true}`, problem.CorruptValue, `"/team/layout"`},
		"a version before":    {"layout", `{"v":1}`, problem.CorruptValue, `"/team/layout"`},
		"no version":          {"layout", `{}`, problem.CorruptValue, `"/team/layout"`},
		"not JSON":            {"layout", `2`, problem.CorruptValue, `"/team/layout"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.keys.Keys = store.NewKeys("/team")
			c.reg.Keys = c.keys.Keys
			c.put(c.keys.Prefix()+tc.key, tc.value)
			err := c.layout().Check(t.Context())
			if problem.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v", err)
			}
			if errors.Is(err, registry.ErrOldLayout) != (tc.code == problem.Precondition) {
				t.Errorf("whether it can be upgraded is wrong: %v", err)
			}
			if n := c.keysUnder("/"); n != 1 {
				t.Errorf("%d keys are there", n)
			}
			if tc.code != problem.Precondition {
				_, got := c.layout().Upgrade(t.Context())
				if got == nil || got.Error() != err.Error() {
					t.Errorf("the upgrade: %v", got)
				}
			}
			limit := 1
			if _, got := c.reg.Set(t.Context(), "new", pool.Change{Limit: &limit}); got == nil || got.Error() != err.Error() {
				t.Errorf("a pool is created: %v", got)
			}
		})
	}
}

// seam calls functions before and after each transaction of a backend. If before returns an error, it is the answer.
type seam struct {
	store.Backend
	before func(*pb.TxnRequest) error
	after  func(*pb.TxnResponse)
}

func (s seam) Txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := s.before(req); err != nil {
		return nil, err
	}
	resp, err := s.Backend.Txn(ctx, req)
	if err == nil && s.after != nil {
		s.after(resp)
	}
	return resp, err
}

// Another process may be faster: with the version, or with a pool of the old layout.
func TestWhatIsPutWhileTheVersionIsCheckedCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		key, value string
		want       string // in the error
	}{
		"version and pool": {"layout", `{"v":2}`, ""}, "newer": {"layout", `{"v":3}`, "it is too old"}, "pool": {"pools/db/spec", anOldSpec, "of the layout before 2"},
	} {
		for at := range 2 { // the transaction that reads, and the one that puts
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				c := newCluster(t)
				n := 0
				c.reg.Backend = seam{Backend: c.client, before: func(*pb.TxnRequest) error {
					if n++; n == at+1 {
						c.put(c.keys.Prefix()+tc.key, tc.value)
						if tc.want == "" {
							c.put(c.keys.Spec("other"), `{"v":2}`)
						}
					}
					return nil
				}}
				limit := 1
				_, err := c.reg.Set(t.Context(), "new", pool.Change{Limit: &limit})
				if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestALostAnswerDoesNotFailTheCheck(t *testing.T) {
	c := newCluster(t)
	l := c.layout()
	l.Backend = &lossy{c.client, 1}
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
