package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command and every flag that users see is on a man page.
func TestManPagesHaveAllCommands(t *testing.T) {
	dir := t.TempDir()
	var stderr strings.Builder
	if code := perform(t.Context(), []string{"berth", "man", dir}, io.Discard, &stderr); code != 0 {
		t.Fatalf("berth man exits with %d: %s", code, stderr.String())
	}
	root := rootOf(newApp(io.Discard, io.Discard))
	pages := 1
	for _, c := range root.Subcommands {
		if c.Hidden {
			continue
		}
		pages++
		data, err := os.ReadFile(filepath.Join(dir, "berth-"+c.Name+".1"))
		if err != nil {
			t.Fatal(err)
		}
		page := string(data)
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, ".") && !strings.Contains(" .TH .SH .SS .PP .TP .br .nf .fi ", " "+strings.Fields(line)[0]+" ") {
				t.Errorf("%s has a request by accident: %q", c.HelpName, line)
			}
		}
		for _, below := range append(c.Subcommands, c) {
			for _, row := range flagRows(below.Flags) {
				if !strings.Contains(page, roff(row[0])) || !strings.Contains(page, roff(row[1])) {
					t.Errorf("the page of %s lacks %s", below.HelpName, row[0])
				}
			}
			if !strings.Contains(page, roff(below.HelpName)) || !strings.Contains(page, roff(below.Usage)) {
				t.Errorf("the page of %s lacks %s", c.HelpName, below.HelpName)
			}
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != pages {
		t.Errorf("there are %d pages, not %d; %v", len(files), pages, err)
	}
}

func TestTextIsNoRequestOfRoff(t *testing.T) {
	for text, want := range map[string]string{
		".berth is a folder": `\&.berth is a folder`, "'a' or b": `\&'a' or b`, `a\n-b`: `a\en\-b`, "": "",
	} {
		if got := roff(text); got != want {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
	}
}
