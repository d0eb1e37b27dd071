package browser

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAnAuditFindsWhatAPageViolates(t *testing.T) {
	const good = `<!doctype html><html lang="en"><title>A page</title><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><main><h1>A page</h1><p>Text</p></main>`
	with := func(more string) string { return strings.Replace(good, "<p>Text</p>", more, 1) }
	pages := map[string]struct {
		page string
		want []string
	}{
		"/good":    {good, nil},
		"/label":   {with(`<input id="nameless">`), []string{"label"}},
		"/outside": {good + "<p>Outside</p>", []string{"region"}}, // a best practice
		"/two":     {with(`<button></button><p lang="xx-">Text</p>`), []string{"button-name", "valid-lang"}},
		// These are rules that axe-core does not check by default.
		"/small": {with(`<button style="width: 9px; padding: 0">a</button><button style="width: 9px; padding: 0">b</button>`), []string{"target-size"}},
		"/named": {with(`<button aria-label="Delete">Remove</button>`), []string{"label-content-name-mismatch"}},
		// The colours depend on the colour scheme, and the element is far below the viewport.
		"/dark": {with(`<style>@media (prefers-color-scheme: dark) { p { color: #ccc } }</style><p style="margin-top: 5000px">Grey</p>`), []string{"color-contrast"}},
	}
	texts := map[string]string{}
	for path, p := range pages {
		texts[path] = p.page
	}
	base := site(t, texts)
	b := Open(t)
	b.Dark(true)
	for path, p := range pages {
		b.Go(base + path)
		var rules []string
		for _, f := range b.Audit() {
			rules = append(rules, f.Rule)
		}
		if !slices.Equal(rules, p.want) {
			t.Errorf("%s violates %q, want %q", path, rules, p.want)
		}
	}
	b.Dark(false)
	b.Go(base + "/dark")
	if found := b.Audit(); len(found) > 0 {
		t.Errorf("the light page: %v", found)
	}
	b.NoScript(true)
	b.Go(base + "/label")
	for _, want := range []string{"label", "https://dequeuniversity.com/rules/axe/", `#nameless  <input id="nameless">`, "Fix any"} {
		if found := b.Audit(); len(found) != 1 || !strings.Contains(found[0].String(), want) {
			t.Errorf("without scripts the findings are %v, want one with %q", found, want)
		}
	}
	b.Complaints() // the browser's own about these pages
}

func TestAxeIsReadFromTheFolderOfTheModule(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "sidecar", "ui")
	for path, text := range map[string]string{"go.mod": "module x", axeFile: "axe", "sidecar/ui/x": ""} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := readAxe(folder); text != "axe" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Remove(filepath.Join(root, axeFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := readAxe(folder); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "npm ci") {
		t.Errorf("without axe-core: %v", err)
	}
	if _, err := readAxe(filepath.Dir(root)); err == nil || errors.Is(err, errMissing) {
		t.Errorf("outside a module: %v", err)
	}
}
