package text

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestDuration_WritesTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "2ms", 250 * time.Millisecond: "250ms",
		time.Second: "1s", 1234 * time.Millisecond: "1.2s", 9960 * time.Millisecond: "10s", 90 * time.Second: "1m30s", 5 * time.Minute: "5m",
		90 * time.Minute: "1h30m", time.Hour + time.Second: "1h", 26 * time.Hour: "1d2h",
		-5 * time.Second: "-5s", 24 * time.Hour: "1d",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestAgo_CountsFromNow(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", -time.Hour: "now", 999 * time.Millisecond: "now", 3 * time.Second: "3s ago",
		3*time.Minute + 4*time.Second: "3m4s ago", 12*time.Minute + 4*time.Second: "12m ago",
		50 * time.Hour: "2d2h ago", 49*time.Hour + 40*time.Minute: "2d2h ago",
	} {
		if got := Ago(now, now.Add(-d)); got != want {
			t.Errorf("Ago(%s) = %q, want %q", d, got, want)
		}
	}
	if got := Ago(now, time.Time{}); got != "" {
		t.Errorf("no time at all is %q", got)
	}
}

func TestWhatIsHiddenIsSpelledOut(t *testing.T) {
	for in, want := range map[string]string{
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
		if got := Visible(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestNothingHiddenStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "in")
		got := Visible(in)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, hidden) {
			t.Fatalf("%q leaves %q", in, got)
		}
		if Visible(got) != got {
			t.Fatalf("%q is not the same twice", got)
		}
	})
}

func TestCut_KeepsWholeRunes(t *testing.T) {
	for _, test := range []struct {
		in   string
		most int
		cut  string
		in6  string
	}{{"abc", 3, "abc", "abc"}, {"abcdef", 5, "abcde…", "ab…"}, {"aäöü", 4, "aä…", "a…"}, {"\xff\xfe\xfd\xfc\xfb\xfa", 5, "…", "…"}} {
		if got := Cut(test.in, test.most); got != test.cut {
			t.Errorf("Cut(%q, %d) = %q, want %q", test.in, test.most, got, test.cut)
		}
		if got := CutWithin(test.in, test.most); got != test.in6 || len(got) > test.most {
			t.Errorf("CutWithin(%q, %d) = %q, want %q", test.in, test.most, got, test.in6)
		}
	}
}

func TestNumber_HasCommas(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 123456: "123,456", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := Number(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
