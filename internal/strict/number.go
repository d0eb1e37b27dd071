// Package strict has rules for files that people write, in YAML or JSON. A value is
// refused rather than guessed at if readers of YAML disagree about it.
package strict

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// IsNumber reports whether a node is a number that is not in quotes.
func IsNumber(n *yaml.Node) bool {
	tag := n.ShortTag()
	return n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float")
}

// Ambiguous returns what to tell the user about a number that readers take for
// different values, and "" for any other node. With zeros in front it is octal in older
// YAML, and most often an id; prefixes such as 0x and '_' are lost in JSON.
func Ambiguous(n *yaml.Node) string {
	if !IsNumber(n) {
		return ""
	}
	digits := strings.TrimLeft(n.Value, "+-")
	octal := len(digits) > 1 && digits[0] == '0' && (digits[1] >= '0' && digits[1] <= '9' || strings.IndexByte("xXoObB", digits[1]) >= 0)
	if !octal && !strings.Contains(digits, "_") {
		return ""
	}
	return fmt.Sprintf("%s can be read in several ways: write %q, with the quotes, if it is a text, or the number in plain digits", n.Value, n.Value)
}
