//go:build linux

package docs_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// A program in another folder uses a clone of the repository as the page says. Its modules are those that
// this test was built from.
func TestAModuleCanUseAClone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	clone, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	app := filepath.Join(dir, "app")
	err = os.Mkdir(app, 0o700)
	err = errors.Join(err, os.Symlink(clone, filepath.Join(dir, "berth")),
		os.WriteFile(filepath.Join(app, "main.go"), []byte("package main\n\nimport \"github.com/berthhq/berth\"\n\nfunc main() { _ = berth.Options{} }\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	commands := blocksOf(t, "how-to/go.md", "sh")[0].text
	// The module is not published. What a proxy answers for it differs, so the commands must not ask one.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/berth/") {
			t.Errorf("how-to/go.md: go asks a proxy for %s", r.URL.Path)
		}
		http.Error(w, "no", http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	cmd := exec.Command("sh", "-ec", "go mod init example.org/app\n"+commands+"go build -o /dev/null .")
	cmd.Dir, cmd.Env = app, append(os.Environ(), "GOPROXY="+proxy.URL, "GONOSUMDB=*", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("how-to/go.md: %v\n%s", err, out)
	}
}

// named is a version of berth in the name of a file, an image or a module.
var named = regexp.MustCompile(`(?i)\bberth[_@:-]v?(\d+\.\d+\.\d+)|newTag: v?(\d+\.\d+\.\d+)`)

func TestPagesNameNoVersionThatWasNotReleased(t *testing.T) {
	released := regexp.MustCompile(`(?m)^## \[v?(\d+\.\d+\.\d+)\]`).FindAllStringSubmatch(read(t, "../CHANGELOG.md"), -1)
	released = append(released, []string{"v0.0.0", "0.0.0"}) // what a go.mod names for a module that a folder replaces
	for _, path := range append(markdown(t), "../README.md", "../deploy/README.md", "../deploy/compose/README.md", "../deploy/kubernetes/README.md", "../clients/python/README.md") {
		for _, m := range named.FindAllStringSubmatch(read(t, path), -1) {
			if !slices.ContainsFunc(released, func(r []string) bool { return r[1] == m[1]+m[2] }) {
				t.Errorf("%s names %s, and the changelog has no such version: say how to build it", path, m[0])
			}
		}
	}
}

var (
	cronVariable = regexp.MustCompile(`^([A-Z_]+)=(.*)$`)
	cronJob      = regexp.MustCompile(`^([0-9*/,-]+\s+){5}(.*)$`)
)

// cron gives a job a short PATH and few other variables, besides those of the crontab, and runs it by sh. It mails what
// a job prints, whatever its exit code is.
func TestJobsOfCrontabsRunInTheEnvironmentOfCron(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs other processes: there is nothing to see for the race detector")
	}
	r := newReader(t, build(t))
	r.serve(t, "bin/berth dev --pool db=3 --pool api=1")
	jobs := filepath.Join(r.dir, "jobs")
	if err := os.Mkdir(jobs, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"load.sh", "poll.sh"} {
		if err := os.WriteFile(filepath.Join(jobs, name), []byte("#!/bin/sh\nexec berth version >/dev/null\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	prepare := func(text string) {
		t.Helper()
		if out, err := r.command(t.Context(), text).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", text, err, out)
		}
	}
	here := strings.NewReplacer("etcd-1:2379,etcd-2:2379,etcd-3:2379", r.etcd, "/opt/jobs/", jobs+"/", "/usr/local/bin", filepath.Join(r.dir, "bin"))
	for _, b := range blocksOf(t, "how-to/cron.md", "crontab") {
		env := []string{"PATH=/usr/bin:/bin", "SHELL=/bin/sh", "HOME=" + r.dir, "LOGNAME=etl"}
		for line := range strings.Lines(here.Replace(b.text)) {
			line = strings.TrimSpace(line)
			if cronVariable.MatchString(line) {
				env = append(env, line)
				continue
			}
			job := cronJob.FindStringSubmatch(line)
			if job == nil {
				t.Fatalf("how-to/cron.md:%d: %q is neither a variable nor a job", b.line, line)
			}
			cron := func(why, want string) {
				t.Helper()
				cmd := exec.Command("/bin/sh", "-c", job[2])
				cmd.Dir, cmd.Env = r.dir, env
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), want) || (want == "") != (len(out) == 0) {
					t.Errorf("how-to/cron.md:%d: %s, %s: %v, and cron mails %q, want %q", b.line, why, job[2], err, out, want)
				}
			}
			cron("with free slots", "")
			if !strings.Contains(job[2], "--wait 0") {
				continue
			}
			prepare("bin/berth pools pause api")
			cron("without free slots", "")
			prepare("bin/berth pools resume api; printf '#!/bin/sh\necho no answer\nexit 3\n' > jobs/poll.sh")
			cron("if the job fails", "no answer")
		}
	}
}
