//go:build linux

package docs_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Each page runs in a folder of its own, like a checkout after `make build`, against a
// real berth with a real etcd. Only the addresses differ, since the ones on the page
// may be in use.
func TestPagesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("the pages run other processes: there is nothing to see for the race detector")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing: the pages use it")
	}
	built := build(t)
	for _, p := range pages(t) {
		t.Run(p.name, func(t *testing.T) {
			r := newReader(t, built)
			if p.serve {
				r.serve(t, "bin/berth dev")
			}
			r.follow(t, p)
		})
	}
}

// follow runs the blocks of a page, and compares their output with that on the page.
func (r *reader) follow(t *testing.T, p page) {
	t.Helper()
	for _, v := range p.variables {
		name, value, _ := strings.Cut(v, "=")
		r.env = append(r.env, name+"="+strings.NewReplacer("$PWD", r.dir, "$PATH", os.Getenv("PATH")).Replace(value))
	}
	output, known := "", false // of the block before
	for i, b := range p.blocks {
		shown := i+1 < len(p.blocks) && p.blocks[i+1].lang == "text"
		switch {
		case b.notRun != "":
			known = false
		case b.lang == "text" && known:
			r.compare(t, p, b, output)
		case b.lang == "text":
			t.Fatalf("%s:%d: nothing was run that could print this", p.name, b.line)
		case b.lang == "sh" && b.served:
			r.serve(t, b.text)
		case b.lang == "sh":
			output, known = r.run(t, p, b, r.command(t.Context(), b.text)), true
			if m := refusal.FindString(output); m != "" && !shown {
				t.Errorf("%s:%d: the page does not show that a request is refused: %s", p.name, b.line, m)
			}
		case b.lang == "python":
			output, known = r.run(t, p, b, r.python(t, b.text)), true
		}
	}
}

// patience bounds one block, and the start of a server.
const patience = 2 * time.Minute

// built is the binary that all pages use, and its folder.
var built struct {
	sync.Once
	dir string
	err error
}

// builtVersion is the version of that binary.
const builtVersion = "v0.0.0-of-the-docs"

func TestBuiltBinaryPrintsItsVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the binary of the pages")
	}
	out, err := exec.Command(filepath.Join(build(t), "berth"), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "berth "+builtVersion+" ") {
		t.Errorf("berth version prints %q, %v", out, err)
	}
}

func TestCommandsPageListsTheCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs the binary of the pages")
	}
	page, command := read(t, "reference/cli.md"), regexp.MustCompile(`(?m)^     *([a-z]+)(, [a-z]+)?  +\S`)
	var check func(group ...string)
	check = func(group ...string) {
		out, err := exec.Command(filepath.Join(build(t), "berth"), append(group, "--help")...).Output()
		if err != nil {
			t.Fatalf("berth %s --help: %v", strings.Join(group, " "), err)
		}
		_, rest, _ := strings.Cut(string(out), "\nCOMMANDS:\n")
		rest, _, _ = strings.Cut(rest, "OPTIONS:")
		for _, m := range command.FindAllStringSubmatch("  "+strings.ReplaceAll(rest, "\n", "\n  "), -1) {
			verb := append(slices.Clone(group), m[1])
			check(verb...)
			if name := "`berth " + strings.Join(verb, " ") + "`"; !strings.Contains(page, name) && !slices.Contains([]string{"pools", "claims", "hosts", "actions", "auth", "token", "queue", "runs", "steps", "limits", "source", "bench", "certs", "cluster", "member", "upgrade"}, m[1]) {
				t.Errorf("reference/cli.md does not list %s", name)
			}
		}
	}
	check()
}

func TestMakeBuildTakesTheVersionFromTheCheckout(t *testing.T) {
	dir := t.TempDir()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), makefile, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run("make", "-n", "build"); strings.Contains(got, "ldflags") {
		t.Errorf("without a checkout, make build runs %s", got)
	}
	run("git", "init", "-q")
	run("git", "add", "Makefile")
	run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "x")
	revision := run("git", "rev-parse", "--short=12", "HEAD")
	if got, want := run("make", "-n", "build"), `-ldflags "-X main.release=`+revision+`"`; !strings.Contains(got, want) {
		t.Errorf("make build runs %s, without %s", got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "Makefile"), append(makefile, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := run("make", "-n", "build"), `-ldflags "-X main.release=`+revision+`+dirty"`; !strings.Contains(got, want) {
		t.Errorf("after a change, make build runs %s, without %s", got, want)
	}
}

// build builds the binary once, and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "berth-docs"); built.err != nil {
			return
		}
		cmd := exec.Command("make", "-C", "..", "build", "BIN="+filepath.Join(built.dir, "berth"), "VERSION="+builtVersion)
		cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false") // the checkout may belong to another user
		cmd.Stderr = os.Stderr
		built.err = cmd.Run()
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

func removeBuilt() error { return os.RemoveAll(built.dir) }

// reader follows a page.
type reader struct {
	dir     string
	env     []string
	rewrite *strings.Replacer
	etcd    string // the address of the served berth dev
	// user is who runs the commands of the page, if it is not the user of the tests.
	user *syscall.Credential
}

func newReader(t *testing.T, built string) *reader {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // short: a socket's path is, too
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	makefile, err := filepath.Abs("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	clients, err := filepath.Abs("../clients")
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin": built, "Makefile": makefile, "clients": clients} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{
		dir:     dir,
		rewrite: strings.NewReplacer(),
		env: []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "PYTHONDONTWRITEBYTECODE=1",
			"GO=true", // what make would build is built
			"BERTH_LISTEN=127.0.0.1:0", "BERTH_ETCD_LISTEN=127.0.0.1:0",
		},
	}
}

func (r *reader) command(ctx context.Context, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", r.rewrite.Replace(text))
	cmd.Dir, cmd.Env, cmd.WaitDelay = r.dir, r.env, 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: r.user}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// python returns a command that runs a program with the Python client, at the server of the page.
func (r *reader) python(t *testing.T, text string) *exec.Cmd {
	t.Helper()
	needPython(t)
	path := filepath.Join(r.dir, "program.py")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return r.command(t.Context(), "BERTH_SIDECAR=http://127.0.0.1:7420 python3 "+path)
}

// needPython skips a test without Python, and fails it where every change is checked.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("python3 is missing: pages use it")
		}
		t.Skip("python3 is missing: pages use it")
	}
}

// Programs that are not run, since they need a framework, are at least Python.
func TestProgramsOnThePagesCompile(t *testing.T) {
	if testing.Short() {
		t.Skip("python3 compiles them: there is nothing to see for the race detector")
	}
	needPython(t)
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.lang != "python" {
				continue
			}
			cmd := exec.Command("python3", "-c", "import sys; compile(sys.stdin.read(), 'block', 'exec')")
			cmd.Stdin = strings.NewReader(b.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %v\n%s", p.name, b.line, err, out)
			}
		}
	}
}

// run runs the command of a block and returns its output.
func (r *reader) run(t *testing.T, p page, b block, cmd *exec.Cmd) string {
	t.Helper()
	late := time.AfterFunc(patience, func() { _ = cmd.Cancel() })
	defer late.Stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		_ = cmd.Cancel() // what it has left in the background
		t.Fatalf("%s:%d: %v\n%s\nprinted\n%s", p.name, b.line, err, b.text, out)
	}
	return string(out)
}

var (
	spaces    = regexp.MustCompile(`\s+`)
	refusal   = regexp.MustCompile(`.*"status":[45]\d\d,"code".*`)
	sidecarAt = regexp.MustCompile(`^berth sidecar of host \S+ at http://(\S+), unix://(\S+)$`)
	address   = regexp.MustCompile(`^\s+(http|etcd)\s+http://(\S+)( .*)?$`)

	// slow is what berth prints only where etcd takes longer to answer than it does for a reader.
	slow = regexp.MustCompile(`^\s*berth: waiting for etcd(, up to |: )`)
)

// compare requires that a block is the output, line by line.
func (r *reader) compare(t *testing.T, p page, b block, output string) {
	t.Helper()
	if wrong := shows(b.text, output); wrong != "" {
		t.Errorf("%s:%d: %s; printed\n%s", p.name, b.line, wrong, output)
	}
}

// shows returns where a block on a page is not the output, "" if nowhere. In a line, … is anything; a line
// of … alone is any number of lines.
func shows(block, output string) string {
	rest := slices.DeleteFunc(strings.Split(strings.TrimSpace(output), "\n"), slow.MatchString)
	skip := false // lines that the block leaves out
	for line := range strings.SplitSeq(strings.TrimSpace(block), "\n") {
		if strings.TrimSpace(line) == "…" {
			skip = true
			continue
		}
		pattern := spaces.ReplaceAllString(regexp.QuoteMeta(strings.TrimSpace(line)), `\s+`)
		want := regexp.MustCompile(`^\s*` + strings.ReplaceAll(pattern, "…", ".*") + `\s*$`)
		at := slices.IndexFunc(rest, want.MatchString)
		switch {
		case at < 0:
			return fmt.Sprintf("there is no line %q", line)
		case at > 0 && !skip:
			return fmt.Sprintf("before the line %q, the output has %q, which the page leaves out without …", line, rest[0])
		}
		rest, skip = rest[at+1:], false
	}
	if len(rest) > 0 && !skip {
		return fmt.Sprintf("at the end, the output has %q, which the page leaves out without …", rest[0])
	}
	return ""
}

func TestShownOutputLeavesNothingOutWithoutSayingSo(t *testing.T) {
	const output = "POOL  LIMIT\na     1\nb     2\n"
	for block, complete := range map[string]bool{
		"POOL LIMIT\na 1\nb 2": true, "POOL LIMIT\n…\nb …": true, "…\nb 2": true, "POOL LIMIT\n…": true, "…": true,
		"POOL LIMIT\na 1": false, "a 1\nb 2": false, "POOL LIMIT\nb 2": false, "POOL LIMIT\na 1\nb 2\nc 3": false, "b 2\n…\na 1": false,
	} {
		if wrong := shows(block, output); (wrong == "") != complete {
			t.Errorf("%q: %q", block, wrong)
		}
	}
}

// serve runs berth dev, a sidecar or a worker in the background. It replaces the default
// addresses on the page by those of that berth dev or sidecar.
func (r *reader) serve(t *testing.T, text string) {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	log, err := os.Create(filepath.Join(r.dir, "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := r.command(context.WithoutCancel(t.Context()), text) // it is to stop by itself
	cmd.Stdout, cmd.Stderr = in, log
	err = cmd.Start()
	_, _ = in.Close(), log.Close() // the server has them
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		late := time.AfterFunc(patience, func() {
			t.Error("the server does not stop")
			_ = cmd.Cancel()
		})
		defer late.Stop()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait() // make fails, since it was ended as well
	})
	if err := out.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			at[m[1]] = m[2]
		}
		if strings.HasPrefix(lines.Text(), "berth worker ") {
			return
		}
		if strings.HasPrefix(lines.Text(), "Ctrl-C stops it.") {
			r.etcd = at["etcd"]
			r.rewrite = strings.NewReplacer("127.0.0.1:7420", at["http"], "127.0.0.1:2379", r.etcd)
			return
		}
		if m := sidecarAt.FindStringSubmatch(lines.Text()); m != nil {
			r.rewrite = strings.NewReplacer("127.0.0.1:7420", m[1], "$PWD/.berth/berth.sock", m[2], ".berth/berth.sock", m[2])
			return
		}
	}
	printed, _ := os.ReadFile(filepath.Join(r.dir, "server.log"))
	t.Fatalf("%s\ndoes not serve:\n%s", text, printed)
}
