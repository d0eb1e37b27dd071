package step

import (
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

func TestParseWhich(t *testing.T) {
	for _, text := range []string{"a", "extract[0]", "a.b-c[99999]"} {
		if w, err := ParseWhich(text); err != nil || w.String() != text {
			t.Errorf("%q: %v, %v", text, w, err)
		}
	}
	for _, text := range []string{"", "a[", "a[]", "a[-1]", "a[1]b", "[1]", "a[1", "a[1]]", "a[1.5]", "a[01]", "a[+1]", "a[99999999999999999999]"} {
		if w, err := ParseWhich(text); err == nil {
			t.Errorf("%q: %v", text, w)
		}
	}
}

func TestTheOneInstanceOfAStep(t *testing.T) {
	onShelf(t, func(t *testing.T, s *shelf) {
		s.submit("r", wide("a", 2), wide("b", 1))
		for name, want := range map[string]string{"b": "b[0]", "b[0]": "b[0]", "a[1]": "a[1]"} {
			w, _ := ParseWhich(name)
			if id, err := s.One(t.Context(), "r", w); err != nil || id.Text() != want {
				t.Errorf("%s: %v, %v", name, id, err)
			}
		}
		_, err := s.One(t.Context(), "r", Which{"a", Every})
		wantField(t, err, "step", "step 'a' has 2 instances: name one of them, as in a[0]")
		for _, w := range []Which{{"a", 2}, {"c", 0}} {
			if _, err := s.One(t.Context(), "r", w); problem.CodeOf(err) != problem.StepNotFound {
				t.Errorf("%s: %v", w, err)
			}
		}
	})
}
