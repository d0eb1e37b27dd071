package pool_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
)

// state is an etcd that is written by hand.
type state struct {
	t     *testing.T
	b     *storetest.Backend
	keys  store.Keys
	lease store.LeaseID
}

func newState(t *testing.T) *state {
	t.Helper()
	s := &state{t: t, b: storetest.NewManualBackend(storetest.New(storetest.Options{})), keys: store.NewKeys("/b/")}
	t.Cleanup(s.b.Close)
	s.lease = s.grant()
	return s
}

func (s *state) grant() store.LeaseID {
	s.t.Helper()
	id, _, err := s.b.Grant(context.Background(), time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// put writes pairs of keys and values in one revision, on a lease.
func (s *state) put(lease store.LeaseID, pairs ...string) {
	s.t.Helper()
	t := &pb.TxnRequest{}
	for i := 0; i < len(pairs); i += 2 {
		t.Success = append(t.Success, store.Put(pairs[i], []byte(pairs[i+1]), lease))
	}
	if _, err := s.b.Txn(context.Background(), t); err != nil {
		s.t.Fatal(err)
	}
}

// spec writes the spec of a pool; with since 0 its limit holds from now on.
func (s *state) spec(pool string, limit int, since int64) {
	s.t.Helper()
	s.put(0, s.keys.Spec(pool), fmt.Sprintf(`{"v":1,"limit":%d,"lease_duration":"5m0s","reserve_after":"1m0s","limit_since":%d}`, limit, since))
}

const holder = `"holder":{"host":"one","instance":"test"}`

// mainKey is the value of a claim's main key, and otherKey that of another.
func mainKey(claim string, n int, pools string, keys ...string) string {
	list := ""
	if len(keys) > 0 {
		list = `,"keys":["` + strings.Join(keys, `","`) + `"]`
	}
	return fmt.Sprintf(`{"v":1,"n":%d,"claim":%q,"record":{"pools":{%s},%s,"since":"2026-01-01T00:00:00Z"%s}}`, n, claim, pools, holder, list)
}

func otherKey(claim string, n int, main string) string {
	return fmt.Sprintf(`{"v":1,"n":%d,"claim":%q,"main":%q}`, n, claim, main)
}

func waits(pools string) string {
	return fmt.Sprintf(`{"v":1,"pools":{%s},%s,"queued":"2026-01-01T00:00:00Z"}`, pools, holder)
}

// notice is the value of the notice of a grant with those slots.
func notice(claim string, slots ...string) string {
	order := pool.Order{Since: 2, Claim: claim}.String()
	return fmt.Sprintf(`{"v":1,"order":%q,"slots":[%s],"since":"2026-01-01T00:00:00Z"}`, order, strings.Join(slots, ","))
}

func (s *state) read() *pool.Reader {
	s.t.Helper()
	r, err := pool.Read(context.Background(), s.b, s.keys)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestVerifyFindsWhatShouldNotBe(t *testing.T) {
	k := store.NewKeys("/b/")
	order := pool.Order{Priority: 3, Since: 9, Claim: "w"}.String()
	for name, tc := range map[string]struct {
		spoil func(s *state)
		want  []string // "key: words of the problem", one for each violation
	}{
		"nothing": {spoil: func(s *state) {
			s.spec("db", 2, 0)
			s.spec("other", 1, 0)
			s.put(s.lease,
				k.Slot("db", 0, 0), mainKey("a", 1, `"db":2,"other":1`, "db/0/0", "db/1/0", "other/0/0"),
				k.Slot("db", 1, 0), otherKey("a", 1, "db/0/0"), k.Slot("other", 0, 0), otherKey("a", 1, "db/0/0"))
			s.put(s.lease, k.Waiter("db", order), waits(`"db":1,"other":1`), k.Waiter("other", order), waits(`"db":1,"other":1`))
			s.put(0, k.Queued("other"), `{"v":1}`)
		}},
		"a dispatcher, and notices at every moment": {spoil: func(s *state) {
			s.spec("db", 9, 0)
			s.put(s.lease, k.Waiter("db", order), waits(`"db":1`), k.Dispatcher("db"), `{"v":1,"host":"one","instance":"test"}`) // queued by nobody yet
			s.put(s.lease, k.Slot("db", 0, 0), mainKey("new", 1, `"db":2`, "db/0/0", "db/1/0"), k.Slot("db", 1, 0), otherKey("new", 1, "db/0/0"),
				k.Notice("db", "one", "test", "new"), notice("new", `{"key":"db/0/0","n":1}`, `{"key":"db/1/0","n":1}`))
			s.put(s.lease, k.Notice("db", "one", "test", "freed"), notice("freed", `{"key":"db/2/0","n":1}`))
			s.put(s.lease, k.Notice("db", "one", "test", "confirmed"), notice("confirmed", `{"key":"db/3/0","n":1}`))
			s.put(s.lease, k.Slot("db", 3, 0), mainKey("confirmed", 1, `"db":1`))
			// Another instance's claim has the id, and the slot of the one that was freed.
			s.put(s.lease, k.Slot("db", 2, 0), mainKey("freed", 1, `"db":1`))
			s.put(s.lease, k.Slot("db", 4, 0), strings.Replace(mainKey("freed", 1, `"db":1`), `"one"`, `"two"`, 1))
		}},
		"notices that fit no grant": {
			spoil: func(s *state) {
				s.spec("db", 1000, 0)
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("again", 1, `"db":1`))
				s.put(s.lease, k.Notice("db", "one", "test", "again"), notice("again", `{"key":"db/0/0","n":1}`))
				s.put(s.lease, k.Slot("db", 1, 0), mainKey("more", 2, `"db":2`), k.Notice("db", "one", "test", "more"), notice("more", `{"key":"db/1/0","n":1}`))
				s.put(s.lease, k.Slot("db", 2, 0), mainKey("else", 1, `"db":1`), k.Notice("db", "one", "test", "else"), notice("else", `{"key":"db/3/0","n":1}`))
				s.put(s.lease, k.Notice("db", "one", "test", "pool"), notice("pool", `{"key":"other/3/0","n":1}`))
				s.put(s.lease, k.Notice("db", "one", "test", "id"), notice("ie", `{"key":"db/3/0","n":1}`))
			},
			want: []string{
				k.Notice("db", "one", "test", "again") + `: claim "again" is held since revision 3, and was granted again at revision 4`,
				k.Notice("db", "one", "test", "else") + `: it lists 1 slot keys of claim "else", and not those`,
				k.Notice("db", "one", "test", "id") + `: its value is that of claim "ie" in pool "db"`,
				k.Notice("db", "one", "test", "more") + `: it lists 1 slot keys of claim "more", and not those`,
				k.Notice("db", "one", "test", "pool") + `: its value is that of claim "pool" in pool "other"`,
			},
		},
		"a notice and a dispatcher on no lease, and values that can't be read": {
			spoil: func(s *state) {
				s.spec("db", 9, 0)
				s.put(0, k.Notice("db", "one", "test", "a"), notice("a", `{"key":"db/0/0","n":1}`), k.Dispatcher("db"), `{"v":1,"host":"one","instance":"test"}`)
				s.put(s.lease, k.Notice("db", "one", "test", "b"), "pear", k.Dispatcher("other"), `{"v":1,"host":"one"}`)
			},
			want: []string{
				k.Notice("db", "one", "test", "b") + ": invalid character",
				k.Dispatcher("other") + `: "one"/"" is no instance`,
				k.Dispatcher("db") + ": it hangs on no lease",
				k.Notice("db", "one", "test", "a") + ": it hangs on no lease",
			},
		},
		"a waiter that nobody would grant": {
			spoil: func(s *state) {
				s.spec("db", 1, 0)
				s.spec("free", 1, 0)
				s.put(s.lease, k.Waiter("db", order), waits(`"db":1`))
				s.put(0, k.Queued("free"), `{"v":1}`)
			},
			want: []string{k.Waiter("db", order) + ": it waits, and none of its pools is queued or has a dispatcher"},
		},
		"values that can't be read": {
			spoil: func(s *state) {
				s.put(0, k.Spec("db"), `{"v":2}`)
				s.put(s.lease, k.Slot("db", 0, 0), `pear`, k.Waiter("db", order), waits(`"db":0`))
				s.put(s.lease, k.Waiter("db", "first"), waits(`"db":1`), k.Pools()+"db/else", "x")
			},
			want: []string{
				k.Pools() + "db/else: none that berth writes",
				k.Slot("db", 0, 0) + ": invalid character",
				k.Spec("db") + ": version 2",
				k.Waiter("db", order) + ": 0 slots can't be claimed",
				k.Waiter("db", "first") + ": no place in a wait queue",
			},
		},
		"more than a limit, admitted after it was set": {
			spoil: func(s *state) {
				s.spec("db", 1, 0)
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":1`))
				s.put(s.lease, k.Slot("db", 0, 1), mainKey("b", 1, `"db":1`))
			},
			want: []string{k.Group("db", 0) + ": group 0 holds 2 slots of 1", k.Slots("db") + ": 2 slots are held of a limit of 1"},
		},
		"more than a group's share": {
			spoil: func(s *state) {
				s.spec("db", 3, 0)
				s.put(s.lease, k.Slot("db", 1, 0), mainKey("a", 2, `"db":2`))
			},
			want: []string{k.Group("db", 1) + ": group 1 holds 2 slots of 1"},
		},
		"more than a limit that was lowered": {spoil: func(s *state) {
			s.spec("db", 5, 0)
			s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":1`))
			s.put(s.lease, k.Slot("db", 1, 0), mainKey("b", 1, `"db":1`))
			s.put(s.lease, k.Slot("db", 4, 0), mainKey("c", 1, `"db":1`))
			s.spec("db", 1, 0)
		}},
		"more than a limit whose spec was put again": {
			spoil: func(s *state) {
				s.spec("db", 1, 0) // at revision 2
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 2, `"db":2`))
				s.spec("db", 1, 2)
			},
			want: []string{k.Group("db", 0) + ": group 0 holds 2", k.Slots("db") + ": 2 slots are held"},
		},
		"slots without a main key": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(s.lease, k.Slot("db", 0, 0), otherKey("a", 1, "db/1/0"))
			},
			want: []string{k.Pools() + `: claim "a" has 1 slot keys and no main key`},
		},
		"a record that can't be read": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(s.lease, k.Slot("db", 0, 0), `{"v":1,"n":1,"claim":"a","record":{"pools":{"db":1},"colour":"green"}}`)
			},
			want: []string{k.Pools() + `: "colour"`},
		},
		"a key that a claim lists and has not": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":2`, "db/0/0", "db/1/0"))
			},
			want: []string{
				k.Slot("db", 0, 0) + `: claim "a" lists 2 keys and has 1`,
				k.Slot("db", 1, 0) + `: claim "a" lists it, and it is not that claim's`,
				k.Slot("db", 0, 0) + `: claim "a" claimed map[db:2] and holds map[db:1]`,
			},
		},
		"a key that a claim has and does not list": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":1`), k.Slot("db", 1, 0), otherKey("a", 1, "db/0/0"))
			},
			want: []string{k.Slot("db", 0, 0) + `: claim "a" lists 1 keys and has 2`},
		},
		"a claim at two revisions": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":2`, "db/0/0", "db/1/0"))
				s.put(s.lease, k.Slot("db", 1, 0), otherKey("a", 1, "db/0/0"))
			},
			want: []string{k.Slot("db", 0, 0) + `: claim "a" is torn`},
		},
		"a slot on no lease": {
			spoil: func(s *state) {
				s.spec("db", 5, 0)
				s.put(0, k.Slot("db", 0, 0), mainKey("a", 1, `"db":1`))
			},
			want: []string{k.Slot("db", 0, 0) + ": it hangs on no lease"},
		},
		"a waiter on no lease, in one of its two lines": {
			spoil: func(s *state) {
				s.spec("db", 1, 0)
				s.put(0, k.Waiter("db", order), waits(`"db":1,"other":1`), k.Queued("db"), `{"v":1}`)
			},
			want: []string{k.Waiter("db", order) + ": its waiter is in 1 of 2 wait queues", k.Waiter("db", order) + ": it hangs on no lease"},
		},
		"holders of a pool that was deleted": {spoil: func(s *state) {
			s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 7, `"db":7`))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(t)
			tc.spoil(s)
			got := s.read().Verify()
			if len(got) != len(tc.want) {
				t.Errorf("found %d violations, want %d: %q", len(got), len(tc.want), got)
			}
			for i, v := range got {
				if i == len(tc.want) {
					break
				}
				key, words, _ := strings.Cut(tc.want[i], ": ")
				if v.Key != key || !strings.Contains(v.Problem, words) {
					t.Errorf("found %q, want %q", v, tc.want[i])
				}
			}
		})
	}
}

func TestAClaimOnTwoLeasesIsTorn(t *testing.T) {
	s := newState(t)
	s.spec("db", 5, 0)
	k := s.keys
	if _, err := s.b.Txn(context.Background(), &pb.TxnRequest{Success: []*pb.RequestOp{
		store.Put(k.Slot("db", 0, 0), []byte(mainKey("a", 1, `"db":2`, "db/0/0", "db/1/0")), s.lease),
		store.Put(k.Slot("db", 1, 0), []byte(otherKey("a", 1, "db/0/0")), s.grant()),
	}}); err != nil {
		t.Fatal(err)
	}
	if got := s.read().Verify(); len(got) != 1 || !strings.Contains(got[0].Problem, "torn") {
		t.Errorf("found %q", got)
	}
}

func TestAReaderShowsOneRevision(t *testing.T) {
	s := newState(t)
	k := s.keys
	s.spec("db", 2, 0)
	s.put(s.lease, k.Slot("db", 0, 0), mainKey("a", 1, `"db":1`))
	s.put(s.lease, k.Waiter("db", pool.Order{Since: 3, Claim: "w"}.String()), waits(`"db":2`))
	s.put(s.lease, k.Slot("gone", 0, 0), mainKey("b", 3, `"gone":3`))
	r := s.read()
	if r.Revision() != 5 {
		t.Errorf("revision %d", r.Revision())
	}
	pools := r.Pools()
	if len(pools) != 2 || pools[0].Name != "db" || pools[0].Claimed != 1 || pools[0].Waiting != 1 || pools[0].Deleted ||
		pools[1].Name != "gone" || pools[1].Claimed != 3 || !pools[1].Deleted {
		t.Errorf("pools: %+v", pools)
	}
	d, err := r.Pool("db")
	if err != nil || len(d.Holders) != 1 || len(d.Waiters) != 1 || d.Waiters[0].Reason != "pool 'db' has too few free slots (1/2 slots, 2 wanted)" || d.Waiters[0].Position != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.Pool("no"); err == nil {
		t.Error("an unknown pool is shown")
	}
	holders, waiters := r.Claims()
	if len(holders) != 2 || holders[0].Claim != "a" || holders[0].Fence.Revision() != 3 || holders[1].Claim != "b" || len(waiters) != 1 {
		t.Errorf("%+v and %+v", holders, waiters)
	}
	s.b.Down()
	if _, err := pool.Read(context.Background(), s.b, s.keys); err == nil {
		t.Error("read from an etcd that is away")
	}
}
