package strict

import (
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestANumberThatReadersTakeForDifferentValuesIsAmbiguous(t *testing.T) {
	for _, text := range []string{"010", "007", "00", "-010", "+010", "08", "0x10", "0X1f", "0o10", "0O10", "0b11", "1_000", "01.5", "1_0.5", "0_1"} {
		if what := Ambiguous(scalar(t, text)); what == "" {
			t.Errorf("%s is taken", text)
		}
	}
	for _, text := range []string{"0", "-0", "+5", "10", "100", "1.50", "0.5", "1e3", ".5", "'010'", `"0x10"`, "010s", "0x", "a_1", "~", "true", "2026-01-01", "[010]", ".inf"} {
		if what := Ambiguous(scalar(t, text)); what != "" {
			t.Errorf("%s is refused: %s", text, what)
		}
	}
}

func scalar(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Content[0]
}

func TestMistakesInYAMLAreFoundWhereTheyAre(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n---\nb: 2\n":              "line 2, column 1: the file must be one YAML document: another one begins here",
		"# c\n%YAML 1.1\n---\na: 1\n---": "line 5, column 1: the file must be one YAML document: another one begins here",
		"--- {a: 1}\n--- {b: 2}\n":       "line 2, column 1: the file must be one YAML document: another one begins here",
		"a: 1\n\n...\njunk\n":            "line 3, column 1: the file must be one YAML document: another one begins here",
		"a: 1\n---\n\tb: 2\n":            "line 3, column 1: tabs are not allowed: indent with spaces",
		"a: 1\nb: x\x01\n":               "line 2, column 5: control characters are not allowed",
		"\x7f: 1\n":                      "line 1, column 1: control characters are not allowed",
	} {
		if _, err := Document("f", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
