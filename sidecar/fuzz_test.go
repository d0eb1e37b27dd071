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
		`{"steps":[{"name":"a","items":{"from":-9223372036854775808,"to":9223372036854775807,"by":-1},"external":true,"retries":-9223372036854775808}]}`,
		`{"steps":[{"name":"a","backoff":"-9223372036854775808ns","timeout":"9223372036854775807ns","external":true,"pools":{"x":-9223372036854775808}}],"priority":9223372036854775807}`,
		`{"delay":"-9223372036854775808ns","not_before":"9999-12-31T23:59:59-23:59"}`, `{"not_before":"0000-01-01T00:00:00+23:59"}`,
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
