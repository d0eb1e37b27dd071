//go:build linux

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// blocksOf returns the blocks of a page in a language.
func blocksOf(t *testing.T, name, lang string) []block {
	t.Helper()
	var found []block
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if p.name == name && b.lang == lang {
				found = append(found, b)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no block of %s", name, lang)
	}
	return found
}

func TestUnitsOnThePageAreValid(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing")
	}
	dir := t.TempDir()
	verify := func(text string) (string, error) {
		kind := "service"
		if strings.Contains(text, "[Timer]") {
			kind = "timer"
		}
		path := filepath.Join(dir, "nightly-load."+kind)
		text = strings.ReplaceAll(text, "/usr/bin/berth", "/bin/true") // a command must exist
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
		return string(out), err
	}
	for _, b := range blocksOf(t, "how-to/systemd.md", "ini") {
		if out, err := verify(b.text); err != nil || out != "" {
			t.Errorf("how-to/systemd.md:%d: %v\n%s", b.line, err, out)
		}
	}
	if out, _ := verify("[Service]\nExecStart=/bin/true\nKilMode=mixed\n"); out == "" {
		t.Error("a unit with an unknown setting is found valid")
	}
}

func TestYAMLOnThePagesIsValid(t *testing.T) {
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.lang != "yaml" {
				continue
			}
			var value any
			if err := yaml.Unmarshal([]byte(b.text), &value); err != nil {
				t.Errorf("%s:%d: %v", p.name, b.line, err)
			}
		}
	}
}

// jobCommand is a command in a file of a CI system.
var jobCommand = regexp.MustCompile(`(?m)^ *(?:- run: |- |sh ')((?:exec )?berth exec .*?)'?$`)

// The commands of the CI systems run as those run them, in a shell. There is no CI system.
func TestCommandsOfCIJobsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	r := newReader(t, build(t))
	r.serve(t, "bin/berth dev --pool gpu=2")
	stubs := filepath.Join(r.dir, "stubs")
	if err := os.Mkdir(stubs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stubs, "make"), []byte("#!/bin/sh\necho \"$1 with $BERTH_POOLS\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	blocks := append(blocksOf(t, "how-to/ci.md", "yaml"), blocksOf(t, "how-to/ci.md", "groovy")...)
	for _, b := range blocks {
		commands := jobCommand.FindAllStringSubmatch(b.text, -1)
		if len(commands) != 1 {
			t.Fatalf("how-to/ci.md:%d: %d commands: %q", b.line, len(commands), commands)
		}
		cmd := r.command(t.Context(), commands[0][1])
		cmd.Env = append(cmd.Env, "PATH="+stubs+":"+filepath.Join(r.dir, "bin")+":"+os.Getenv("PATH"),
			"BERTH_SIDECAR=unix://"+filepath.Join(r.dir, ".berth/berth.sock"), "BUILD_URL=https://ci.example.org/7",
			"CI_JOB_URL=https://ci.example.org/7", "GITHUB_REPOSITORY=acme/app", "GITHUB_RUN_ID=7")
		out, err := cmd.Output()
		if err != nil || string(out) != "gpu-test with gpu=1\n" {
			t.Errorf("how-to/ci.md:%d: %v, printed %q", b.line, err, out)
		}
	}
}
