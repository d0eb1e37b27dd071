package list

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
	"github.com/berthhq/berth/pool/wire"
)

// damages are what a fault could leave in etcd. Each returns the key that is wrong, and words of the problem; empty if the
// world has nothing to damage in this way.
var damages = map[string]func(w *world) (key, words string){
	"a spec that can't be read":   func(w *world) (string, string) { return w.spoil(w.keys.Spec("db")), "invalid character" },
	"a slot that can't be read":   func(w *world) (string, string) { return w.spoil(w.slotKey(anything)), "invalid character" },
	"a demand that can't be read": func(w *world) (string, string) { return w.spoil(w.demandsKey(1)), "invalid character" },
	"an offer that can't be read": func(w *world) (string, string) { return w.spoil(w.keys.Offers("one", "a") + "77"), "invalid character" },
	"an id that can't be read":    func(w *world) (string, string) { return w.spoil(w.keys.ID("x")), "invalid character" },
	"a role that can't be read":   func(w *world) (string, string) { return w.spoil(w.keys.Role()), "invalid character" },
	"a key that is none":          func(w *world) (string, string) { return w.spoil(w.keys.Pool("db") + "else"), "none that berth writes" },
	"a slot key that is none":     func(w *world) (string, string) { return w.spoil(w.keys.Slots("db") + "7"), "not one of a slot" },
	"demands with a key that is none": func(w *world) (string, string) {
		return w.spoil(w.keys.DemandsAll("db") + "one"), "not one of demands"
	},
	"a number that a block holds as well": func(w *world) (string, string) {
		for _, p := range w.state().pools {
			for ref, is := range p.slots {
				if ref.IsBlock() && len(is.runs) > 0 {
					twice := w.keys.Number(p.name, is.runs[0].From)
					w.twin(twice, p.name, slots.Held{Numbers: []int{is.runs[0].From}})
					return twice, "as well"
				}
			}
		}
		return "", ""
	},
	"a block of numbers that others hold": func(w *world) (string, string) {
		for _, p := range w.state().pools {
			for ref := range p.slots {
				if !ref.IsBlock() {
					run := slots.Run{From: max(0, ref.Number-1), To: ref.Number + 1} // the later key may begin before
					b := slots.Block{Area: 1, Name: 99, Runs: []slots.Run{run}, Count: run.Len()}
					key := w.keys.Block(p.name, 1, 99)
					w.twin(key, p.name, slots.Held{Blocks: []slots.Block{b}})
					return key, "holds as well"
				}
			}
		}
		return "", ""
	},
	"a number above the limit": func(w *world) (string, string) {
		limit := w.specs["db"].Limit
		if limit < 0 {
			return "", ""
		}
		key := w.keys.Number("db", limit+7)
		w.twin(key, "db", slots.Held{Numbers: []int{limit + 7}})
		return key, "after the limit was set"
	},
	"a count in a pool with a limit": func(w *world) (string, string) {
		if w.specs["db"].Limit < 0 {
			return "", ""
		}
		key := w.keys.Block("db", 0, 99)
		w.twin(key, "db", slots.Held{Blocks: []slots.Block{{Name: 99, Count: 2}}})
		return key, "a count of slots"
	},
	"more slots than the limit": func(w *world) (string, string) {
		if w.specs["db"].Limit < 0 {
			return "", ""
		}
		w.twin("", "db", slots.Held{Blocks: []slots.Block{{Name: 99, Count: w.specs["db"].Limit + 1}}})
		return w.keys.Slots("db"), "slots are held of a limit of"
	},
	"a key of a claim that is missing": func(w *world) (string, string) {
		key := w.otherKey()
		delete(w.kvs, key)
		return key, "lists it, and it is not that claim's"
	},
	"a key of a claim that another has": func(w *world) (string, string) {
		key := w.otherKey()
		if key != "" {
			ref, _ := w.keys.Ref(key)
			r := &pool.Request{ID: "thief", Slots: map[string]int{ref.Pool: 1}, Holder: pool.Holder{Host: "one", Instance: "a"}}
			if ref.IsBlock() {
				return "", ""
			}
			w.putClaim(&made{req: r, held: map[string]slots.Held{ref.Pool: {Numbers: []int{ref.Number}}}}, 0, 0)
		}
		return key, "lists it, and it is not that claim's"
	},
	"a claim without a main key": func(w *world) (string, string) {
		m := w.anyClaim(func(m *made) bool { return len(wire.Refs(m.held)) > 1 })
		if m == nil {
			return "", ""
		}
		refs := w.refs(m)
		delete(w.kvs, refs[0].Key(w.keys))
		return refs[1].Key(w.keys), "is not the main key of that"
	},
	"a key of a claim at another revision": func(w *world) (string, string) {
		key := w.otherKey()
		if key != "" {
			w.write(w.kvs[key].Lease, map[string][]byte{key: w.kvs[key].Value})
		}
		return key, "torn"
	},
	"a key of a claim on another lease": func(w *world) (string, string) {
		key := w.otherKey()
		if key != "" {
			w.change(key, func(kv *kv) { kv.Lease++ })
		}
		return key, "torn"
	},
	"a key that its claim does not list": func(w *world) (string, string) {
		m := w.anyClaim(anything)
		if m == nil {
			return "", ""
		}
		main := w.refs(m)[0]
		key := w.keys.Number("many", 4)
		w.write(1, map[string][]byte{key: []byte(`{"v":2,"claim":"` + m.req.ID + `","main":"` + main.String() + `"}`)})
		return key, "does not list it"
	},
	"a record that can't be read": func(w *world) (string, string) {
		m := w.anyClaim(anything)
		if m == nil {
			return "", ""
		}
		key := w.refs(m)[0].Key(w.keys)
		w.change(key, func(kv *kv) {
			kv.Value = []byte(strings.Replace(string(kv.Value), `"since"`, `"colour"`, 1))
		})
		return key, `"colour"`
	},
	"an id without a claim": func(w *world) (string, string) {
		m := w.anyClaim(func(m *made) bool { return m.ided })
		if m == nil {
			return "", ""
		}
		for _, ref := range w.refs(m) {
			delete(w.kvs, ref.Key(w.keys))
		}
		return w.keys.ID(m.req.ID), "holds no claim"
	},
	"an id on another lease": func(w *world) (string, string) {
		m := w.anyClaim(func(m *made) bool { return m.ided })
		if m == nil {
			return "", ""
		}
		key := w.keys.ID(m.req.ID)
		w.change(key, func(kv *kv) { kv.Lease++ })
		return key, "on another lease"
	},
	"demands that lack a key": func(w *world) (string, string) {
		key := w.demandsKey(2)
		delete(w.kvs, key)
		return key, "without it they do not count"
	},
	"a key of demands that was created later": func(w *world) (string, string) {
		key := w.demandsKey(2)
		if key != "" {
			w.change(key, func(kv *kv) { kv.CreateRevision++ })
		}
		return key, "without it they do not count"
	},
	"a key of demands on another lease": func(w *world) (string, string) {
		key := w.demandsKey(2)
		if key != "" {
			w.change(key, func(kv *kv) { kv.Lease++ })
		}
		return key, "on another lease than the demands"
	},
	"a key of demands that refers to none": func(w *world) (string, string) {
		key := w.demandsKey(2)
		for _, p := range w.demands {
			if len(p.pools) > 1 && key == w.keys.Demand(p.in(p.pools[1])) {
				delete(w.kvs, w.keys.Demand(p.name))
			}
		}
		return key, "which has none for this pool"
	},
	"a demand of another instance": func(w *world) (string, string) {
		key := w.demandsKey(1)
		if key != "" {
			w.change(key, func(kv *kv) {
				kv.Value = []byte(strings.ReplaceAll(string(kv.Value), `"instance":"`, `"instance":"x`))
			})
		}
		return key, "is one of"
	},
	"a slot on no lease":   func(w *world) (string, string) { return w.unleash(w.slotKey(alone)), "it hangs on no lease" },
	"demands on no lease":  func(w *world) (string, string) { return w.unleash(w.demandsKey(1)), "it hangs on no lease" },
	"the role on no lease": func(w *world) (string, string) { return w.unleash(w.has(w.keys.Role())), "it hangs on no lease" },
	"an id on no lease": func(w *world) (string, string) {
		m := w.anyClaim(func(m *made) bool { return m.ided })
		if m == nil {
			return "", ""
		}
		return w.unleash(w.keys.ID(m.req.ID)), "it hangs on no lease"
	},
}

func alone(m *made) bool { return len(wire.Refs(m.held)) == 1 }

// spoil makes a value unreadable.
func (w *world) spoil(key string) string {
	if key != "" {
		w.write(1, map[string][]byte{key: []byte("pear")})
	}
	return key
}

// change changes a key without a trace.
func (w *world) change(key string, f func(*kv)) {
	old := w.kvs[key]
	is := &kv{Key: old.Key, Value: old.Value, CreateRevision: old.CreateRevision, ModRevision: old.ModRevision, Lease: old.Lease}
	f(is)
	w.kvs[key] = is
}

func (w *world) unleash(key string) string {
	if key != "" {
		w.change(key, func(kv *kv) { kv.Lease = 0 })
	}
	return key
}

// has returns a key if it exists.
func (w *world) has(key string) string {
	if w.kvs[key] == nil {
		return ""
	}
	return key
}

// twin puts a claim on slots that others hold, or that must not be held.
func (w *world) twin(_, name string, h slots.Held) {
	r := &pool.Request{ID: "twin", Slots: map[string]int{name: h.Slots()}, Holder: pool.Holder{Host: "one", Instance: "a"}}
	w.putClaim(&made{req: r, held: map[string]slots.Held{name: h}}, 0, 0)
}

// slotKey returns the main key of a claim.
func (w *world) slotKey(is func(*made) bool) string {
	if m := w.anyClaim(is); m != nil {
		return w.refs(m)[0].Key(w.keys)
	}
	return ""
}

// otherKey returns a key of a claim that is not its main key.
func (w *world) otherKey() string {
	m := w.anyClaim(func(m *made) bool { return len(wire.Refs(m.held)) > 1 })
	if m == nil {
		return ""
	}
	return w.refs(m)[1].Key(w.keys)
}

// demandsKey returns the key of demands in the nth of their pools.
func (w *world) demandsKey(n int) string {
	for range 20 {
		if p := w.anyDemands(); p != nil && len(p.pools) >= n {
			return w.keys.Demand(p.in(p.pools[n-1]))
		}
	}
	return ""
}

const worldSteps = 150

// Of keys that hold the same number the later one is named, also if one holds many numbers.
func TestNumbersThatAreHeldTwiceAreNamedByTheLaterKey(t *testing.T) {
	w := newByHand(t)
	w.spec("db", 100)
	block := func(name, from, to int) string {
		w.twin("", "db", slots.Held{Blocks: []slots.Block{{Name: name, Runs: []slots.Run{{From: from, To: to}}, Count: to - from}}})
		return w.keys.Block("db", 0, name)
	}
	wide := block(1, 10, 30)
	inner := block(2, 12, 14)
	behind := block(3, 20, 22)
	before := block(4, 5, 11)
	free := block(5, 30, 40)
	twice := map[string]string{}
	for _, v := range w.state().Verify() {
		if strings.HasPrefix(v.Problem, "it holds number ") {
			twice[v.Key] += v.Problem
		}
	}
	want := map[string]string{
		inner:  "it holds number 12, which " + wide + " holds as well",
		behind: "it holds number 20, which " + wide + " holds as well",
		before: "it holds number 10, which " + wide + " holds as well",
	}
	if diff := cmp.Diff(want, twice); diff != "" {
		t.Errorf("%s is free:\n%s", free, diff)
	}
}

// What instances leave that keep the rules violates nothing, at any moment.
func TestNothingIsFoundInWhatRulesAllow(t *testing.T) {
	t.Parallel()
	claims, demands, lowered := 0, 0, 0
	for seed := range uint64(400) {
		w := newWorld(seed)
		for range worldSteps {
			if w.step(); w.IntN(10) > 0 {
				continue
			}
			s := w.state()
			if found := s.Verify(); len(found) > 0 {
				t.Fatalf("seed %d: %+v", seed, found)
			}
			claims, demands = claims+len(s.claims), demands+len(s.waiting())
			for _, p := range s.pools {
				if p.limited() && p.used > p.spec.Limit {
					lowered++
				}
			}
		}
	}
	if t.Logf("%d claims, %d demands and %d pools with a lowered limit were checked", claims, demands, lowered); min(claims, demands, lowered) < 1000 {
		t.Error("too few were checked")
	}
}

// Every kind of damage is found, and named by the key that is wrong.
func TestEveryDamageIsFound(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := 0
			for seed := range uint64(25) {
				w := newWorld(seed).run(worldSteps)
				key, words := damage(w)
				if key == "" {
					continue
				}
				all := w.state().Verify()
				if !slices.ContainsFunc(all, func(v pool.Violation) bool { return v.Key == key && strings.Contains(v.Problem, words) }) {
					t.Fatalf("seed %d: %s (%s) is not found in %+v", seed, key, words, all)
				}
				found++
			}
			if found < 4 {
				t.Errorf("only %d worlds could be damaged", found)
			}
		})
	}
}
