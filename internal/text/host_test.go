package text_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/text"
)

var isHost = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

func TestEveryNameOfAMachineGivesANameOfAHost(t *testing.T) {
	for name, want := range map[string]string{
		"":                      "",
		"Build-7.example.com":   "build-7.example.com",
		strings.Repeat("a", 63): strings.Repeat("a", 63),
		"my machine":            "my-machine-d361388f",
	} {
		if got := text.Host(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	seen := map[string]string{}
	for _, name := range []string{"a b", "a+b", "A B", "a\nb", "ä", "ö", "-a", "--", strings.Repeat("ä", 40), strings.Repeat("a", 64), strings.Repeat("a", 65), "a\xff", "\xff"} {
		got := text.Host(name)
		if !isHost.MatchString(got) || seen[got] != "" {
			t.Errorf("%q: %q, as %q", name, got, seen[got])
		}
		seen[got] = name
	}
}

func FuzzHost(f *testing.F) {
	f.Add("my machine")
	f.Fuzz(func(t *testing.T, name string) {
		if got := text.Host(name); name != "" && !isHost.MatchString(got) {
			t.Fatalf("%q: %q", name, got)
		}
	})
}
