package sidecar

import (
	"testing"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/sidecar/api"
)

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
