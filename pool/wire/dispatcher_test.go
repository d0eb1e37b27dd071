package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWhoDispatchesIsReadAsWritten(t *testing.T) {
	at := time.Unix(5, 0).UTC()
	for _, r := range []Role{
		{Host: "one", Instance: "i", Kind: Coordinator, Since: at},
		{Host: "one", Instance: "i", Kind: Command, Since: at, TakeOvers: []time.Time{at}, Ends: true, NextHost: "two", NextInstance: "j"},
	} {
		got, err := DecodeRole("k", EncodeRole(r))
		if diff := cmp.Diff(r, got); diff != "" || err != nil {
			t.Errorf("%v (-written +read):\n%s", err, diff)
		}
	}
	mark, err := DecodeMark("k", EncodeMark(Mark{Demands: true}))
	id, errID := DecodeID("k", EncodeID(ID{Host: "one", Instance: "i"}))
	if !mark.Demands || id != (ID{"one", "i"}) || err != nil || errID != nil {
		t.Errorf("%v %v, %v %v", mark, err, id, errID)
	}
}

func TestWhatCannotBeADispatcherIsRefused(t *testing.T) {
	good := Role{Host: "one", Instance: "i", Kind: Server}
	for want, change := range map[string]func(*Role){
		"host: ":             func(r *Role) { r.Host = "One" },
		"instance: ":         func(r *Role) { r.Instance = "" },
		"kind must be":       func(r *Role) { r.Kind = "other" },
		"take_overs must be": func(r *Role) { r.TakeOvers = make([]time.Time, maxTakeOvers+1) },
		"set together":       func(r *Role) { r.Ends, r.NextHost = true, "two" },
		"only if it ends":    func(r *Role) { r.NextHost, r.NextInstance = "two", "j" },
		"next: host: ":       func(r *Role) { r.Ends, r.NextHost, r.NextInstance = true, "/", "j" },
	} {
		r := good
		change(&r)
		if _, err := DecodeRole("key-1", EncodeRole(r)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "key-1") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := DecodeID("k", EncodeID(ID{Host: "a/b", Instance: "i"})); err == nil {
		t.Error("the name of a host has a slash")
	}
	if _, err := DecodeMark("k", []byte(`{"v":1}`)); err == nil {
		t.Error("a mark of another layout is read")
	}
}

// FuzzDecodeDispatcher reads the values of who dispatches and of ids. What is read is written as it was read.
func FuzzDecodeDispatcher(f *testing.F) {
	f.Add(EncodeRole(Role{Host: "one", Instance: "i", Kind: Server}))
	f.Add(EncodeMark(Mark{Demands: true}))
	f.Add(EncodeID(ID{"one", "i"}))
	f.Add(EncodeEmpty())
	f.Add(EncodeRevocation(Revocation{Fence: 1024, Forced: true}))
	f.Add(EncodeRevocation(Revocation{Fence: Waiting}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := DecodeRole("k", data); err == nil {
			if again, err := DecodeRole("k", EncodeRole(r)); err != nil || again.Host != r.Host {
				t.Errorf("%s: %v", data, err)
			}
		}
		if m, err := DecodeMark("k", data); err == nil {
			if again, err := DecodeMark("k", EncodeMark(m)); err != nil || again != m {
				t.Errorf("%s: %v", data, err)
			}
		}
		if r, err := DecodeRevocation("k", data); err == nil {
			if again, err := DecodeRevocation("k", EncodeRevocation(r)); err != nil || again != r {
				t.Errorf("%s: %v", data, err)
			}
		}
		if i, err := DecodeID("k", data); err == nil {
			if again, err := DecodeID("k", EncodeID(i)); err != nil || again != i {
				t.Errorf("%s: %v", data, err)
			}
		}
	})
}
