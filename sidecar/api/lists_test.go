package api

import (
	"testing"

	"github.com/berthhq/berth/coordinator/step"
)

func FuzzParseClaimCursor(f *testing.F) {
	f.Add(claimCursor{Fence: 7, ID: "a"}.String())
	f.Add(claimCursor{Waiting: true, Priority: -1, Since: 12, ID: "b"}.String())
	f.Add("!")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseClaimCursor(text)
		if err != nil {
			return
		}
		if again, err := parseClaimCursor(c.String()); err != nil || again.compare(c) != 0 {
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
