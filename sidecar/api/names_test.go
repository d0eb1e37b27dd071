package api

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextThatCanBeKnownIsTaken(t *testing.T) {
	for text, want := range map[string]bool{
		`"plain"`: true, `"é \u00e9 \ud83d\ude00 😀"`: true, `"C:\\ud83d"`: true, `"\\\\ud83d"`: true, `"\ufffd"`: true, "\"\ufffd\"": true,
		"\"\xff\"": false, `"\ud83d"`: false, `"\ud83d\n"`: false, `"\ude00\ud83d"`: false, `"\ud83dA\ude00"`: false,
		`"\\\ud83d"`: false, `["\ud83d","\ude00"]`: false,
	} {
		if got := wellFormed([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// FuzzWellFormed holds what is taken against package json, which puts U+FFFD for
// what it can't read.
func FuzzWellFormed(f *testing.F) {
	for _, text := range []string{`"\ud83d\ude00"`, `"\\ud83d"`, "\"\xff\"", `{"\udfff":"\u0041"}`, `["\ud83d\ud83d\ude00"]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if json.Unmarshal(data, &v) != nil {
			return
		}
		said := strings.Count(strings.ToLower(string(data)), `\ufffd`) + strings.Count(string(data), string(utf8.RuneError))
		if said > 0 && utf8.Valid(data) {
			return // it may stand for itself
		}
		seen := strings.Contains(texts(v), string(utf8.RuneError))
		if got := wellFormed(data); got && seen {
			t.Errorf("%q is taken, and reads %q", data, texts(v))
		}
		if !wellFormed(data) {
			if p := garbledProblem(data); len(p.Errors) == 0 || p.Code != "malformed" {
				t.Errorf("%q is refused with %+v", data, p)
			}
		}
	})
}

// texts are all strings in what was read.
func texts(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		all := ""
		for _, one := range v {
			all += texts(one)
		}
		return all
	case map[string]any:
		all := ""
		for name, one := range v {
			all += name + texts(one)
		}
		return all
	}
	return ""
}
