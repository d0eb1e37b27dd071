package wire

import (
	"reflect"
	"strings"
	"testing"
)

// Each method that spells a key or a prefix is called, those of [store.Keys] with them: a new one is judged too.
func TestTheDispatchersRangeHasItsKeysAndNoOther(t *testing.T) {
	follows := []string{keys.OffersAll(), keys.Pending(""), keys.Pools()}
	in, out := 0, 0
	v := reflect.ValueOf(keys)
	for i := range v.NumMethod() {
		name, m := v.Type().Method(i).Name, v.Method(i)
		outs := m.Type().NumOut()
		if outs == 0 || m.Type().Out(0).Kind() != reflect.String || m.Type().Out(outs-1).Kind() == reflect.Interface || m.Type().IsVariadic() {
			continue // it spells no key
		}
		for _, key := range m.Call(samples(m.Type())) {
			within, wants := keys.DispatcherRange().Contains([]byte(key.String())), false
			for _, prefix := range follows {
				wants = wants || strings.HasPrefix(key.String(), prefix)
			}
			if within != wants {
				t.Errorf("%s: %q is in the range: %t, want %t", name, key, within, wants)
			}
			if within {
				in++
			} else {
				out++
			}
		}
	}
	if in < 15 || out < 60 {
		t.Errorf("only %d keys in the range and %d outside are spelled", in, out)
	}
	r := keys.DispatcherRange()
	for key, want := range map[string]bool{"/b/offers": false, "/b/offers/": true, "/b/pools/z/spec": true, "/b/pools/\xff": true, "/b/pools0": false, "/c/pools/db/spec": false} {
		if r.Contains([]byte(key)) != want {
			t.Errorf("%q is in the range: %t", key, !want)
		}
	}
}

// samples returns arguments for a method: short names, small numbers and zero structs.
func samples(of reflect.Type) []reflect.Value {
	args := make([]reflect.Value, of.NumIn())
	for i := range args {
		args[i] = reflect.New(of.In(i)).Elem()
		switch of.In(i).Kind() {
		case reflect.String:
			args[i].SetString("x")
		case reflect.Int, reflect.Int64:
			args[i].SetInt(1)
		}
	}
	return args
}
