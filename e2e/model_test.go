package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The model of all pools: one object with atomic operations, which knows nothing
// of etcd, leases or lines. A history of what clients did, each operation with
// the time before which and the time after which it can't have happened, is good
// if some order of the operations explains it.

// opKind is what an operation of the model does.
type opKind int

const (
	opSpec  opKind = iota // a pool gets a limit, or is paused
	opClaim               // a claim takes its slots; only if they fit
	opEnd                 // a claim gives them back, or loses them
)

// op is an operation of the model.
type op struct {
	kind   opKind
	claim  string
	slots  map[string]int
	pool   string
	limit  int
	paused bool
}

// state is what the model knows.
type state struct {
	pools map[string]poolModel
	held  map[string]map[string]int
}

type poolModel struct {
	limit, used int
	paused      bool
}

func sameState(a, b any) bool {
	x, y := a.(state), b.(state)
	return maps.Equal(x.pools, y.pools) && maps.EqualFunc(x.held, y.held, maps.Equal[map[string]int])
}

// step does one operation, if it is possible in that state.
func step(st, in, _ any) (bool, any) {
	s, o := st.(state), in.(op)
	next := state{pools: maps.Clone(s.pools), held: maps.Clone(s.held)}
	switch o.kind {
	case opSpec:
		p := next.pools[o.pool]
		p.limit, p.paused = o.limit, o.paused
		next.pools[o.pool] = p
	case opClaim:
		if s.held[o.claim] != nil {
			return false, s
		}
		for name, n := range o.slots {
			p, ok := next.pools[name]
			p.used += n
			if !ok || p.paused || p.limit != Unlimited && p.used > p.limit {
				return false, s
			}
			next.pools[name] = p
		}
		next.held[o.claim] = o.slots
	case opEnd:
		slots := s.held[o.claim]
		if slots == nil {
			return false, s
		}
		delete(next.held, o.claim)
		for name, n := range slots {
			p := next.pools[name]
			p.used -= n
			next.pools[name] = p
		}
	}
	return true, next
}

var poolsModel = porcupine.Model{
	Init:  func() any { return state{pools: map[string]poolModel{}, held: map[string]map[string]int{}} },
	Step:  step,
	Equal: sameState,
	Hash: func(st any) uint64 {
		h := uint64(14695981039346656037)
		for _, id := range slices.Sorted(maps.Keys(st.(state).held)) {
			for i := range len(id) {
				h = (h ^ uint64(id[i])) * 1099511628211
			}
		}
		return h
	},
}

// operation is one that can't have happened before from, nor after to.
func operation(o op, from, to int64) porcupine.Operation {
	return porcupine.Operation{Input: o, Call: from, Return: to}
}

func TestTheModelTellsGoodHistoriesFromBad(t *testing.T) {
	spec := func(limit int, from, to int64) porcupine.Operation {
		return operation(op{kind: opSpec, pool: "a", limit: limit}, from, to)
	}
	take := func(id string, n int, from, to int64) porcupine.Operation {
		return operation(op{kind: opClaim, claim: id, slots: map[string]int{"a": n}}, from, to)
	}
	end := func(id string, from, to int64) porcupine.Operation {
		return operation(op{kind: opEnd, claim: id}, from, to)
	}
	for name, c := range map[string]struct {
		good bool
		ops  []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{
			spec(1, 0, 1), take("x", 1, 2, 3), end("x", 4, 5), take("y", 1, 6, 7),
		}},
		"at the same time, in some order": {true, []porcupine.Operation{
			spec(1, 0, 1), take("y", 1, 2, 9), take("x", 1, 2, 9), end("x", 2, 8),
		}},
		"above a lowered limit, without newcomers": {true, []porcupine.Operation{
			spec(2, 0, 1), take("x", 2, 2, 3), spec(1, 4, 5), end("x", 6, 7), take("y", 1, 6, 8),
		}},
		"two at once": {false, []porcupine.Operation{
			spec(1, 0, 1), take("x", 1, 2, 3), take("y", 1, 4, 5), end("x", 6, 7),
		}},
		"before the limit was raised": {false, []porcupine.Operation{
			spec(1, 0, 1), take("x", 2, 2, 3), spec(2, 4, 5),
		}},
		"after the limit was lowered": {false, []porcupine.Operation{
			spec(2, 0, 1), take("x", 1, 2, 3), spec(1, 4, 5), take("y", 1, 6, 7),
		}},
		"an end of nothing": {false, []porcupine.Operation{spec(1, 0, 1), end("x", 2, 3)}},
	} {
		t.Run(name, func(t *testing.T) {
			if porcupine.CheckOperations(poolsModel, c.ops) != c.good {
				t.Errorf("good is not %t", c.good)
			}
		})
	}
}

// explain looks for an order of the operations that the model allows.
func explain(t testing.TB, ops []porcupine.Operation) {
	t.Helper()
	begin := time.Now()
	switch porcupine.CheckOperationsTimeout(poolsModel, ops, deadline) {
	case porcupine.Illegal:
		t.Errorf("no order of the %d operations explains what the clients saw", len(ops))
	case porcupine.Unknown:
		t.Logf("%d operations were too many to be explained within %s", len(ops), deadline)
	case porcupine.Ok:
		t.Logf("%d operations explained in %s", len(ops), time.Since(begin).Round(time.Millisecond))
	}
}
