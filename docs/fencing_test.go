package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var (
	// refuses is the advice that what holders change refuses or checks fencing tokens.
	refuses = regexp.MustCompile(`(?i)(refuses?|rejects?|checks?|checking|store) (\S+ ){0,4}(tokens?|smaller|old holder|its writes|writes of)\b`)
	// oneHolder says for what that advice holds.
	oneHolder = regexp.MustCompile(`(?i)pool of one slot|attempts|of that run`)
)

// In a pool of several slots, several holders with different tokens are valid at the same time.
func TestAdviceToRefuseFencingTokensIsForPoolsOfOneSlot(t *testing.T) {
	files := append(markdown(t), "../README.md", "../SECURITY.md", "../ARCHITECTURE.md", "../berth.go", "../claim.go", "../pools.go",
		"../cmd/berth/cluster.go", "../cmd/berth/claims.go", "../sidecar/ui/action_claim.go", "../internal/inspect/claims.go")
	for _, path := range files {
		for paragraph := range strings.SplitSeq(read(t, path), "\n\n") {
			text := strings.Join(strings.Fields(strings.ReplaceAll(paragraph, "\n//", "\n")), " ")
			if strings.Contains(strings.ToLower(text), "fenc") && refuses.MatchString(text) && !oneHolder.MatchString(text) {
				t.Errorf("%s: say that it is for a pool of one slot, in\n%s", path, paragraph)
			}
		}
	}
	for path, about := range map[string]string{"how-to/fencing.md": "", "explanation/guarantees.md": "**Fencing tokens grow", "../README.md": "**Not guaranteed**"} {
		_, text, found := strings.Cut(read(t, path), about)
		text, _, _ = strings.Cut(text, "\n\n")
		if about == "" {
			text = read(t, path)
		}
		if !found || !strings.Contains(strings.Join(strings.Fields(text), " "), "pool of one slot") {
			t.Errorf("%s does not say that fencing needs a pool of one slot", path)
		}
	}
}
