package browser

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// axeFile is the script of axe-core, from the folder of the module. package.json
// has its version, and npm installs it.
const axeFile = "internal/browser/node_modules/axe-core/axe.min.js"

// axe returns the script of axe-core.
var axe = sync.OnceValues(func() (string, error) {
	folder, err := os.Getwd() // of the package under test
	if err != nil {
		return "", err
	}
	return readAxe(folder)
})

// readAxe reads the script of axe-core in the module that contains a folder.
func readAxe(folder string) (string, error) {
	for {
		_, err := os.Stat(filepath.Join(folder, "go.mod"))
		if err == nil {
			break
		}
		parent := filepath.Dir(folder)
		if !errors.Is(err, fs.ErrNotExist) || parent == folder {
			return "", fmt.Errorf("the folder of the module: %w", err)
		}
		folder = parent
	}
	text, err := os.ReadFile(filepath.Join(folder, axeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("axe-core is %w: run `npm ci` in internal/browser", errMissing)
	}
	return string(text), err
}

// Finding is a rule of axe-core that a page violates.
type Finding struct {
	// Rule is the ID of the rule, and Help the URL that explains it.
	Rule, Help string
	// Elements are the elements that violate it: the selector of each, the beginning
	// of its markup, and what to fix.
	Elements []string
}

// String returns the rule, its URL and the first elements, on several lines.
func (f Finding) String() string {
	const most = 3
	first := strings.Join(f.Elements[:min(most, len(f.Elements))], "\n  ")
	return fmt.Sprintf("%d violations of %s (%s):\n  %s", len(f.Elements), f.Rule, f.Help, first)
}

// Audit returns the violations that axe-core finds in the page: the rules of WCAG
// 2 at levels A and AA, and best practices. It checks the whole page in its
// present state, width and colour scheme. If axe-core is not installed, the test
// is skipped, or fails if [RequiredVar] is "true".
func (b *Browser) Audit() []Finding {
	b.t.Helper()
	script, err := axe()
	need(b.t, err)
	if !b.scripts { // axe-core needs timers; the page is loaded, so its own scripts stay out
		b.NoScript(false)
		defer b.NoScript(true)
	}
	if !ask[bool](b, `() => typeof axe === "object"`) {
		ask[bool](b, `() => { `+script+"\n"+`; return true }`)
	}
	return ask[[]Finding](b, `async () => (await axe.run(document, {
  resultTypes: ["violations"], rules: Object.fromEntries(`+optional+`.map(id => [id, {enabled: true}]))})).violations.map(v => ({
  Rule: v.id, Help: v.helpUrl, Elements: v.nodes.map(n => n.target.join(" ") + "  " + n.html.slice(0, 160) + "\n    " + n.failureSummary.replace(/\s+/g, " "))}))`)
}

// optional are rules of WCAG 2 that axe-core does not check by default.
const optional = `["target-size", "td-has-header", "label-content-name-mismatch", "css-orientation-lock"]`

// WantNoFindings fails the test for each finding of [Browser.Audit].
func (b *Browser) WantNoFindings() {
	b.t.Helper()
	for _, f := range b.Audit() {
		b.t.Errorf("%s, %d pixels wide, dark %v: %s", b.URL(), b.width, b.dark, f)
	}
}
