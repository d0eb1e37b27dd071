package coordinator

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// logged has a candidate write its log somewhere.
func logged(to *bytes.Buffer) func(*Config) {
	return func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: to, Level: hclog.Warn}) }
}

// Runs that are as large as they may be are admitted in more chunks.
func TestLargeRunsAreAdmitted(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(run.Unlimited)
		want := map[string]string{"slim": "not_started"}
		for i := range 80 {
			id := fmt.Sprintf("fat%02d", i)
			fl.submit(id, func(s *run.Spec) {
				s.Tags = map[string]string{}
				for k := range run.MaxTags {
					s.Tags[fmt.Sprintf("%03d%s", k, strings.Repeat("\"", 110))] = strings.Repeat("\"", 110)
				}
			})
			want[id] = "not_started"
		}
		fl.submit("slim")
		fl.candidate("one")
		fl.is(want)
	})
}

// Of a record of a newer version it is known only that it is in progress: it counts, and
// is left alone.
func TestARunOfANewerVersionCounts(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(2, run.TagLimit{Key: "env", Limit: 1})
		newer := `{"v":2,"status":"not_started","tags":{"env":"prod"},"more":1}`
		fl.put(fl.keys.Run("newer"), newer)
		fl.candidate("one", func(c *Config) { c.StartTimeout = time.Minute })
		fl.submit("a", tag("env", "test"))
		fl.submit("b")
		fl.submit("c")
		fl.is(map[string]string{
			"a": "queued: global run limit (2/2)", "b": "not_started", "c": "queued: global run limit (2/2)",
		})
		fl.limit(9)
		fl.is(map[string]string{"a": "queued: tag limit: env (1/1)", "c": "not_started"})
		time.Sleep(5 * time.Minute)
		fl.put(fl.keys.Run("newer"), strings.Replace(newer, "not_started", "succeeded", 1))
		fl.is(map[string]string{"a": "not_started"})
	})
}

// The time in which no executor could start a run does not count, nor does the clock of
// a leader before.
func TestStartTimeoutIsOnTheLeadersOwnClock(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		one := fl.candidate("one", func(c *Config) { c.StartTimeout = time.Minute })
		fl.submit("a")
		fl.is(map[string]string{"a": "not_started"})
		one.by.Down()
		time.Sleep(5 * time.Minute)
		one.by.Up()
		time.Sleep(30 * time.Second)
		fl.is(map[string]string{"a": "not_started"})
		time.Sleep(time.Minute)
		fl.is(map[string]string{"a": "failed"})
	})
}

func TestAKeyNextToTheLimitsIsNoneOfThem(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.put(fl.keys.Limits()+".bak", "{")
		fl.submit("a")
		fl.candidate("one")
		fl.is(map[string]string{"a": "not_started"})
	})
}

func TestLimitsFromBeforeHoldOnOverAResync(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.limit(2)
		one := fl.candidate("one")
		fl.put(fl.keys.Limits(), "{")
		fl.proceed()
		one.by.BreakWatches(store.ErrUnavailable)
		fl.proceed()
		for _, id := range []string{"a", "b", "c"} {
			fl.submit(id)
		}
		fl.is(map[string]string{"a": "not_started", "b": "not_started", "c": "queued: global run limit (2/2)"})
		// Setting all of them again repairs them.
		three := 3
		if _, _, err := fl.SetLimits(t.Context(), run.LimitsChange{MaxConcurrentRuns: &three, Replace: true}); err != nil {
			t.Fatal(err)
		}
		fl.is(map[string]string{"c": "not_started"})
	})
}

// A problem that persists is logged once.
func TestTroubleIsReportedOnce(t *testing.T) {
	for name, trouble := range map[string]func(*fleet, *candidate){
		"a record that can't be read": func(fl *fleet, _ *candidate) {
			fl.put(fl.keys.Run("bad"), "{")
			for i := range 30 {
				fl.submit(fmt.Sprint("r", i))
			}
		},
		"no rights": func(fl *fleet, c *candidate) {
			c.by.Inject(func(call storetest.Call) storetest.Fault {
				if call.Op == storetest.OpTxn && len(call.Txn.Success) > 1 {
					return storetest.Fault{Drop: true, Err: store.ErrDenied}
				}
				return storetest.Fault{}
			})
			for i := range 30 {
				fl.submit(fmt.Sprint("r", i))
				time.Sleep(time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				var log bytes.Buffer
				c := fl.candidate("one", logged(&log))
				trouble(fl, c)
				time.Sleep(5 * time.Minute)
				c.stop()
				if n := strings.Count(log.String(), "\n"); n != 1 {
					t.Errorf("%d lines:\n%s", n, log.String())
				}
			})
		})
	}
}

// A run that ends in the usual way is not taken for lost, although its executor's key
// may be seen to go first.
func TestARunThatHasFinishedIsNotLost(t *testing.T) {
	s := newState(store.NewKeys("/b/"))
	r := &run.Run{ID: "a", Created: 2, Revision: 5, Record: run.Record{
		Status: run.Running, Executor: &run.Executor{Host: "x"},
	}}
	s.put(r)
	s.rev = 5
	active := &mvccpb.KeyValue{Key: []byte(s.keys.ActiveRun("x", "a")), ModRevision: 5, Value: []byte("{}")}
	s.activeMessage(store.FeedMessage{Snapshot: &store.Snapshot{Revision: 5, KVs: []*mvccpb.KeyValue{active}}, Revision: 5})
	if !s.alive(r) {
		t.Error("it is seen, and not alive")
	}
	gone := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: active.Key, ModRevision: 8}}
	s.activeMessage(store.FeedMessage{Events: []*mvccpb.Event{gone}, Revision: 8})
	if !s.alive(r) {
		t.Error("lost, before it is known what else revision 8 has brought")
	}
	if news := s.runsMessage(store.FeedMessage{Revision: 8}); !news || s.alive(r) {
		t.Errorf("news: %v, alive: %v, once that is known", news, s.alive(r))
	}
}

// delaysFirstWrite delays the first write of a key, for which the leader waits still, and returns whether it
// was sent.
func (c *candidate) delaysFirstWrite(key string) (held *bool) {
	held = new(bool)
	c.by.Inject(func(call storetest.Call) storetest.Fault {
		if *held || call.Op != storetest.OpTxn || !puts(call.Txn, key) {
			return storetest.Fault{}
		}
		*held = true
		return storetest.Fault{Delay: writeTimeout * 3 / 4}
	})
	return held
}

// An admission for the place of a run that has ended is under way while etcd is restored from a snapshot
// in which that run goes on.
func TestAnAdmissionThatComesAfterARestoreIsNone(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		one := fl.candidate("one")
		fl.limit(1)
		fl.submit("first")
		fl.submit("second")
		fl.proceed()
		first := fl.start("first", fl.executor())
		fl.proceed()
		held := one.delaysFirstWrite(fl.keys.Run("second"))
		var saved *storetest.Saved
		fl.root.Do(func(e *storetest.Etcd) { saved = e.Save() })
		fl.finish(first)
		time.Sleep(writeTimeout / 2)
		fl.root.Do(func(e *storetest.Etcd) { e.Restore(saved, 1000) })
		time.Sleep(writeTimeout)
		if !*held {
			t.Error("no admission was under way")
		}
		fl.is(map[string]string{"first": "running", "second": "queued: global run limit (1/1)"})
	})
}
