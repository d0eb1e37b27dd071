package inspect

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/election"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/lease"
)

func TestAnInstanceThatHasWorkAndNoPresenceIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := store.NewKeys("/b/")
		grant := func(ttl time.Duration) store.LeaseID {
			id, _, err := b.Grant(t.Context(), ttl)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		short, long := grant(10*time.Second), grant(time.Minute)
		// An instance that started after the list was read, or can't be read, is not gone.
		if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Presence("m", "new"), []byte("?"), 0)); err != nil {
			t.Fatal(err)
		}
		seen := []lease.PresenceRecord{{Host: "b", Instance: "worker", Capacity: 2, Since: time.Unix(1, 0)}, {Host: "z", Instance: "worker"}}
		active := []step.Active{
			{Host: "a", Instance: "worker", Steps: 2, Leases: []store.LeaseID{short, long}},
			{Host: "b", Instance: "old", Runs: 1, Leases: []store.LeaseID{short}},
			{Host: "b", Instance: "worker", Steps: 1, Leases: []store.LeaseID{long}},
			{Host: "m", Instance: "new", Steps: 1, Leases: []store.LeaseID{long}},
			{Host: "n", Instance: "over", Steps: 1, Leases: []store.LeaseID{4711}},
		}
		check := func(want ...string) {
			t.Helper()
			f := &Fleet{seen: seen, active: active}
			f.setHosts()
			r := Reader{Runs: run.Store{Backend: b, Keys: keys}}
			if err := r.addGone(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range f.Hosts {
				got = append(got, fmt.Sprintf("%s/%s %d+%d gone=%v %s", h.Host, h.Instance, h.ActiveSteps, h.ActiveRuns, h.Gone, h.WorkLeft))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		}
		check("a/worker 2+0 gone=true 1m0s", "b/old 0+1 gone=true 10s", "b/worker 1+0 gone=false 0s", "z/worker 0+0 gone=false 0s")
		time.Sleep(20 * time.Second)
		synctest.Wait()
		check("a/worker 2+0 gone=true 40s", "b/worker 1+0 gone=false 0s", "z/worker 0+0 gone=false 0s")
	})
}

// A leader that was killed stays in the list until its leases end. It is not said to lead, and
// when it was last seen is what its presence says.
func TestAnInstanceThatDoesNotRenewItsPresenceIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		defer b.Close()
		keys := store.NewKeys("/b/")
		present := func(host string) store.LeaseID {
			id, _, err := b.Grant(t.Context(), lease.PresenceTTL)
			if err != nil {
				t.Fatal(err)
			}
			record := []byte(`{"v":1,"role":"worker","version":"1","pid":1,"capacity":1,"since":"2026-01-02T03:04:05Z","token":"t"}`)
			if _, err := store.Commit(t.Context(), b, nil, store.Put(keys.Presence(host, "i"), record, id)); err != nil {
				t.Fatal(err)
			}
			return id
		}
		killed, lives := present("killed"), present("lives")
		r := Reader{Source: Snapshot{Backend: b, Keys: keys}}
		check := func(want ...string) {
			t.Helper()
			seen, err := r.Hosts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f := &Fleet{seen: seen, Candidates: []run.Candidate{{Candidate: election.Candidate{Host: "killed", Instance: "i"}}}}
			f.setHosts()
			if err := r.setSeen(t.Context(), f, time.Now()); err != nil {
				t.Fatal(err)
			}
			f.setWorkers()
			var got []string
			for i, h := range f.Hosts {
				got = append(got, fmt.Sprintf("%s leads=%v %s, as a worker %s", h.Host, h.Leader, h.SeenText(time.Now()), f.Workers[i].SeenText(time.Now())))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		}
		check("killed leads=true now, as a worker now", "lives leads=false now, as a worker now")
		for range 2 {
			time.Sleep(3 * time.Second)
			if _, err := b.Renew(t.Context(), lives); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		check("killed leads=false 7s ago, as a worker 7s ago", "lives leads=false now, as a worker now")
		if _, err := b.Renew(t.Context(), killed); err != nil { // it was cut off, and is back
			t.Fatal(err)
		}
		check("killed leads=true now, as a worker now", "lives leads=false now, as a worker now")
	})
}
