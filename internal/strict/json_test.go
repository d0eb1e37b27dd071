package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

const half = `it has half of a surrogate pair, such as \ud800 without the other half`

// unreadable are texts that readers of JSON take for different values, or do not take.
var unreadable = map[string]string{
	`{"a":1,"a":2}`: "line 1, column 8: a: it is given twice",
	"{\"a\": {\"b\": [0,\n {\"c\":1, \"c\":1}]}}": "line 2, column 10: a.b[1].c: it is given twice",
	`{"a":1,"\u0061":2}`:                          "line 1, column 8: a: it is given twice",
	`["a", "\ud800"]`:                             "line 1, column 8: [1]: it has half of a surrogate pair",
	`{"\udc00": 1}`:                               "line 1, column 3: it has half of a surrogate pair",
	`"\ud800\ud800"`:                              "line 1, column 2: it has half of a surrogate pair",
	"[\"\xff\"]":                                  "line 1, column 3: [0]: invalid UTF-8",
	"\"\x00\"":                                    "line 1, column 2: invalid character",
	"1\x00":                                       "line 1, column 2: there is something after the value",
	"{} {}":                                       "line 1, column 4: there is something after the value",
	"[1,]":                                        "line 1, column 3: there is a comma after the last value: remove it",
	"[1":                                          "line 1, column 3: ",
	"":                                            "line 1, column 1: ",
	"nul":                                         "line 1, column ",
	strings.Repeat("[", 200):                      "line 1, column 10: it is nested too deep: use at most 9 levels",
	"[" + strings.Repeat(`{"a":`, 9) + "1":        "line 1, column 42: it is nested too deep: use at most 9 levels",
	"01":                                          "line 1, column 2: there is something after the value",
	"NaN":                                         "line 1, column 1: ",
}

func TestJSONThatReadersTakeForDifferentValuesIsRefusedWithItsPlace(t *testing.T) {
	for text, want := range unreadable {
		err := Check([]byte(text), 9)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
		}
	}
	for _, text := range []string{"null", " {} \n", `{"a":{"a":1},"b":[{"a":1},{"a":1}]}`, `"\ud83d\ude00\u0000"`, "[[[[[[[[[1]]]]]]]]]"} {
		if err := Check([]byte(text), 9); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTheElementsOfAnArrayAreCheckedOneByOne(t *testing.T) {
	var got []string
	err := Array([]byte("\ufeff [1,\n {\"a\": 1, \"a\": 2}, \"\\ud800\",\n \"x\"]\n"), func(value json.RawMessage, err error) {
		got = append(got, fmt.Sprint(string(value), " ", err))
	})
	want := []string{
		"1 <nil>", "{\"a\": 1, \"a\": 2} line 2, column 11: [1].a: it is given twice",
		"\"\\ud800\" line 2, column 21: [2]: " + half, "\"x\" <nil>",
	}
	if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%v\n%s", err, strings.Join(got, "\n"))
	}
	for text, want := range map[string]string{
		"[1,\n2":     "line 2, column 2: ",
		"[1] [2]":    "line 1, column 5: there is something after the value",
		"[1,]":       "line 1, column 3: there is a comma after the last value: remove it",
		"[1, \x00]":  "line 1, column 5: [1]: ",
		"\ufeff[1,}": "line 1, column 3: ",
	} {
		if err := Array([]byte(text), func(json.RawMessage, error) {}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestAFileOfJSONIsReadAsStrictlyAsABody(t *testing.T) {
	for text, want := range map[string]string{
		"{\"a\":\n [\"\\ud800\"]}": "line 2, column 4: a[0]: " + half,
		"{\"a\": \"\xff\"}":        "line 1, column 8: a: invalid UTF-8",
		"\ufeff{\"a\": \"\xff\"}":  "line 1, column 8: a: invalid UTF-8",
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}": "line 1, column 133: it is nested too deep: use at most 128 levels",
		"a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200):         "line 1: it is nested too deep: use at most 128 levels",
	} {
		_, err := Document("f", []byte(text))
		if wrong := (*SyntaxError)(nil); !errors.As(err, &wrong) || err.Error() != want {
			t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
		}
	}
	for _, text := range []string{"\ufeff{\"a\": \"\\ud83d\\ude00\"}", "\ufeffa: \U0001f600\n"} {
		n, err := Document("f", []byte(text))
		if err != nil || n.Content[0].Value != "a" || n.Content[1].Value != "\U0001f600" {
			t.Errorf("%q: %+v, %v", text, n, err)
		}
	}
}

func TestAFileNamedJSONIsNoYAML(t *testing.T) {
	for text, want := range map[string]string{
		"{\"steps\": [1,\n],}":       "line 1, column 13: steps: there is a comma after the last value: remove it",
		"{\"a\": 1,\n}":              "line 1, column 8: there is a comma after the last value: remove it",
		"{\"steps\": [\n  {\"name\"": "line 2, column 10: steps[0].name: it ends within the value",
		"{\"a\": 1} # comment":       "line 1, column 10: there is something after the value",
		"a: 1":                       "line 1, column 1: invalid character 'a' at start of value",
	} {
		for _, name := range []string{"dir/run.json", "RUN.JSON"} {
			if _, err := Document(name, []byte(text)); err == nil || err.Error() != want {
				t.Errorf("%s: %q\ngot  %v\nwant %s", name, text, err, want)
			}
		}
	}
	if n, err := Document("run.json", []byte("\ufeff[1]\n")); err != nil || n.Kind != yaml.SequenceNode {
		t.Errorf("a list: %+v, %v", n, err)
	}
	if n, err := Document("run.json", []byte("\ufeff \n")); err != nil || n != nil {
		t.Errorf("an empty file: %+v, %v", n, err)
	}
}

// What is taken is the same for every reader: encoding/json reads it, and writes it again with
// the same names and texts.
func FuzzJSON(f *testing.F) {
	for text := range unreadable {
		f.Add([]byte(text))
	}
	f.Add([]byte("\ufeff[1, {\"a\": null}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var wrong *SyntaxError
		err := Check(data, 9)
		if err != nil && (!errors.As(err, &wrong) || wrong.Line < 1 || wrong.Column < 1 || wrong.Reason == "" || !utf8.ValidString(wrong.Error())) {
			t.Fatalf("%+v", err)
		}
		if err == nil {
			var v any
			d := json.NewDecoder(bytes.NewReader(data))
			d.UseNumber() // which can be larger than any that a program uses
			if !utf8.Valid(data) || d.Decode(&v) != nil {
				t.Fatalf("%q is taken", data)
			}
			if text, _ := json.Marshal(v); bytes.Contains(text, []byte("\ufffd")) && !bytes.Contains(data, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(data), []byte("fffd")) {
				t.Fatalf("%q loses characters", data)
			}
		}
		whole := true
		bad := Array(data, func(value json.RawMessage, err error) {
			whole = whole && err == nil
			if (err == nil) != (Check(value, MaxDepth-1) == nil) {
				t.Fatalf("%q: %v", value, err)
			}
		})
		if strict := Check(Text(data), MaxDepth) == nil && bytes.HasPrefix(bytes.TrimLeft(Text(data), " \t\r\n"), []byte("[")); strict != (whole && bad == nil) {
			t.Fatalf("%q: %v %v, %v", data, strict, whole, bad)
		}
		_, _ = Document("f", data)
	})
}

// FuzzDocument reads what is one JSON object in the same way as encoding/json.
func FuzzDocument(f *testing.F) {
	f.Add([]byte("a: {b: [1, ~, x]}"))
	f.Add([]byte("\ufeff{\"a\": [1.50, \"\\ud83d\\ude00\", null, true]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := Document("f", data)
		if err != nil || n == nil || n.Kind != yaml.MappingNode {
			return
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if _, ok := want[n.Content[i].Value]; !ok {
				t.Fatalf("%q has no %q", data, n.Content[i].Value)
			}
		}
	})
}

// The name of a field is written once, however deep it is: each level would take a copy otherwise.
func TestADeepFieldIsNamedWithFewCopies(t *testing.T) {
	const levels, level = 2000, 100
	at := jsontext.Pointer(strings.Repeat("/"+strings.Repeat("a", level), levels))
	copied := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			Field(at)
		}
	}).AllocedBytesPerOp()
	if most := int64(20 * levels * level); copied > most {
		t.Errorf("%d bytes are allocated for a name of %d", copied, levels*level)
	}
	for at, want := range map[jsontext.Pointer]string{"": "", "/steps/0/name": "steps[0].name", "/0/1": "[0][1]", "/a~1b/c": "a/b.c"} {
		if got := Field(at); got != want {
			t.Errorf("%s: %s", at, got)
		}
	}
}
