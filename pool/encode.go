package pool

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// Slots and waiters are what berth writes most, and a batch waits until all of its
// are spelled. So that is done by hand, from parts that are made where the claim is
// asked for: it costs a tenth of what encoding/json takes.

// spelled are the parts of a claim that never change, as JSON has them.
type spelled struct{ pools, holder []byte }

func spell(r *Request) spelled {
	return spelled{pools: store.Encode(r.Slots), holder: store.Encode(r.Holder)}
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

func appendRecord(b []byte, claim spelled, priority int, since stamp, admitted int64, keys []string) []byte {
	b = append(append(b, `{"pools":`...), claim.pools...)
	if priority != 0 {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(priority), 10)
	}
	b = append(append(b, `,"holder":`...), claim.holder...)
	b = append(append(b, `,"since":`...), since.text...)
	if admitted != 0 {
		b = strconv.AppendInt(append(b, `,"admitted":`...), admitted, 10)
	}
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

func appendSlot(b []byte, n int, id string) []byte {
	b = strconv.AppendInt(append(b, slotPrefix...), int64(n), 10)
	return append(append(append(b, `,"claim":"`...), id...), '"')
}

// encodeMain is the value of a claim's main key.
func encodeMain(n int, id string, claim spelled, priority int, since stamp, admitted int64, keys []string) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(id)+len(claim.pools)+len(claim.holder)+128+32*len(keys))
	b = append(appendSlot(b, n, id), `,"record":`...)
	return append(appendRecord(b, claim, priority, since, admitted, keys), '}')
}

// encodeOther is the value of a claim's other keys.
func encodeOther(n int, id, main string) []byte {
	b := make([]byte, 0, len(slotPrefix)+len(id)+len(main)+48)
	b = append(append(appendSlot(b, n, id), `,"main":"`...), main...)
	return append(b, `"}`...)
}

// encodeWaiter is the value of a waiter.
func encodeWaiter(claim spelled, reserve, exclusive bool, queued stamp) []byte {
	b := make([]byte, 0, len(claim.pools)+len(claim.holder)+128)
	b = append(append(b, `{"v":1,"pools":`...), claim.pools...)
	b = append(append(b, `,"holder":`...), claim.holder...)
	if reserve {
		b = append(b, `,"reserve":true`...)
	}
	if exclusive {
		b = append(b, `,"exclusive":true`...)
	}
	b = append(append(b, `,"queued":`...), queued.text...)
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
