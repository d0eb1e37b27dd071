package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/list"
)

// hostile is a writer who may write all keys of the pool db, and those of one host.
type hostile struct {
	*bubble
	*rand.Rand
	values [][]byte
	keys   []string
}

// learn takes over what others have put.
func (h *hostile) learn(prefix string) {
	all, err := store.ReadAll(h.Context(), h.b, prefix)
	h.must(err)
	for _, kv := range all.KVs {
		h.keys, h.values = append(h.keys, string(kv.Key)), append(h.values, kv.Value)
	}
}

var (
	digits = regexp.MustCompile(`\d+`)
	odd    = []string{"0", "1", "-1", "7", "63", "64", "999999", "1000000", "2147483648", "9223372036854775807", "9223372036854775808", "1e9", `""`, "null", "{}", "[]"}
	named  = []string{"db", "ok", "gone", "", "host-0", "evil", "i", "~", "/", "\x00", "\xff"}
)

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// value returns a value that is almost one of those that it knows.
func (h *hostile) value() []byte {
	v := bytes.Clone(pick(h.Rand, h.values))
	for range h.IntN(4) {
		switch at := digits.FindAllIndex(v, -1); h.IntN(4) {
		case 0:
			if len(v) > 0 {
				v[h.IntN(len(v))] = byte(h.IntN(256))
			}
		case 1:
			v = v[:h.IntN(len(v)+1)]
		case 2:
			v = bytes.ReplaceAll(v, []byte(`"db"`), []byte(`"`+pick(h.Rand, named)+`"`))
		default:
			if len(at) > 0 {
				a := at[h.IntN(len(at))]
				v = append(append(bytes.Clone(v[:a[0]]), pick(h.Rand, odd)...), v[a[1]:]...)
			}
		}
	}
	return v
}

// key returns a key that it may write.
func (h *hostile) key() string {
	k := h.bubble.keys
	switch h.IntN(12) {
	case 0:
		return k.Spec("db")
	case 1:
		return k.Pending("db")
	case 2:
		return fmt.Sprintf("%s%06d", k.Slots("db"), h.IntN(3))
	case 3:
		return fmt.Sprintf("%sb/%s/%s", k.Slots("db"), pick(h.Rand, odd), pick(h.Rand, odd))
	case 4:
		return k.Demands("db", "host-0", "i") + pick(h.Rand, odd)
	case 5:
		return k.Demands("db", pick(h.Rand, named), pick(h.Rand, named)) + pick(h.Rand, odd)
	case 6:
		return k.Offers("host-1", "i") + pick(h.Rand, []string{"0", "1", "passed", "advance~db", "advance~ok", "x", ""})
	case 7:
		return k.Revocation("host-1", pick(h.Rand, []string{"a", "b", "x", ""}))
	case 8:
		return k.ID(pick(h.Rand, []string{"x", "y", ""}))
	default:
		key := pick(h.Rand, h.keys)
		if i := h.IntN(len(key)); h.IntN(3) == 0 && strings.HasPrefix(key[:i], k.Pool("db")) {
			key = key[:i] + pick(h.Rand, named) + key[i:]
		}
		return key
	}
}

// write writes something, and sometimes deletes it again.
func (h *hostile) write() {
	key := h.key()
	op := store.Put(key, h.value(), 0)
	if h.IntN(8) == 0 {
		op = store.Delete(key)
	}
	_, err := h.b.Txn(h.Context(), &pb.TxnRequest{Success: []*pb.RequestOp{op}})
	h.must(err)
}

// Whatever is written below one pool, and by one host below its own keys, other pools grant their slots, in their order, to other
// hosts.
func TestOnePoolDoesNotDisturbAnother(t *testing.T) {
	for seed := range uint64(100) {
		withEngines(t, 3, 2, func(w *bubble) {
			spec(t, w.b, w.keys, "ok", 1)
			h := &hostile{bubble: w, Rand: rand.New(rand.NewPCG(seed, 1))}
			own := requestOf("own", "ok")
			first := w.ask(w.engines[0], own).got()
			for i := range 3 {
				w.ask(w.engines[i], requestOf(fmt.Sprint("db-", i), "db"))
				wide := requestOf(fmt.Sprint("wide-", i), "db")
				wide.Slots["db"] = 2
				w.ask(w.engines[i], wide)
			}
			both := requestOf("both", "db")
			both.Slots["ok"] = 1
			w.ask(w.engines[1], both)
			h.learn(w.keys.Pool("db"))
			h.learn(w.keys.OffersAll())
			h.learn(w.keys.Pending(""))
			var waiting []*question
			for i := range 3 {
				r := requestOf(fmt.Sprint("next-", i), "ok")
				r.Priority = 9 - i
				waiting = append(waiting, w.ask(w.engines[(i+2)%3], r))
			}
			for range 40 {
				for range 1 + h.IntN(4) {
					h.write()
				}
				w.pass(time.Duration(h.IntN(300)) * time.Millisecond)
			}
			w.release(w.engines[0], first)
			for i, q := range waiting[:2] { // the third is of the host whose keys are written
				select {
				case <-q.done:
				case <-time.After(20 * time.Second):
					w.Fatalf("seed %d: claim %d of the other pool is not granted", seed, i)
				}
				w.release(w.engines[(i+2)%3], q.got())
			}
			waiting[2].cancel()
			<-waiting[2].done
			if c := waiting[2].claim; c != nil {
				w.release(w.engines[1], c)
			}
			w.pass(10 * time.Second)
			hasty := requestOf("hasty", "ok")
			hasty.Wait = 0
			c, err := w.engines[2].Claim(w.Context(), hasty)
			if err != nil {
				w.Fatalf("seed %d: %v", seed, err)
			}
			s, err := list.Read(w.Context(), w.b, w.keys.Keys)
			w.must(err)
			if _, err := s.Why("hasty"); err != nil {
				w.Errorf("seed %d: %v", seed, err)
			}
			s.Pools()
			s.Verify()
			if s.Space().Fits(hasty.Slots) {
				w.Errorf("seed %d: a slot is free", seed)
			}
			w.release(w.engines[2], c)
			w.kill[1]()
			w.start("host-1")
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A key that others have put below the demands of an instance ends no lease of the claims of that.
func TestWhatOthersPutIntoTheQueueEndsNoClaim(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		i := r.start("a")
		c := i.take("x", 1)
		r.must(store.Commit(r.Context(), r.root, nil, store.Put(r.keys.Demands("db", "a", "i")+"7", []byte("{}"), c.Lease)))
		i.end()
		i = r.start("a")
		claims, err := i.Held(r.Context())
		r.must(nil, err)
		if len(claims) != 1 {
			r.Fatalf("%d claims are held on", len(claims))
		}
		time.Sleep(time.Minute)
		r.isHeld(claims...)
	})
}
