//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/e2e"
)

// at is a time of a synthetic history, in milliseconds.
func at(ms int) time.Time { return time.UnixMilli(int64(ms)) }

func gap(pool string, from, to int) e2e.Gap { return e2e.Gap{Pool: pool, From: at(from), To: at(to)} }

func TestAQueueThatStandsStillIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		moves moves
		gaps  []e2e.Gap
		wrong int
		after map[kind]moved
	}{
		"it moves in time": {
			moves: moves{lost: []loss{{"kill-dispatcher", at(1000)}}},
			gaps:  []e2e.Gap{gap("db", 1100, 4000), gap("db", 4000, 4200)},
			after: map[kind]moved{"kill-dispatcher": {times: 1, stood: 1, longest: 2900 * time.Millisecond}},
		},
		"it does not": {
			moves: moves{lost: []loss{{"kill-dispatcher", at(1000)}}},
			gaps:  []e2e.Gap{gap("db", 1100, 4601)},
			wrong: 1,
			after: map[kind]moved{"kill-dispatcher": {times: 1, stood: 1, longest: 3501 * time.Millisecond}},
		},
		"the second one of a minute has more time": {
			moves: moves{lost: []loss{{"kill-dispatcher", at(61_000)}}, takeOvers: []time.Time{at(0), at(3000), at(63_000)}},
			gaps:  []e2e.Gap{gap("db", 61_100, 66_500)},
			after: map[kind]moved{"kill-dispatcher": {times: 1, stood: 1, longest: 5400 * time.Millisecond}},
		},
		"but no more than that": {
			moves: moves{lost: []loss{{"kill-dispatcher", at(61_000)}}, takeOvers: []time.Time{at(0), at(3000), at(63_000)}},
			gaps:  []e2e.Gap{gap("db", 61_100, 66_700)},
			wrong: 1,
			after: map[kind]moved{"kill-dispatcher": {times: 1, stood: 1, longest: 5600 * time.Millisecond}},
		},
		"the time before the fault does not count": {
			moves: moves{lost: []loss{{"stop-dispatcher", at(2000)}}},
			gaps:  []e2e.Gap{gap("db", 0, 4900)},
			after: map[kind]moved{"stop-dispatcher": {times: 1, stood: 1, longest: 2900 * time.Millisecond}},
		},
		"it stood still long after": {
			moves: moves{lost: []loss{{"cut-dispatcher", at(0)}}},
			gaps:  []e2e.Gap{gap("api", 21_000, 25_000)},
			wrong: 1,
			after: map[kind]moved{"cut-dispatcher": {times: 1}},
		},
		"without any fault": {
			gaps: []e2e.Gap{gap("api", 1000, 5000)}, wrong: 1, after: map[kind]moved{},
		},
		"the next dispatcher is hit as well": {
			moves: moves{lost: []loss{{"kill-dispatcher", at(1000)}}, begun: []time.Time{at(3500)}},
			gaps:  []e2e.Gap{gap("db", 1000, 6000)},
			after: map[kind]moved{"kill-dispatcher": {times: 1, stood: 1, longest: 2500 * time.Millisecond}},
		},
		"etcd did not serve": {
			moves: moves{disturbed: []span{{at(2000), at(9000)}, {at(3000), at(4000)}}},
			gaps:  []e2e.Gap{gap("db", 1000, 11000)},
			after: map[kind]moved{},
		},
		"etcd served again": {
			moves: moves{disturbed: []span{{at(2000), at(9000)}, {at(3000), at(4000)}}},
			gaps:  []e2e.Gap{gap("db", 1000, 12501)},
			wrong: 1,
			after: map[kind]moved{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := 0
			c.moves.judge(c.gaps, func(_, text string) { wrong++; t.Log(text) })
			if wrong != c.wrong {
				t.Errorf("%d violations, want %d", wrong, c.wrong)
			}
			if diff := cmp.Diff(c.after, c.moves.after, cmp.AllowUnexported(moved{})); diff != "" {
				t.Errorf("after faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEachPhaseIsJudgedByItself(t *testing.T) {
	var m moves
	m.lost = []loss{{"kill-dispatcher", at(0)}}
	m.judge([]e2e.Gap{gap("db", 0, 1000)}, func(_, text string) { t.Error(text) })
	m.lost = []loss{{"kill-dispatcher", at(50_000)}}
	m.judge(nil, func(_, text string) { t.Error(text) })
	if got := m.after["kill-dispatcher"]; got != (moved{times: 2, stood: 1, longest: time.Second}) || m.longest != time.Second {
		t.Errorf("%+v after %+v", got, m)
	}
}
