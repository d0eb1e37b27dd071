package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/pool/wire"
)

func TestRunsAreAdmittedInOrderUnderLimits(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(3, run.TagLimit{Key: "env", Value: "prod", Limit: 1}, run.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: 1})
		fl.submit("a", tag("env", "prod"))
		fl.submit("b", tag("env", "prod"), priority(5))
		fl.submit("c", tag("tenant", "x"))
		fl.submit("d", tag("tenant", "x"))
		fl.submit("e", tag("tenant", "y"))
		fl.submit("f")
		fl.candidate("one")
		fl.is(map[string]string{
			"a": "queued: global run limit (3/3)",
			"b": "not_started", "c": "not_started", "e": "not_started",
			"d": "queued: global run limit (3/3)", "f": "queued: global run limit (3/3)",
		})
		x := fl.executor()
		c := fl.start("c", x)
		fl.limit(10)
		fl.is(map[string]string{
			"a": "queued: tag limit: env=prod (1/1)", "d": "queued: tag limit: tenant=x (1/1)", "f": "not_started",
		})
		fl.finish(c)
		fl.is(map[string]string{"c": "succeeded", "d": "not_started"})
		fl.limit(0)
		fl.submit("g")
		fl.is(map[string]string{"b": "not_started", "g": "queued: global run limit (4/0)"})
	})
}

func TestAnExecutorThatNeverComesOrIsGone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(2)
		fl.candidate("one", func(c *Config) { c.StartTimeout = 30 * time.Second })
		fl.submit("late", retries(1))
		fl.submit("gone")
		fl.is(map[string]string{"late": "not_started", "gone": "not_started"})
		x := fl.executor()
		fl.start("gone", x)
		if err := fl.root.Revoke(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"gone": "failed"})
		time.Sleep(30 * time.Second)
		fl.is(map[string]string{"late": "not_started"}) // again
		if n := fl.referee.admits["late"]; n != 2 {
			t.Errorf("it was admitted %d times", n)
		}
		time.Sleep(30 * time.Second)
		fl.is(map[string]string{"late": "failed"})

		for id, want := range map[string][]run.EventType{
			"late": {run.RunQueued, run.RunDequeued, run.RunLaunchFailed, run.RunDequeued, run.RunLaunchFailed},
			"gone": {run.RunQueued, run.RunDequeued, run.RunStarted, run.RunLost},
		} {
			events, err := fl.Events(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			var got []run.EventType
			for _, e := range events {
				got = append(got, e.Type)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", id, got, want)
			}
		}
		r, err := fl.Get(t.Context(), "gone")
		if err != nil || r.Error == "" || r.EndedAt.IsZero() {
			t.Errorf("a run that is lost: %+v, %v", r, err)
		}
	})
}

// However the leader ends, the next one goes on within the lease and a tick, and
// nothing that the old one still sends is taken.
func TestTheNextLeads(t *testing.T) {
	for name, end := range map[string]func(*candidate){
		"stopped": func(c *candidate) { c.stop() },
		"cut off": func(c *candidate) { c.by.Down() },
		"paused": func(c *candidate) {
			c.by.Inject(func(storetest.Call) storetest.Fault { return storetest.Fault{Delay: 30 * time.Second} })
			c.by.Freeze()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				fl.limit(2)
				one := fl.candidate("one")
				two := fl.candidate("two")
				fl.submit("a")
				fl.is(map[string]string{"a": "not_started"})
				if !one.Leading() || two.Leading() {
					t.Fatalf("leading: %v, %v", one.Leading(), two.Leading())
				}
				end(one)
				fl.submit("b")
				fl.submit("c")
				time.Sleep(10*time.Second + DefaultTickInterval)
				fl.is(map[string]string{"b": "not_started", "c": "queued: global run limit (2/2)"})
				if !two.Leading() {
					t.Error("the next does not lead")
				}
				one.by.Up()
				one.by.Inject(nil)
				one.by.Thaw()
				time.Sleep(time.Minute)
				if one.Leading() {
					t.Error("both lead")
				}
				all, err := run.Store{Backend: fl.root, Keys: fl.keys}.Candidates(t.Context())
				if err != nil || len(all) == 0 || all[0].Host != "two" || all[0].Tick == nil {
					t.Errorf("candidates: %+v, %v", all, err)
				}
			})
		})
	}
}

// A candidate that this version can't read leads in its turn all the same: else both
// would. What is no candidate at all keeps none from leading.
func TestACandidateOfAnotherVersionLeadsInItsTurn(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		other := fl.executor()
		fl.txn(store.Put(fl.keys.Coordinator(other), []byte(`{"v":2,"who":"knows"}`), other))
		fl.put(fl.keys.Coordinators()+"garbage", "{")
		fl.put(fl.keys.Coordinator(99), `{"v":1}`) // on no lease
		one := fl.candidate("one")
		time.Sleep(time.Minute)
		if one.Leading() {
			t.Error("two lead")
		}
		if err := fl.root.Revoke(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		if !one.Leading() {
			t.Error("there is no leader")
		}
	})
}

func TestWhatCannotBeReadDoesNotStopTheRest(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(1)
		fl.candidate("one")
		fl.submit("a")
		fl.submit("b")
		fl.is(map[string]string{"a": "not_started", "b": "queued: global run limit (1/1)"})
		fl.put(fl.keys.Run("a"), "{")
		fl.put(fl.keys.Run("odd/key"), "{}")
		fl.is(map[string]string{"b": "not_started"})
		if _, err := fl.Get(t.Context(), "a"); problem.CodeOf(err) != problem.CorruptValue {
			t.Errorf("a corrupt run: %v", err)
		}
		// Limits from before hold on.
		fl.put(fl.keys.Limits(), `{"v":9}`)
		fl.submit("c")
		fl.is(map[string]string{"c": "queued: global run limit (1/1)"})
		fl.txn(store.Delete(fl.keys.Run("b")))
		fl.is(map[string]string{"c": "not_started"})
	})
}

func TestEndedRunsAreForgotten(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one", func(c *Config) { c.Retention = time.Hour })
		fl.submit("a")
		fl.submit("b")
		fl.proceed()
		if _, err := fl.Cancel(t.Context(), "a", "no need", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(62 * time.Minute)
		if _, err := fl.Get(t.Context(), "a"); problem.CodeOf(err) != problem.RunNotFound {
			t.Errorf("an old run: %v", err)
		}
		if _, err := fl.Get(t.Context(), "b"); err != nil {
			t.Error(err)
		}
	})
}

// History is kept for an interval and no longer, and left alone if it is to be.
func TestEtcdIsCompacted(t *testing.T) {
	for interval, want := range map[time.Duration]bool{time.Minute: true, -1: false} {
		inFleet(t, func(t *testing.T, fl *fleet) {
			fl.candidate("one", func(c *Config) { c.CompactInterval = interval })
			old := fl.revision()
			for range 10 {
				time.Sleep(20 * time.Second)
				fl.submit(fmt.Sprint("r", fl.revision()))
			}
			if _, err := fl.since(old); (err != nil) != want {
				t.Errorf("interval %s: %v", interval, err)
			}
			if _, err := fl.since(fl.revision() - 2); err != nil {
				t.Errorf("interval %s: the last minute is gone: %v", interval, err)
			}
		})
	}
}

// Claims with many labels that are made and released fill 2 GiB of etcd within minutes, in few
// revisions.
func TestEtcdIsCompactedBeforeItsHistoryFillsIt(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		const mib = 1 << 20
		used := func(bytes int64) { fl.root.Do(func(e *storetest.Etcd) { e.SetUsed(bytes) }) }
		used(900 * mib)
		fl.candidate("one", func(c *Config) { c.CompactInterval = time.Hour })
		time.Sleep(time.Minute)
		old := fl.revision()
		fl.submit("a")
		used(1000 * mib)
		time.Sleep(time.Minute)
		if _, err := fl.since(old); err != nil {
			t.Errorf("100 MiB of history are compacted: %v", err)
		}
		used(1200 * mib)
		time.Sleep(time.Minute)
		middle := fl.revision()
		if _, err := fl.since(1); err == nil {
			t.Error("300 MiB of history are kept")
		}
		used(800 * mib) // as etcd has deleted it
		time.Sleep(time.Minute)
		used(1000 * mib)
		fl.submit("b")
		time.Sleep(time.Minute)
		if _, err := fl.since(middle); err != nil {
			t.Errorf("200 MiB of history are compacted: %v", err)
		}
		used(1100 * mib)
		time.Sleep(time.Minute)
		if _, err := fl.since(old); err == nil {
			t.Error("300 MiB of history are kept once more")
		}
	})
}

// With users, etcd lets only root compact.
func TestACompactionThatEtcdRefusesIsNotTriedAgain(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		c := fl.candidate("one", func(c *Config) { c.CompactInterval = time.Minute })
		var tried atomic.Int64
		c.by.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op != storetest.OpCompact {
				return storetest.Fault{}
			}
			tried.Add(1)
			return storetest.Fault{Drop: true, Err: store.ErrDenied}
		})
		time.Sleep(time.Hour)
		if n := tried.Load(); n != 1 || !c.Leading() {
			t.Errorf("it has tried %d times, and leads: %t", n, c.Leading())
		}
	})
}

// A cancel that races with the admission: the one that comes second sees the other.
func TestACancelRacesWithAdmission(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(run.Unlimited)
		fl.candidate("one")
		x := fl.executor()
		rnd := rand.New(rand.NewPCG(1, 2))
		canceled, started := 0, 0
		for i := range 1000 {
			id := fmt.Sprintf("r%d", i)
			fl.submit(id)
			time.Sleep(time.Duration(rnd.Int64N(int64(2 * debounce))))
			_, err := fl.Cancel(t.Context(), id, "too late", true)
			switch {
			case err == nil:
				canceled++
			case problem.CodeOf(err) == problem.RunNotQueued:
				fl.start(id, x)
				started++
			default:
				t.Fatal(err)
			}
		}
		fl.proceed()
		for id, r := range fl.referee.runs {
			if r.Status != run.Canceled && r.Status != run.Running || r.Status == run.Canceled && fl.referee.admits[id] > 0 {
				t.Errorf("%s is %s, and was admitted %d times", id, r.Status, fl.referee.admits[id])
			}
		}
		if canceled == 0 || started == 0 {
			t.Errorf("there was no race: %d canceled, %d started", canceled, started)
		}
	})
}

// Whatever answers are lost, late or refused, no limit is exceeded, and all runs
// come to their end.
func TestNoFaultExceedsALimit(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				rnd := newDraws(seed)
				draw := rnd.draw
				fl.limit(4, run.TagLimit{Key: "tenant", PerUniqueValue: true, Limit: 2})
				fl.watchSlots()
				fl.pool("db", 3)
				fl.pool("gpu", 2)
				var fleet []*candidate
				for _, host := range []string{"one", "two", "three"} {
					c := fl.candidate(host)
					c.by.Inject(rnd.fault)
					fleet = append(fleet, c)
				}
				x := fl.starter("x")
				for i := range 60 {
					change := []func(*run.Spec){tag("tenant", fmt.Sprint(i%3)), priority(int(draw(3))), retries(2)}
					if i%2 == 0 {
						change = append(change, needs("db", 1+i%3))
					}
					if i%4 == 0 {
						change = append(change, needs("gpu", 1))
					}
					fl.submit(fmt.Sprintf("r%02d", i), change...)
				}
				running := map[string]*run.Run{}
				for range 60 {
					time.Sleep(time.Duration(draw(int64(3 * time.Second))))
					switch c := fleet[draw(int64(len(fleet)))]; draw(5) {
					case 0:
						c.by.Freeze()
					case 1:
						c.by.Down()
					default:
						c.by.Thaw()
						c.by.Up()
					}
					x.endRuns(running, draw(2) == 0)
				}
				rnd.calm()
				for _, c := range fleet {
					c.by.Thaw()
					c.by.Up()
				}
				for range 200 {
					time.Sleep(time.Second)
					x.endRuns(running, true)
				}
				synctest.Wait()
				for id, r := range fl.referee.runs {
					if !r.Status.Ended() {
						t.Errorf("%s is %s still, admitted %d times", id, r.Status, fl.referee.admits[id])
					}
				}
			})
		})
	}
}

// The claims that a run holds when it ends are revoked from its host; what it claims in a
// later attempt, and what other runs hold, is not.
func TestClaimsOfRunsThatHaveEndedAreTakenBack(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		limit := 9
		if _, err := (registry.Registry{Backend: fl.root, Keys: fl.keys}).Set(t.Context(), "db", pool.Change{Limit: &limit}); err != nil {
			t.Fatal(err)
		}
		hold := func(id, run string) {
			value := fmt.Sprintf(`{"v":2,"claim":%q,"record":{"pools":{"db":1},"holder":{"host":"x","instance":"sidecar","run":%q},"since":"2026-01-01T00:00:00Z"}}`, id, run)
			fl.put(wire.Keys{Keys: fl.keys}.Number("db", len(id)), value)
		}
		fl.candidate("one")
		x := fl.executor()
		for _, id := range []string{"done", "lost", "busy"} {
			fl.submit(id, retries(1))
		}
		fl.proceed()
		done := fl.start("done", x)
		fl.start("busy", x)
		fl.start("lost", fl.executor())
		hold("a", "done")
		hold("bb", "busy")
		hold("ccc", "lost")
		hold("dddd", "of no run")
		fl.finish(done)
		fl.lose("lost")
		fl.proceed()
		fl.start("lost", x)
		hold("eeeee", "lost")
		time.Sleep(5 * time.Second)
		var revoked []string
		fl.root.Do(func(e *storetest.Etcd) {
			for kv := range e.All(fl.keys.Revocations("x")) {
				revoked = append(revoked, string(kv.Key)[len(fl.keys.Revocations("x")):])
			}
		})
		if want := []string{"a", "ccc"}; !slices.Equal(revoked, want) {
			t.Errorf("revoked are %v, want %v", revoked, want)
		}
	})
}
