package sidecar

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/berthhq/berth/coordinator/step"
)

// FuzzDecodeBody holds the decoder of bodies against package json: what it takes,
// json takes as well and reads the same, and json read back is taken again.
func FuzzDecodeBody(f *testing.F) {
	for _, body := range []string{
		`{"pools":{"db":1}}`, `{"pools":{"db":1,"db":2}}`, `{"pools":{"d\u0062":1,"db":2}}`, `{"Pools":{}}`,
		`{"pools":{"db":1},"wait":"30s","ttl":"0s","pid":1,"only_kill":true,"asker":"me","labels":{"a":"b"},"priority":-3}`,
		`{"labels":{"\ud800":"a","\ud801":"b"}}`, "{\"labels\":{\"\xff\":\"a\",\"\xfe\":\"b\"}}",
		` { "id" : "x" , "pools" : { } } `, `[]`, `{`, ``, `{"wait":1e400}`, `{"pools":{"db":1e2}}`, `{"x":[{"y":[1,{"z":{}}]},"]"]}`,
	} {
		f.Add([]byte(body))
	}
	d := newDecoder[ClaimRequest](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.decode(body)
		if err != nil {
			if p := problemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
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
		if again, err := d.decode(written); err != nil || !sameRequest(again, got) {
			t.Errorf("%q was written as %s, which is %+v, %v", body, written, again, err)
		}
	})
}

// sameRequest compares what can be told apart: empty sets are as good as none.
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

func FuzzParseCursor(f *testing.F) {
	f.Add(cursor{Fence: 7, ID: "a"}.String())
	f.Add(cursor{Waiting: true, Priority: -1, Since: 12, ID: "b"}.String())
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text)
		if err != nil {
			return
		}
		if again, err := parseCursor(c.String()); err != nil || again.compare(c) != 0 {
			t.Errorf("%q is %+v, and that is %+v, %v", text, c, again, err)
		}
	})
}

func FuzzParseRunCursor(f *testing.F) {
	f.Add(runCursor{ID: "a"}.String())
	f.Add(runCursor{Queue: true, Priority: -1, Created: 12, ID: "b"}.String())
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseRunCursor(text)
		if err != nil || text == "" {
			return
		}
		if again, err := parseRunCursor(c.String()); err != nil || again != c || c.ID == "" {
			t.Errorf("%q is %+v, and that is %+v, %v", text, c, again, err)
		}
	})
}

// FuzzDecodeLimits holds the decoder of bodies with lists of objects against
// package json.
func FuzzDecodeLimits(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"max_concurrent_runs":-1,"tags":null}`, `{"tags":[]}`, `{"tags":[{"key":"a","limit":1}]}`,
		`{"tags":[{"key":"a","value":"b","per_unique_value":true,"limit":1},{}]}`, `{"tags":[[{"key":1}]]}`,
		`{"tags":[{"key":"a","limit":1,"Limit":2}]}`, `{"tags":{"key":"a"}}`, `{"tags":[{"key":"a","key":"b","limit":0}]}`,
	} {
		f.Add([]byte(body))
	}
	d := newDecoder[LimitsChange](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := d.decode(body)
		if err != nil {
			if p := problemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
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

func FuzzDecodeSteps(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"steps":null}`, `{"steps":[]}`, `{"steps":[{"name":"a","shell":"x"}],"max_concurrent_steps":3}`,
		`{"steps":[{"name":"a","items":{"from":1,"to":3},"external":true,"needs":["b"]},{"name":"b","items":[1,"x",{"y":[]}],"command":["a"]}]}`,
		`{"steps":[{"name":"a","backoff":"1s","timeout":7,"input":{"a":null}}]}`, `{"steps":[{"name":7}]}`, `{"steps":[null,[]]}`,
	} {
		f.Add([]byte(body))
	}
	d := newDecoder[RunRequest](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := d.decode(body)
		if err == nil {
			_, err = req.graph(len(body))
		}
		if err != nil {
			if p := problemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
		}
	})
}

func FuzzParseStepCursor(f *testing.F) {
	for _, text := range []string{"", "0", "7", "07", "-1", "100001", "x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseStepCursor(text); err == nil && (n < 0 || n > step.MaxItems) {
			t.Errorf("%q is %d", text, n)
		}
	})
}
