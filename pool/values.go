package pool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// slotRef names one slot key.
type slotRef struct {
	pool         string
	group, index int
}

// String is the form in which a claim lists its keys.
func (r slotRef) String() string {
	return r.pool + "/" + strconv.Itoa(r.group) + "/" + strconv.Itoa(r.index)
}

// compare ranks two slots by pool, group and index.
func (r slotRef) compare(o slotRef) int {
	return cmp.Or(cmp.Compare(r.pool, o.pool), cmp.Compare(r.group, o.group), cmp.Compare(r.index, o.index))
}

func parseSlotRef(s string) (slotRef, error) {
	fields := strings.Split(s, "/")
	if len(fields) == 3 {
		g, errG := strconv.Atoi(fields[1])
		i, errI := strconv.Atoi(fields[2])
		r := slotRef{pool: fields[0], group: g, index: i}
		if errG == nil && errI == nil && g >= 0 && i >= 0 && isPoolName(r.pool) && r.String() == s {
			return r, nil
		}
	}
	return slotRef{}, fmt.Errorf("%q names no slot", problem.Clip(s))
}

// record is all of a claim, as its main key has it.
type record struct {
	Pools    map[string]int `json:"pools"`
	Priority int            `json:"priority,omitempty"`
	Holder   Holder         `json:"holder"`
	Since    time.Time      `json:"since"`
	// Admitted is the revision at which the slots were taken, if they were taken over
	// since: then the keys were put again.
	Admitted int64 `json:"admitted,omitempty"`
	// Fence is the fencing token of the holder, if it is another one than [store.FenceAt] the
	// revision of the keys: they were put again since.
	Fence store.Fence `json:"fence,omitempty"`
	// Granted is a revision before the grant, of a holder that was granted its slots without a
	// write.
	Granted int64 `json:"granted,omitempty"`
	// Keys lists all keys of the claim if it has more than one.
	Keys []string `json:"keys,omitempty"`
}

// slotValue is the value of a slot key in etcd. The main key of a claim carries the
// record; the others point to it. What decides about slots is outside of the record,
// so that the record is decoded only on demand.
type slotValue struct {
	store.V
	N      int             `json:"n"`
	Claim  string          `json:"claim"`
	Record json.RawMessage `json:"record,omitempty"`
	Main   string          `json:"main,omitempty"`
}

// decodeSlot reads a slot key. The spelling that berth writes is read by hand: a
// host sees every slot that any other takes. encoding/json reads all other spellings.
func decodeSlot(key string, data []byte) (slotValue, error) {
	if v, ok := parseSlot(data); ok {
		return v, nil
	}
	return decodeSlotJSON(key, data)
}

func decodeSlotJSON(key string, data []byte) (slotValue, error) {
	var v slotValue
	if err := store.Decode(key, data, &v); err != nil {
		return slotValue{}, err
	}
	if err := v.check(); err != nil {
		return slotValue{}, &store.CorruptError{Key: key, Reason: err}
	}
	return v, nil
}

func (v *slotValue) check() error {
	if v.N < 1 || v.N > MaxLimit {
		return fmt.Errorf("n: %d slots can't be held", v.N)
	}
	if v.Record == nil {
		if _, err := parseSlotRef(v.Main); err != nil {
			return fmt.Errorf("main: %w", err)
		}
	} else if v.Main != "" {
		return errors.New("it is both a claim's main key and another's")
	}
	return ValidateID(v.Claim)
}

// decodeRecord reads the record of a claim strictly.
func decodeRecord(key, claim string, data []byte) (*record, error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil {
		err = r.check(claim)
	}
	if err != nil {
		return nil, &store.CorruptError{Key: key, Reason: fmt.Errorf("record: %w", err)}
	}
	return &r, nil
}

func (r *record) check(claim string) error {
	req := Request{ID: claim, Slots: r.Pools, Priority: r.Priority, Holder: r.Holder}
	if err := req.validate(); err != nil {
		return err
	}
	if r.Admitted < 0 {
		return fmt.Errorf("admitted: %d is no revision", r.Admitted)
	}
	if r.Fence < 0 {
		return fmt.Errorf("fence: %d is no fencing token", r.Fence)
	}
	if r.Granted < 0 {
		return fmt.Errorf("granted: %d is no revision", r.Granted)
	}
	if len(r.Keys) > MaxKeys {
		return fmt.Errorf("keys: a claim has no more than %d", MaxKeys)
	}
	for _, k := range r.Keys {
		if _, err := parseSlotRef(k); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
	}
	return nil
}

// fence is the fencing token of a holder whose keys were put at a revision. A nil record is the
// one of a first holder.
func (r *record) fence(rev int64) store.Fence {
	if r == nil || r.Fence == 0 {
		return store.FenceAt(rev)
	}
	return r.Fence
}

// keysOf returns all keys of a claim, nil if it has only one.
func keysOf(slots []placed) []string {
	if len(slots) == 1 {
		return nil
	}
	keys := make([]string, len(slots))
	for i, s := range slots {
		keys[i] = s.ref.String()
	}
	return keys
}

// refs returns all keys of a claim whose main key is main.
func (r *record) refs(main slotRef) []slotRef {
	if len(r.Keys) == 0 {
		return []slotRef{main}
	}
	refs := make([]slotRef, 0, len(r.Keys))
	for _, k := range r.Keys {
		ref, _ := parseSlotRef(k) // checked when it was decoded or built
		refs = append(refs, ref)
	}
	return refs
}

// waiterValue is the value of a waiter in etcd, the same in every pool.
type waiterValue struct {
	store.V
	Pools   map[string]int `json:"pools"`
	Holder  Holder         `json:"holder"`
	Reserve bool           `json:"reserve,omitempty"`
	// Sole: see [Request.Sole].
	Sole bool `json:"sole,omitempty"`
	// Conditional: the owner confirms the grant under conditions of its own, or gives the
	// slots back.
	Conditional bool      `json:"conditional,omitempty"`
	Queued      time.Time `json:"queued"`
	// Lease is the owner's lease that the slots are to be put on, with the keys that they
	// need reserved on it.
	Lease store.LeaseID `json:"lease"`
}

// recallValue is the value of the key of a [recall].
type recallValue struct {
	store.V
	// Priority is the highest of the waiters that find too few free slots. Urgent is set while slots
	// are reserved for one of them, or one is late: see [keeps].
	Priority int  `json:"priority"`
	Urgent   bool `json:"urgent,omitempty"`
	// Keep is that of an urgent recall. Its keys are leases, as hexadecimal numbers.
	Keep map[string]int `json:"keep,omitempty"`
}

// all reports whether all slots are to be given back.
func (v *recallValue) all() bool { return v.Urgent && v.Keep == nil }

func decodeWaiter(key string, data []byte, o Order) (waiterValue, error) {
	var v waiterValue
	if err := store.Decode(key, data, &v); err != nil {
		return waiterValue{}, err
	}
	req := Request{ID: o.Claim, Slots: v.Pools, Priority: o.Priority, Holder: v.Holder}
	if err := req.validate(); err != nil {
		return waiterValue{}, &store.CorruptError{Key: key, Reason: err}
	}
	return v, nil
}

// noticeValue is the value of a notice: what a dispatcher has granted. Its revision is that of
// the slots, and so the claim's fence.
type noticeValue struct {
	store.V
	Order       string       `json:"order"` // of the waiter that was granted
	Slots       []noticeSlot `json:"slots"` // the main key first
	Since       time.Time    `json:"since"` // when it was granted, as in the claim's record
	Conditional bool         `json:"conditional,omitempty"`
}

// noticeSlot is one slot key that was granted.
type noticeSlot struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

// dispatcherValue is the value of the key of a pool's dispatcher.
type dispatcherValue struct {
	store.V
	Host     string `json:"host"`
	Instance string `json:"instance"`
}

// queuedValue is the value of the key that exists while claims wait for a pool.
type queuedValue struct{ store.V }

// decodeNotice reads a notice.
func decodeNotice(key string, data []byte) (*notice, error) {
	var v noticeValue
	if err := store.Decode(key, data, &v); err != nil {
		return nil, err
	}
	n := &notice{key: key, since: v.Since, conditional: v.Conditional}
	var err error
	n.order, err = ParseOrder(v.Order)
	for _, s := range v.Slots {
		ref, e := parseSlotRef(s.Key)
		if e == nil && (s.N < 1 || s.N > MaxLimit) {
			e = fmt.Errorf("n: %d slots can't be held", s.N)
		}
		n.slots, err = append(n.slots, placed{ref, s.N}), errors.Join(err, e)
	}
	if len(n.slots) == 0 || len(n.slots) > MaxKeys {
		err = errors.Join(err, fmt.Errorf("slots: a claim has 1 to %d", MaxKeys))
	}
	if err != nil {
		return nil, &store.CorruptError{Key: key, Reason: err}
	}
	return n, nil
}

func decodeDispatcher(key string, data []byte) (instanceName, error) {
	var v dispatcherValue
	if err := store.Decode(key, data, &v); err != nil {
		return instanceName{}, err
	}
	if !isPoolName(v.Host) || !isPoolName(v.Instance) {
		return instanceName{}, &store.CorruptError{Key: key, Reason: fmt.Errorf("%q/%q is no instance", problem.Clip(v.Host), problem.Clip(v.Instance))}
	}
	return instanceName{v.Host, v.Instance}, nil
}

// poolNames returns the pools of a claim, sorted.
func poolNames(slots map[string]int) []string { return sortedKeys(slots) }

// Slots and waiters are what berth writes most, and a batch waits until all of its values
// are encoded. So they are encoded by hand, from fragments that the requesting goroutine
// makes: that costs a tenth of what encoding/json takes.

// stamp is the time at which a batch grants, which goes into every record of it.
type stamp struct {
	at   time.Time
	text []byte // as JSON has it
}

func stampOf(now time.Time) stamp {
	at := recorded(now)
	return stamp{at: at, text: append(at.AppendFormat(append(make([]byte, 0, 32), '"'), time.RFC3339Nano), '"')}
}

// recorded returns a time as records have it.
func recorded(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }

func appendRecord(b []byte, claim spelled, r *record, since stamp) []byte {
	b = append(append(b, `{"pools":`...), claim.pools...)
	if r.Priority != 0 {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(r.Priority), 10)
	}
	b = append(append(b, `,"holder":`...), claim.holder...)
	b = append(append(b, `,"since":`...), since.text...)
	if r.Admitted != 0 {
		b = strconv.AppendInt(append(b, `,"admitted":`...), r.Admitted, 10)
	}
	if r.Fence != 0 {
		b = strconv.AppendInt(append(b, `,"fence":`...), int64(r.Fence), 10)
	}
	if r.Granted != 0 {
		b = strconv.AppendInt(append(b, `,"granted":`...), r.Granted, 10)
	}
	for i, key := range r.Keys {
		if i == 0 {
			b = append(b, `,"keys":["`...)
		} else {
			b = append(b, `","`...)
		}
		b = append(b, key...)
	}
	if len(r.Keys) > 0 {
		b = append(b, `"]`...)
	}
	return append(b, '}')
}

// slotPrefix begins every slot value. Ids of claims and names of slots need no
// escapes: see [ValidateID].
const slotPrefix = `{"v":1,"n":`

func appendSlot(b []byte, n int, id string) []byte {
	b = strconv.AppendInt(append(b, slotPrefix...), int64(n), 10)
	return append(append(append(b, `,"claim":"`...), id...), '"')
}

// encodeMain is the value of a claim's main key.
func encodeMain(n int, id string, claim spelled, r *record, since stamp) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(id)+len(claim.pools)+len(claim.holder)+160+32*len(r.Keys))
	b = append(appendSlot(b, n, id), `,"record":`...)
	return append(appendRecord(b, claim, r, since), '}')
}

// encodeOther is the value of a claim's other keys.
func encodeOther(n int, id, main string) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(id)+len(main)+48)
	b = append(append(appendSlot(b, n, id), `,"main":"`...), main...)
	return append(b, `"}`...)
}

// encodeWaiter is the value of an entry's waiter.
func encodeWaiter(e *entry) []byte {
	b := make([]byte, 0, len(e.spelled.pools)+len(e.spelled.holder)+160)
	b = append(append(b, `{"v":1,"pools":`...), e.spelled.pools...)
	b = append(append(b, `,"holder":`...), e.spelled.holder...)
	for _, flag := range []struct {
		set  bool
		name string
	}{{e.reserve, "reserve"}, {e.req.Sole, "sole"}, {e.req.conditional(), "conditional"}} {
		if flag.set {
			b = append(append(append(b, `,"`...), flag.name...), `":true`...)
		}
	}
	b = append(append(b, `,"queued":`...), stampOf(e.arrived).text...)
	b = strconv.AppendInt(append(b, `,"lease":`...), int64(e.lease), 10)
	return append(b, '}')
}

// parseSlot reads what [encodeMain] and [encodeOther] write. Of anything else it is
// false, though encoding/json may read it.
func parseSlot(data []byte) (v slotValue, ok bool) {
	rest, begins := bytes.CutPrefix(data, []byte(slotPrefix))
	n, rest, hasN := bytes.Cut(rest, []byte(`,"claim":"`))
	id, rest, hasID := bytes.Cut(rest, []byte{'"'})
	rest, ends := bytes.CutSuffix(rest, []byte{'}'})
	if !begins || !hasN || !hasID || !ends || len(n) == 0 || len(n) > 9 || n[0] == '0' {
		return v, false
	}
	v.V, v.Claim = store.Now, string(id)
	for _, digit := range n {
		if digit < '0' || digit > '9' {
			return v, false
		}
		v.N = v.N*10 + int(digit-'0')
	}
	if raw, is := bytes.CutPrefix(rest, []byte(`,"record":`)); is {
		v.Record = raw
		ok = len(raw) > 0 && raw[0] == '{' && json.Valid(raw)
	} else if main, is := bytes.CutPrefix(rest, []byte(`,"main":"`)); is {
		main, ok = bytes.CutSuffix(main, []byte{'"'})
		v.Main = string(main)
	}
	return v, ok && v.check() == nil
}

// specValue is the value of a spec in etcd.
type specValue struct {
	store.V
	Limit         int    `json:"limit"`
	LeaseDuration string `json:"lease_duration"`
	ReserveAfter  string `json:"reserve_after"`
	Retain        string `json:"retain,omitempty"`
	Paused        bool   `json:"paused,omitempty"`
	// LimitSince is the revision since which the limit holds; 0 is the revision
	// of this very value.
	LimitSince int64 `json:"limit_since,omitempty"`
	// Groups over which the limit is spread; 0 is those of a new pool: see [layout].
	Groups int `json:"groups,omitempty"`
}

func encodeSpec(s Spec, l layout, limitSince int64) []byte {
	groups := 0
	if l.spread {
		groups = l.groups
	}
	v := specValue{
		V: store.Now, Groups: groups, Limit: s.Limit, Paused: s.Paused, LimitSince: limitSince,
		LeaseDuration: s.LeaseDuration.String(),
		ReserveAfter:  FormatReserveAfter(s.ReserveAfter),
	}
	if s.Retain > 0 {
		v.Retain = s.Retain.String()
	}
	return store.Encode(v)
}

// decodeSpec reads a spec that was put at revision rev, with its layout and the revision
// since which its limit holds.
func decodeSpec(key string, data []byte, rev int64) (s Spec, l layout, limitSince int64, err error) {
	var v specValue
	if err := store.Decode(key, data, &v); err != nil {
		return Spec{}, layout{}, 0, err
	}
	lease, err := time.ParseDuration(v.LeaseDuration)
	if err != nil {
		return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: fmt.Errorf("lease_duration: %w", err)}
	}
	reserve, err := ParseReserveAfter(v.ReserveAfter)
	if err != nil {
		return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: err}
	}
	s = Spec{Limit: v.Limit, LeaseDuration: lease, ReserveAfter: reserve, Paused: v.Paused}
	if v.Retain != "" {
		if s.Retain, err = time.ParseDuration(v.Retain); err != nil {
			return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: fmt.Errorf("retain: %w", err)}
		}
	}
	if err := s.Validate(); err != nil {
		return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: err}
	}
	switch {
	case v.Groups == 0:
		l = layoutOf(s.Limit)
	case v.Groups < 1 || v.Groups > min(MaxGroups, s.Limit):
		return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: fmt.Errorf("groups: a limit of %d can't be spread over %d groups: use 1 to %d, and no more than the limit", s.Limit, v.Groups, MaxGroups)}
	default:
		l = spreadOver(s.Limit, v.Groups)
	}
	if v.LimitSince < 0 || v.LimitSince > rev {
		return Spec{}, layout{}, 0, &store.CorruptError{Key: key, Reason: fmt.Errorf("limit_since: %d is no earlier revision", v.LimitSince)}
	}
	if limitSince = v.LimitSince; limitSince == 0 {
		limitSince = rev
	}
	return s, l, limitSince, nil
}
