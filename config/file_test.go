package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatAFileMayHold(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want map[string]string
	}{
		"nothing":              {"", nil},
		"a comment":            {"# nothing yet\n", nil},
		"null":                 {"~", nil},
		"an empty mapping":     {"{}", map[string]string{}},
		"texts":                {"prefix: /a/\nhost: 'b'\n", map[string]string{"prefix": "/a/", "host": "b"}},
		"digits in quotes":     {"password: '010'", map[string]string{"password": "010"}},
		"a number for a text":  {"host: 1.50", map[string]string{"host": "1.50"}},
		"a list":               {"endpoints: [a:1, b:2]", map[string]string{"endpoints": "a:1,b:2"}},
		"a list as one text":   {"endpoints: a:1,b:2", map[string]string{"endpoints": "a:1,b:2"}},
		"null for not given":   {"prefix:\nhost: ~", map[string]string{}},
		"empty for an empty":   {"listen: ''", map[string]string{"listen": ""}},
		"a byte order mark":    {"\ufeffhost: a", map[string]string{"host": "a"}},
		"JSON, which is YAML":  {`{"host": "a"}`, map[string]string{"host": "a"}},
		"an end of a document": {"---\nhost: a\n...\n", map[string]string{"host": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			entries, problems := decode("f", []byte(tc.text))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var got map[string]string
			if entries != nil {
				got = map[string]string{}
			}
			for field, e := range entries {
				got[field] = e.text
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
		})
	}
}

func TestWhatAFileMayNotHold(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"no YAML":               {"host: [", "(f): line 1"},
		"a list of settings":    {"- host: a", "must be lines of the form"},
		"a text":                {"host", "must be lines of the form"},
		"two documents":         {"host: a\n---\nhost: b", "one YAML document"},
		"an unknown name":       {"\nhots: a", `(f:2): "hots" is not a setting: did you mean "host"?`},
		"a name that is a list": {"? [host]\n: a", "is not a setting"},
		"a name twice":          {"host: a\nhost: b", "host (f:2): is set twice, before at f:1"},
		"a list for a text":     {"host: [a]", "host (f:1): must be a single value"},
		"a mapping":             {"endpoints: {a: 1}", "must be a text or a list of texts"},
		"a list in a list":      {"endpoints: [[a:1]]", "must be a text or a list of texts"},
		"a hole in a list":      {"endpoints: [a:1, ~]", "must be a text or a list of texts"},
		"an empty list":         {"endpoints: []", "is an empty list"},
		"an octal number":       {"host: 010", `host (f:1): 010 can be read in several ways: write "010", with the quotes`},
		"a hexadecimal number":  {"password: 0x10", "password (f:1): 0x10 can be read in several ways"},
		"an odd zero":           {"compact_interval: 00", "compact_interval (f:1): 00 can be read in several ways"},
		"an octal among others": {"endpoints: [a:1, 010]", "endpoints (f:1): 010 can be read in several ways"},
		"a reference":           {"prefix: &p /a/\nhost: *p", "host (f:2): must be a single value"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := decode("f", []byte(tc.text))
			if err := problems.err(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want the words %q", err, tc.want)
			}
		})
	}
}

func TestAFileThatIsTooLongIsRefused(t *testing.T) {
	path := write(t, "long.yaml", "# "+strings.Repeat("x", fileLimit))
	_, problems := readFile(path)
	if err := problems.err(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("the error is %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "host: a\nendpoints: [a:1, b:2]\n", "a: b: c", "? [x]\n: y", "--- !!binary\nx", "&a [*a]",
		"host: a\nhost: b", "host: !!null x", "\xff\xfe", "{", "%YAML 1.2\n---\nhost: a", "<<: {host: a}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, problems := decode("f", data)
		for name := range entries {
			if _, ok := lookup(name); !ok {
				t.Errorf("an unknown setting came through: %q", name)
			}
		}
		for _, p := range problems {
			if p.Message == "" || p.Source == "" {
				t.Errorf("a problem tells nothing: %+v", p)
			}
		}
		// Whatever it holds, loading it ends in settings or in problems.
		for name, e := range entries {
			f, _ := lookup(name)
			f.value.set(new(Settings), e.text)
		}
	})
}
