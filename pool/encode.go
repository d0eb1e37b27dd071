package pool

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Slot keys are what berth writes most, and a batch waits until all of its are
// written. So they are spelled by hand, from a part that is made where the claim
// is asked for: that costs a tenth of what encoding/json takes.

// encodeHead begins a record: all that is known of it before it is granted.
func encodeHead(r *record) []byte {
	head := store.Encode(struct {
		Pools    map[string]int `json:"pools"`
		Priority int            `json:"priority,omitempty"`
		Holder   Holder         `json:"holder"`
	}{r.Pools, r.Priority, r.Holder})
	return head[:len(head)-1] // it goes on with [appendRecord]
}

// stamp is the time at which a batch grants, which goes into every record of it.
type stamp struct {
	at   time.Time
	text []byte // as JSON has it
}

func stampOf(now time.Time) stamp {
	at := now.UTC().Truncate(time.Millisecond)
	return stamp{at: at, text: at.AppendFormat(make([]byte, 0, 32), `"`+time.RFC3339Nano+`"`)}
}

// appendRecord ends what [encodeHead] began.
func appendRecord(b, head []byte, since stamp, keys []string) []byte {
	b = append(append(append(b, head...), `,"since":`...), since.text...)
	for i, key := range keys {
		if i == 0 {
			b = append(b, `,"keys":["`...)
		} else {
			b = append(b, `","`...)
		}
		b = append(b, key...)
	}
	if len(keys) > 0 {
		b = append(b, `"]`...)
	}
	return append(b, '}')
}

// slotPrefix begins every slot value. Ids of claims and names of slots need no
// escapes: see [ValidateID].
const slotPrefix = `{"v":1,"n":`

func appendSlot(b []byte, n int, claim string) []byte {
	b = strconv.AppendInt(append(b, slotPrefix...), int64(n), 10)
	return append(append(append(b, `,"claim":"`...), claim...), '"')
}

// encodeMain is the value of a claim's main key.
func encodeMain(n int, claim string, head []byte, since stamp, keys []string) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(claim)+len(head)+96+32*len(keys))
	b = append(appendSlot(b, n, claim), `,"record":`...)
	return append(appendRecord(b, head, since, keys), '}')
}

// encodeOther is the value of a claim's other keys.
func encodeOther(n int, claim, main string) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(claim)+len(main)+48)
	b = append(append(appendSlot(b, n, claim), `,"main":"`...), main...)
	return append(b, `"}`...)
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
