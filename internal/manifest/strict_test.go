package manifest

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/strict"
)

func TestAByteOrderMarkIsNotPartOfAnItem(t *testing.T) {
	for text, want := range map[string]string{
		"\ufeffmonday\r\ntuesday\r\n":   `["monday" "tuesday"]`,
		"\ufeff[1, 2]":                  "[1 2]",
		"a\n\ufeffb\n\ufeff\r\nc":       `["a" "b" "c"]`, // several files, one after the other
		"\ufeff\n\ufeff[":               `["["]`,
		"\ufeff\ufeff[1]":               "[1]",
		"a\ufeffb":                      "[\"a\ufeffb\"]",
		"\ufeff{\"a\": 1}":              `["{\"a\": 1}"]`,
		"\ufeff\n [\"\\ud83d\\ude00\"]": `["\ud83d\ude00"]`,
	} {
		list, err := ReadItems("f", io.NopCloser(strings.NewReader(text)))
		if got := fmt.Sprintf("%s", list); err != nil || got != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func TestItemsThatABodyCanNotHaveAreRefusedWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		`[{"a":1,"a":2}]`:              "f:1:9: [0].a: it is given twice",
		"[1,\n\"\\ud800\"]":            `f:2:2: [1]: it has half of a surrogate pair, such as \ud800 without the other half`,
		"[\"\xff\"]":                   "f:1:3: [0]: invalid UTF-8",
		"[1] 2":                        "f:1:5: it begins with '[' and is not a JSON array: there is something after the value",
		"[1\n":                         "f:2:1: it begins with '[' and is not a JSON array: it ends within the value",
		"a\n\xff\n":                    "f:2: it is not text in UTF-8",
		"a\x00b\x00":                   "f:1: it has a NUL byte: write each item on a line of its own",
		"a\r\nb\rc\r\n":                "f:2: it has a carriage return (CR): end each line with LF, or with CR and LF",
		"a\rb\r":                       "f:1: it has a carriage return (CR)",
		"\ufeff[1,\n 2, 2 3]":          "f:2:7: it begins with '[' and is not a JSON array: invalid character '3'",
		"[" + strings.Repeat("[", 200): "f:1:",
		"\xff\xfea\x00":                "f:1: it is not text in UTF-8",
	} {
		_, err := ReadItems("f", io.NopCloser(strings.NewReader(text)))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestARunFileThatIsNoStrictJSONIsRefusedWithTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"{\"steps\": [\n{\"name\": \"a\", \"external\": true, \"input\": \"\\ud800\"}]}":          `f:2:43: steps[0].input: it has half of a surrogate pair`,
		"{\"steps\": [\n{\"name\": \"a\", \"external\": true, \"input\": {\"x\": 1, \"x\": 2}}]}": `f:2:51: steps.a.input: "x" is given twice, first on line 2`,
		"{\"name\": \"\xff\"}": "f:1:11: name: invalid UTF-8",
	} {
		_, err := ReadRun("f", []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
		}
	}
	a, err := ReadRun("f", []byte("\ufeffname: nightly\n"))
	if err != nil || a.Spec.Name != "nightly" {
		t.Errorf("%+v, %v", a.Spec, err)
	}
}

func FuzzReadItems(f *testing.F) {
	f.Add([]byte("\ufeff[1, {\"a\": 2, \"a\": 3}]"))
	f.Add([]byte("a\n\xff\r\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := ReadItems("f", io.NopCloser(strings.NewReader(string(data))))
		if err == nil && len(list) == 0 {
			t.Fatal("no item, and no error")
		}
		for _, item := range list {
			if !valid(item) {
				t.Fatalf("%q is an item of %q", item, data)
			}
		}
	})
}

func valid(item []byte) bool { return strict.Check(item, strict.MaxDepth) == nil }
