package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzDecodeBody holds the decoder of bodies against package json: what it takes,
// json takes as well and reads the same, and json read back is taken again.
func FuzzDecodeBody(f *testing.F) {
	for _, body := range []string{
		`{"pools":{"db":1}}`, `{"pools":{"db":1,"db":2}}`, `{"pools":{"d\u0062":1,"db":2}}`, `{"Pools":{}}`,
		`{"pools":{"db":1},"wait":"30s","ttl":"0s","pid":1,"only_kill":true,"client_token":"me","labels":{"a":"b"},"priority":-3}`,
		`{"labels":{"\ud800":"a","\ud801":"b"}}`, "{\"labels\":{\"\xff\":\"a\",\"\xfe\":\"b\"}}",
		`{"pools":{"db":-9223372036854775808},"wait":"-9223372036854775808ns","ttl":"9223372036854775807ns","pid":-9223372036854775808,"priority":9223372036854775807}`,
		` { "id" : "x" , "pools" : { } } `, `[]`, `{`, ``, `{"wait":1e400}`, `{"pools":{"db":1e2}}`, `{"x":[{"y":[1,{"z":{}}]},"]"]}`,
	} {
		f.Add([]byte(body))
	}
	d := NewDecoder[ClaimRequest](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.Decode(body)
		if err != nil {
			if p := ProblemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
			return
		}
		var want ClaimRequest
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, for json it is %+v, %v", body, got, want, err)
		}
		written, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := d.Decode(written); err != nil || !sameRequest(again, got) {
			t.Errorf("%q was written as %s, which is %+v, %v", body, written, again, err)
		}
	})
}

// sameRequest compares what is distinguishable: empty sets are equivalent to none.
func sameRequest(a, b ClaimRequest) bool {
	for _, r := range []*ClaimRequest{&a, &b} {
		if len(r.Pools) == 0 {
			r.Pools = nil
		}
		if len(r.Labels) == 0 {
			r.Labels = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// FuzzDecodeLimits holds the decoder of bodies with lists of objects against
// package json.
func FuzzDecodeLimits(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"max_concurrent_runs":-1,"tags":null}`, `{"tags":[]}`, `{"tags":[{"key":"a","limit":1}]}`,
		`{"tags":[{"key":"a","value":"b","per_unique_value":true,"limit":1},{}]}`, `{"tags":[[{"key":1}]]}`,
		`{"max_concurrent_runs":-9223372036854775808,"tags":[{"key":"a","limit":9223372036854775807}]}`, `{"tags":[{"key":"a","limit":1,"Limit":2}]}`, `{"tags":{"key":"a"}}`, `{"tags":[{"key":"a","key":"b","limit":0}]}`,
	} {
		f.Add([]byte(body))
	}
	d := NewDecoder[LimitsChange](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.Decode(body)
		if err != nil {
			if p := ProblemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
			return
		}
		var want LimitsChange
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, for json it is %+v, %v", body, got, want, err)
		}
	})
}
