package ui

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestWhatIsHiddenIsSpelledOut(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"plain <b>&amp;</b> ä 漢 🙂": "plain <b>&amp;</b> ä 漢 🙂",
		"two\nlines\tand a tab":    "two\nlines\tand a tab",
		"dos\r\nlines\r\n":         "dos\nlines\n",
		"10%\r20%":                 "10%^M20%",
		"\x1b[31mred\x1b[0m":       "^[[31mred^[[0m",
		"a\x00b\x7f":               "a^@b^?",
		"abc\u202edef\u2066":       `abc\u202edef\u2066`,
		"a\u200bb\u2028c\u0085":    `a\u200bb\u2028c\u0085`,
		"\xff\xfe!":                "\\ufffd!",
		"soft\u00adhyphen":         `soft\u00adhyphen`,
	} {
		if got := visible(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestNothingHiddenStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		got := visible(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, hidden) {
			t.Fatalf("%q leaves %q", text, got)
		}
		if visible(got) != got {
			t.Fatalf("%q is not the same twice", got)
		}
	})
}

func TestTheTimeBetweenIsNeverBelowZero(t *testing.T) {
	for want, times := range map[string][2]time.Time{
		"":     {{}, afterNoon(1)},
		"0s":   {afterNoon(3), afterNoon(1)},
		"2m":   {afterNoon(1), afterNoon(3)},
		"2h1m": {afterNoon(0), afterNoon(121)},
	} {
		if got := took(times[0], times[1]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := took(afterNoon(1), time.Time{}); got != "" {
		t.Errorf("%s to an end that is not known", got)
	}
}
