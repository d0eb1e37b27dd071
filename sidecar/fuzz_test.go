package sidecar

import (
	"testing"

	"github.com/berthhq/berth/sidecar/api"
)

func FuzzDecodeSteps(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"steps":null}`, `{"steps":[]}`, `{"steps":[{"name":"a","shell":"x"}],"max_concurrent_steps":3}`,
		`{"steps":[{"name":"a","items":{"from":1,"to":3},"external":true,"needs":["b"]},{"name":"b","items":[1,"x",{"y":[]}],"command":["a"]}]}`,
		`{"steps":[{"name":"a","backoff":"1s","timeout":7,"input":{"a":null}}]}`, `{"steps":[{"name":7}]}`, `{"steps":[null,[]]}`,
	} {
		f.Add([]byte(body))
	}
	d := api.NewDecoder[api.RunRequest](false)
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := d.Decode(body)
		if err == nil {
			_, err = graphOf(&req, len(body))
		}
		if err != nil {
			if p := api.ProblemOf(err); p.Status < 400 || p.Status > 422 || p.Detail == "" {
				t.Errorf("%q is refused with %+v", body, p)
			}
		}
	})
}
