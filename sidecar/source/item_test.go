package source

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthhq/berth/coordinator/run"
)

func testSpec() Spec {
	return Spec{
		Name: "inbox", List: []string{"ls"}, ID: DefaultID,
		Interval: DefaultInterval, Timeout: DefaultTimeout, Forget: DefaultForget,
	}
}

func TestWhatIsListed(t *testing.T) {
	long := strings.Repeat("x", 251)
	for _, c := range []struct {
		output  string
		items   []string // id=value
		refused []string
	}{
		{"", nil, nil},
		{"\n \r\n", nil, nil},
		{"a\n  b.csv \r\n\n12\n", []string{`a="a"`, `b.csv="b.csv"`, `12="12"`}, nil},
		{`{"id": "a", "n": 1.50}` + "\n" + `{"n": 2, "id": 7}`, []string{`a={"id": "a", "n": 1.50}`, `7={"n": 2, "id": 7}`}, nil},
		{` [ "a", {"id": "b"}, {"id": 0} ] `, []string{`a="a"`, `b={"id": "b"}`, `0={"id": 0}`}, nil},
		{"[]", nil, nil},
		{"\ufeffa\r\nb", []string{`a="a"`, `b="b"`}, nil},
		{"\ufeff[\"a\"]", []string{`a="a"`}, nil},
		{"a\n\ufeffb\n\ufeff{\"id\": \"c\"}\n\ufeff\n", []string{`a="a"`, `b="b"`, `c={"id": "c"}`}, nil},
		{"\ufeff\ufeff[\"a\"]", []string{`a="a"`}, nil},
		{"\ufeff{\"id\": \"a\"}", []string{`a={"id": "a"}`}, nil},
		{"ok\n" + `{"id": "a", "n": 1, "n": 2}` + "\n" + `{"id": "b", "n": "\ud800"}` + "\n" + `{"id": "c"} x`, []string{`ok="ok"`}, []string{
			"line 2: it is not JSON that can be used: column 21: n: it is given twice",
			`line 3: it is not JSON that can be used: column 19: n: it has half of a surrogate pair, such as \ud800 without the other half`,
			"line 4: it is not JSON that can be used: column 13: there is something after the value",
		}},
		{"[\"ok\",\n" + `{"id": "a", "id": "b"}, "\ud800"]`, []string{`ok="ok"`}, []string{
			"item 2: it is not JSON that can be used: line 2, column 13: [1].id: it is given twice",
			`item 3: it is not JSON that can be used: line 2, column 26: [2]: it has half of a surrogate pair, such as \ud800 without the other half`,
		}},
		{"a\n" + `{"id": "a", "n": 1}`, []string{`a="a"`}, []string{`line 2: "a" is listed twice, first at line 1`}},
		{"ok\na b\n-\n_\n" + long, []string{`ok="ok"`, `-="-"`, `_="_"`}, []string{
			`line 2: "a b" is not an item id: use 1 to 250 of A-Z, a-z, 0-9, '.', '_' and '-'`,
			`line 5: its id has 251 bytes: use at most 250`,
		}},
		{"ok\n{\"n\": 1}\n{\"id\": null}\n{\"id\": 1.5}\n{\"id\": -1}\n{\"id\": \"\"}\n{\"id\": \"a/b\"}\n{\"id\": \n\xff\n{\"id\": [\"x\"]}", []string{`ok="ok"`}, []string{
			`line 2: it has no field "id" for its id`,
			`line 3: its "id" is null: use a string and an integer from 0`,
			`line 4: its "id" is 1.5: use a string and an integer from 0`,
			`line 5: its "id" is -1: use a string and an integer from 0`,
			`line 6: "" is not an item id: use 1 to 250 of A-Z, a-z, 0-9, '.', '_' and '-'`,
			`line 7: "a/b" is not an item id: use 1 to 250 of A-Z, a-z, 0-9, '.', '_' and '-'`,
			`line 8: it is not JSON that can be used: column 7: id: it ends within the value`,
			`line 9: it is not UTF-8`,
			`line 10: its "id" is ["x"]: use a string and an integer from 0`,
		}},
		{`["ok", 5, null, ["a"], {"id": "x", "deep": ` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}]`, []string{`ok="ok"`}, []string{
			"item 2: it is neither a JSON object nor a string", "item 3: it is neither a JSON object nor a string", "item 4: it is neither a JSON object nor a string",
			`item 5: "x": it cannot be read: use any JSON value in UTF-8, nested at most 100 deep: it is nested too deep: use at most 100 levels`,
		}},
		{"ok\n" + `{"id": "long", "x": "` + strings.Repeat("x", 64<<10) + `"}`, []string{`ok="ok"`}, []string{`line 2: "long": it is 65559 bytes long: use at most 65536`}},
	} {
		s := testSpec()
		items, refused, err := s.Decode([]byte(c.output))
		if err != nil {
			t.Errorf("%q: %v", c.output, err)
			continue
		}
		var gotItems, gotRefused []string
		for _, it := range items {
			gotItems = append(gotItems, it.ID+"="+string(it.Value))
		}
		for _, r := range refused {
			gotRefused = append(gotRefused, r.String())
		}
		if !slices.Equal(gotItems, c.items) || !slices.Equal(gotRefused, c.refused) {
			t.Errorf("%.200q:\nitems   %q\nwant    %q\nrefused %q\nwant    %q", c.output, gotItems, c.items, gotRefused, c.refused)
		}
	}
}

func TestTheIDCanBeInAnotherField(t *testing.T) {
	s := testSpec()
	s.ID = "number"
	items, refused, err := s.Decode([]byte(`[{"number": 12, "id": "x"}, {"id": "y"}]`))
	if err != nil || len(items) != 1 || items[0].ID != "12" || len(refused) != 1 || refused[0].Why != `it has no field "number" for its id` {
		t.Errorf("%v, %v, %v", items, refused, err)
	}
}

func TestGarbageIsNoList(t *testing.T) {
	for output, want := range map[string]string{
		"<html>\n<body>":                    `the output of the list command has no usable item: line 1: "<html>" is not an item id`,
		"error: no connection":              "the output of the list command has no usable item: line 1: ",
		`["a", `:                            "the output of the list command begins with '[' and is not a JSON array: line 1, column 7: it ends within the value",
		`["a"] more`:                        "the output of the list command begins with '[' and is not a JSON array: ",
		"[info] 3 items":                    "the output of the list command begins with '[' and is not a JSON array: ",
		"[\"\xff\"]":                        "the output of the list command is not UTF-8",
		numbers(MaxItems + 1):               "the list command listed more than 10000 items",
		"[" + numbersJSON(MaxItems+1) + "]": "the list command listed more than 10000 items",
	} {
		s := testSpec()
		items, refused, err := s.Decode([]byte(output))
		if err == nil || !strings.HasPrefix(err.Error(), want) || items != nil || refused != nil {
			t.Errorf("%.40q: %v, want %s", output, err, want)
		}
	}
	s := testSpec()
	if items, _, err := s.Decode([]byte(numbers(MaxItems))); err != nil || len(items) != MaxItems {
		t.Errorf("the most there may be: %d, %v", len(items), err)
	}
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func numbersJSON(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"id":%d}`, i))
	}
	return strings.Join(all, ",")
}

// Whatever a command writes: ids are unique and make ids of runs, values are JSON, and
// every item of a list is there or refused.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"a\nb\n", `{"id": "a"}`, `[{"id": 1}, "b", 7]`, "[", "{", "\xff", `"a"`, "a\na", `{"id":"\u0000"}`, "[null]", "null", `{"ID": "a", "id": "b"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		s := testSpec()
		items, refused, err := s.Decode(output)
		if err != nil {
			if len(items)+len(refused) > 0 {
				t.Fatal("something comes of what can't be read")
			}
			return
		}
		seen := map[string]bool{}
		for _, it := range items {
			if seen[it.ID] {
				t.Fatalf("%q is there twice", it.ID)
			}
			seen[it.ID] = true
			if err := run.ValidateID(s.RunID(it.ID)); err != nil || it.ID == "" {
				t.Fatal(err)
			}
			if !json.Valid(it.Value) || it.Where == "" {
				t.Fatalf("%+v", it)
			}
			if _, err := s.submission(it); err != nil {
				t.Fatal(err)
			}
		}
		var list []json.RawMessage
		if json.Unmarshal(output, &list) == nil && list != nil && len(items)+len(refused) != len(list) {
			t.Fatalf("%d items of %d", len(items)+len(refused), len(list))
		}
	})
}
