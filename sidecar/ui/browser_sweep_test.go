package ui_test

import "testing"

// Every page, wide and on a phone, light and dark: nothing goes wrong in the browser,
// the pages are accessible, and need no horizontal scrolling.
func TestEveryPageIsFitForEverybody(t *testing.T) {
	inFull(t)
	t.Parallel()
	s := newScene(t)
	for _, path := range paths {
		for _, width := range []int{1280, 390} {
			s.Viewport(width, 900)
			s.to(path)
			for _, dark := range []bool{false, true} {
				s.Dark(dark)
				s.WantNoFindings()
				if by, which := s.Wider(); by > 0 {
					t.Errorf("%s is wider than %d pixels by %d: %s", path, width, by, which)
				}
			}
		}
	}
}
