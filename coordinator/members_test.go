package coordinator

import (
	"testing"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/pool"
)

// Those who have taken steps of a run claim slots for it: a worker for its commands, on its own
// host, and an executor through any host.
func TestTheClaimsOfThoseWhoTookItsStepsEndWithARun(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 20)
		fl.candidate("one")
		here, there := fl.starter("here"), fl.starter("there")
		fl.submitSteps("r", []step.Spec{fan("a", 2, 0), fan("b", 0, 0, after("a"))}, func(s *run.Spec) { s.SubmittedBy = "user:ann" })
		fl.proceed()
		for i, by := range []run.Executor{
			{Host: "here", Instance: "worker", EtcdUser: "etcd:worker", User: "user:berth"},
			{Host: "here", Instance: "sidecar", Name: "e", By: "token:airflow"},
		} {
			taken, err := fl.instances().Take(t.Context(), fl.published()[0], by, here.lease)
			if err != nil {
				t.Fatal(i, err)
			}
			if _, err := fl.instances().Finish(t.Context(), taken, step.Outcome{Status: step.Succeeded}, nil); err != nil {
				t.Fatal(i, err)
			}
		}
		for _, c := range []struct {
			id   string
			at   *starter
			h    pool.Holder
			ends bool
		}{
			{"submitter", there, pool.Holder{ClaimedBy: "user:ann"}, true},
			{"command", here, pool.Holder{ClaimedBy: "user:berth"}, true},
			{"command-on-etcd", here, pool.Holder{ClaimedBy: "etcd:worker"}, true},
			{"step", there, pool.Holder{ClaimedBy: "unauthenticated", Bind: run.BindStep}, true},
			{"executor", there, pool.Holder{ClaimedBy: "token:airflow"}, true},
			{"elsewhere", there, pool.Holder{ClaimedBy: "user:berth"}, false},
			{"elsewhere-on-etcd", there, pool.Holder{ClaimedBy: "etcd:worker"}, false},
			{"other", here, pool.Holder{ClaimedBy: "user:bob"}, false},
			{"anonymous", here, pool.Holder{ClaimedBy: "anonymous"}, false},
			{"unauthenticated", here, pool.Holder{ClaimedBy: "unauthenticated"}, false},
		} {
			c.h.Run = "r"
			claim, err := c.at.engine.Claim(t.Context(), &pool.Request{ID: c.id, Slots: map[string]int{"db": 1}, Holder: c.h})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if ended := claim.Context().Err() != nil; ended != c.ends {
					t.Errorf("the claim of %s has ended: %t, want %t", c.id, ended, c.ends)
				}
			}()
		}
		if _, err := fl.Cancel(t.Context(), "r", "no need", false); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
	})
}

func TestAnonymousCallersOwnNoRuns(t *testing.T) {
	for _, c := range []struct {
		submitted, claimed string
		owns               bool
	}{
		{"user:ann", "user:ann", true},
		{"user:ann", "user:bob", false},
		{"token:ann", "user:ann", false},
		{"anonymous", "anonymous", false},
		{"anonymous", "", false},
		{"", "anonymous", false},
		{"", "user:ann", false},
		{"unauthenticated", "unauthenticated", true}, // each may write all of etcd
		{"etcd:jobs", "unauthenticated", false},
	} {
		r := run.Record{Spec: run.Spec{SubmittedBy: c.submitted}, Executor: &run.Executor{Host: "h"}}
		if owns := r.Owns(pool.Holder{Host: "h", ClaimedBy: c.claimed}); owns != c.owns {
			t.Errorf("a run of %q owns a claim of %q: %t", c.submitted, c.claimed, owns)
		}
	}
}
