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
