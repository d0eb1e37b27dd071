package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/slots"
)

// Version is that of the layout, and of all values below pools/.
const Version = 2

var now = store.V{Version: Version}

// MaxClaimKeys bounds the keys of a claim: those of slots, and a block in each area of each pool.
const MaxClaimKeys = slots.MaxKeys + pool.MaxPools*slots.MaxAreas

// Record is all of a claim, as its main key has it.
type Record struct {
	Pools    map[string]int `json:"pools"`
	Priority int            `json:"priority,omitempty"`
	Holder   pool.Holder    `json:"holder"`
	Since    time.Time      `json:"since"`
	// Admitted is the revision at which the slots were taken, and Fence the fencing token of the holder, if the keys
	// were put again since by another holder, or by the same one.
	Admitted int64       `json:"admitted,omitempty"`
	Fence    store.Fence `json:"fence,omitempty"`
	// Keys lists all keys of the claim if it has more than one, in the form of [Ref].
	Keys []string `json:"keys,omitempty"`
}

// Fences returns the fencing token of the holder whose keys were put at a revision.
func (r *Record) Fences(revision int64) store.Fence {
	if r.Fence == 0 {
		return store.FenceAt(revision)
	}
	return r.Fence
}

// Refs returns all keys of the claim whose main key is main.
func (r *Record) Refs(main Ref) ([]Ref, error) {
	if len(r.Keys) == 0 {
		return []Ref{main}, nil
	}
	if len(r.Keys) > MaxClaimKeys {
		return nil, fmt.Errorf("keys: a claim has at most %d, and not %d", MaxClaimKeys, len(r.Keys))
	}
	refs, own := make([]Ref, 0, len(r.Keys)), false
	for _, s := range r.Keys {
		ref, err := ParseRef(s)
		if err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		refs, own = append(refs, ref), own || ref == main
	}
	if !own {
		return nil, fmt.Errorf("keys: %s is not one of them", main)
	}
	return refs, nil
}

// Slot is the value of a slot key or a block.
type Slot struct {
	Claim string
	// Block has the numbers of a block, or its count; it is empty for a slot key.
	Block slots.Block
	// Main is the main key of the claim, in another key of it.
	Main Ref
	// Demand is the one that the claim has ended, in its main key; the zero value is none. The key of the demand may
	// list it still.
	Demand DemandRef
	// Record is that of the claim, in its main key, as JSON: see [Slot.Decode].
	Record []byte
}

// slotValue is a Slot in etcd.
type slotValue struct {
	store.V
	Claim  string          `json:"claim"`
	Runs   [][2]int        `json:"runs,omitempty"` // the first number and the one behind the last
	Count  int             `json:"count,omitempty"`
	Main   string          `json:"main,omitempty"`
	Demand *DemandRef      `json:"demand,omitempty"`
	Record json.RawMessage `json:"record,omitempty"`
}

// DecodeSlot reads the value of a slot key or a block.
func (k Keys) DecodeSlot(key string, data []byte, created int64) (Ref, Slot, error) {
	ref, err := k.Ref(key)
	if err != nil {
		return Ref{}, Slot{}, err
	}
	var v slotValue
	if err := store.DecodeVersion(Version, key, data, &v); err != nil {
		return ref, Slot{}, err
	}
	s, err := v.slot(ref, created)
	if err != nil {
		return ref, Slot{}, &store.CorruptError{Key: key, Reason: err}
	}
	return ref, s, nil
}

func (v *slotValue) slot(ref Ref, created int64) (s Slot, err error) {
	s = Slot{Claim: v.Claim, Record: v.Record}
	if err := pool.ValidateID(v.Claim); err != nil {
		return s, err
	}
	if (v.Record == nil) == (v.Main == "") {
		return s, errors.New("it must have either a record or the main key of the claim")
	}
	if v.Demand != nil {
		if s.Demand = *v.Demand; v.Main != "" || !s.Demand.valid() || s.Demand.Pool != ref.Pool {
			return s, errors.New("demand must name one of the pool of the key, in the main key")
		}
	}
	if v.Main != "" {
		if s.Main, err = ParseRef(v.Main); err != nil {
			return s, fmt.Errorf("main: %w", err)
		}
	}
	if !ref.IsBlock() {
		if len(v.Runs) > 0 || v.Count != 0 {
			return s, errors.New("a slot key must have neither runs nor a count")
		}
		return s, nil
	}
	s.Block, err = v.block(ref, created)
	return s, err
}

func (v *slotValue) block(ref Ref, created int64) (slots.Block, error) {
	b := slots.Block{Area: ref.Area, Name: ref.Number, Count: v.Count, Created: created}
	if len(v.Runs) == 0 {
		if b.Count < 1 || b.Count > pool.MaxLimit {
			return b, fmt.Errorf("count must be from 1 to %d, and not %d", pool.MaxLimit, b.Count)
		}
		return b, nil
	}
	if v.Count != 0 || len(v.Runs) > slots.MaxRuns {
		return b, fmt.Errorf("a block must have a count, or 1 to %d runs", slots.MaxRuns)
	}
	end := 0
	for _, r := range v.Runs {
		if r[0] < end || r[1] <= r[0] || r[1] > slots.MaxNumbersOfPool {
			return b, fmt.Errorf("runs must be ascending ranges of numbers below %d, and not [%d,%d]", slots.MaxNumbersOfPool, r[0], r[1])
		}
		end = r[1]
		b.Runs = append(b.Runs, slots.Run{From: r[0], To: r[1]})
		b.Count += r[1] - r[0]
	}
	return b, nil
}

// Decode reads the record of a claim strictly; key is named by the error.
func (s *Slot) Decode(key string) (*Record, error) {
	var r Record
	d := json.NewDecoder(bytes.NewReader(s.Record))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil {
		err = r.check(s.Claim)
	}
	if err != nil {
		return nil, &store.CorruptError{Key: key, Reason: fmt.Errorf("record: %w", err)}
	}
	return &r, nil
}

func (r *Record) check(claim string) error {
	req := pool.Request{ID: claim, Slots: r.Pools, Priority: r.Priority, Holder: r.Holder}
	if err := req.Validate(); err != nil {
		return err
	}
	if r.Admitted < 0 || r.Fence < 0 {
		return errors.New("admitted and fence must be 0 or more")
	}
	return nil
}

// Time returns a time as records have it.
func Time(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// Spelled is what the values of a claim have in common, as JSON. The goroutine that asks for the claim spells it, so
// that the one that commits many has less to do.
type Spelled struct {
	id            string
	pools, holder []byte
	priority      int
}

// Spell spells a request.
func Spell(r *pool.Request) Spelled {
	return Spelled{id: r.ID, pools: store.Encode(r.Slots), holder: store.Encode(r.Holder), priority: r.Priority}
}

// Len returns how many bytes the spelled parts have.
func (c Spelled) Len() int { return len(c.id) + len(c.pools) + len(c.holder) }

// Put is one key of a claim with its value.
type Put struct {
	Ref
	Value []byte
}

// Written is what a put of the keys of a claim says besides its request.
type Written struct {
	Since time.Time
	// Admitted and Fence are those of a [Record].
	Admitted int64
	Fence    store.Fence
	// Demand is that of a [Slot].
	Demand DemandRef
}

// Puts returns the keys and values of a claim on what it takes of each pool. The first one is the main key. The times
// of a record are in milliseconds.
func (c Spelled) Puts(taken map[string]slots.Held, w Written) []Put {
	refs := refsOf(taken)
	record := Record{Since: Time(w.Since), Admitted: w.Admitted, Fence: w.Fence}
	if len(refs) > 1 {
		for _, r := range refs {
			record.Keys = append(record.Keys, r.Ref.String())
		}
	}
	puts := make([]Put, 0, len(refs))
	main := refs[0].Ref.String()
	for i, r := range refs {
		b := make([]byte, 0, 256+len(c.holder)+24*len(record.Keys))
		b = append(append(append(b, `{"v":2,"claim":"`...), c.id...), '"')
		b = appendBlock(b, r.block)
		if i == 0 {
			b = w.Demand.append(b)
			b = c.appendRecord(append(b, `,"record":`...), &record)
		} else {
			b = append(append(append(b, `,"main":"`...), main...), '"')
		}
		puts = append(puts, Put{r.Ref, append(b, '}')})
	}
	return puts
}

// Refs returns the keys of what is held of each pool, in their order. The first one is the main key.
func Refs(held map[string]slots.Held) (refs []Ref) {
	for _, t := range refsOf(held) {
		refs = append(refs, t.Ref)
	}
	return refs
}

// taken is one key of what is taken, with its block.
type taken struct {
	Ref
	block *slots.Block
}

func refsOf(of map[string]slots.Held) (refs []taken) {
	for _, name := range sortedNames(of) {
		for _, n := range of[name].Numbers {
			refs = append(refs, taken{Ref: Ref{name, -1, n}})
		}
		for i := range of[name].Blocks {
			b := &of[name].Blocks[i]
			refs = append(refs, taken{Ref{name, b.Area, b.Name}, b})
		}
	}
	return refs
}

func appendBlock(b []byte, block *slots.Block) []byte {
	switch {
	case block == nil:
		return b
	case len(block.Runs) == 0:
		return strconv.AppendInt(append(b, `,"count":`...), int64(block.Count), 10)
	}
	separator := `,"runs":[[`
	for _, r := range block.Runs {
		b = strconv.AppendInt(append(b, separator...), int64(r.From), 10)
		b = strconv.AppendInt(append(b, ','), int64(r.To), 10)
		separator = `],[`
	}
	return append(b, `]]`...)
}

func (c Spelled) appendRecord(b []byte, r *Record) []byte {
	b = append(append(b, `{"pools":`...), c.pools...)
	if c.priority != 0 {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(c.priority), 10)
	}
	b = append(append(b, `,"holder":`...), c.holder...)
	b = append(r.Since.AppendFormat(append(b, `,"since":"`...), time.RFC3339Nano), '"')
	if r.Admitted != 0 {
		b = strconv.AppendInt(append(b, `,"admitted":`...), r.Admitted, 10)
	}
	if r.Fence != 0 {
		b = strconv.AppendInt(append(b, `,"fence":`...), int64(r.Fence), 10)
	}
	separator := `,"keys":["`
	for _, k := range r.Keys {
		b = append(append(b, separator...), k...)
		separator = `","`
	}
	if len(r.Keys) > 0 {
		b = append(b, `"]`...)
	}
	return append(b, '}')
}
