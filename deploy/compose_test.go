//go:build linux

package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// composeVar runs the test of the compose file, which needs Docker.
	composeVar = "BERTH_COMPOSE_TEST"
	// composeImage and composeJobImage are images that the test builds.
	composeImage, composeJobImage = "berth:compose-test", "berth:compose-test-job"
	// composeLimit is how many jobs may run at a time.
	composeLimit = 2
	// composeWait bounds what the test waits for.
	composeWait = time.Minute
	composePoll = 200 * time.Millisecond
)

// docker calls Docker for a test.
type docker struct {
	t       *testing.T
	env     []string
	compose []string // the command, with its files
}

// needDocker returns the docker at DOCKER_HOST, or one of its own, which ends with the test. Without
// Docker the test is skipped.
func needDocker(t *testing.T) *docker {
	t.Helper()
	if os.Getenv(composeVar) == "" {
		t.Skipf("it needs Docker: set %s=1, or run make compose-test", composeVar)
	}
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("there is no docker: install the Debian packages docker.io and docker-compose")
	}
	d := &docker{t: t, env: os.Environ(), compose: []string{"docker", "compose"}}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		d.compose = []string{path}
	} else if out, err := d.try("docker", "compose", "version"); err != nil {
		t.Skipf("there is no docker-compose: install the Debian package docker-compose (%s)", strings.TrimSpace(out))
	}
	if os.Getenv("DOCKER_HOST") == "" {
		d.env = append(d.env, "DOCKER_HOST="+startDocker(t))
	}
	return d
}

// startDocker starts dockerd with folders and a network namespace of its own, so that it leaves no
// bridges and no rules of a firewall on the machine, and returns its address.
func startDocker(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start dockerd: set DOCKER_HOST to use one that runs")
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		t.Skip("there is no dockerd: install the Debian package docker.io, or set DOCKER_HOST")
	}
	dir, err := os.MkdirTemp("", "berth-docker-") // short: it has sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var log bytes.Buffer
	host := "unix://" + filepath.Join(dir, "docker.sock")
	daemon := exec.Command("dockerd", "--host", host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--bridge", "none")
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = daemon.Wait() }()
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM) // it has ended
		<-ended
	})
	d := &docker{t: t, env: append(os.Environ(), "DOCKER_HOST="+host)}
	polls(t, "dockerd does not answer", func() bool {
		select {
		case <-ended:
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			t.Skip("Docker can't run here: " + lines[len(lines)-1])
		default:
		}
		_, err := d.try("docker", "version")
		return err == nil
	})
	return host
}

// polls returns when a condition holds. It fails the test if that takes too long.
func polls(t *testing.T, otherwise string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(composePoll)
	defer tick.Stop()
	for deadline := time.Now().Add(composeWait); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s within %s", otherwise, composeWait)
		}
	}
}

// try runs a command and returns its output.
func (d *docker) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*composeWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run runs a command that must succeed.
func (d *docker) run(args ...string) string {
	d.t.Helper()
	out, err := d.try(args...)
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// service returns the words of docker-compose.
func (d *docker) service(args ...string) []string { return slices.Concat(d.compose, args) }

// in returns the words of a berth command in the container of a service.
func (d *docker) in(service string, args ...string) []string {
	return d.service(slices.Concat([]string{"exec", "-T", service, "berth"}, args)...)
}

// eventually repeats a command until it succeeds.
func (d *docker) eventually(args ...string) {
	d.t.Helper()
	polls(d.t, strings.Join(args, " ")+" does not succeed", func() bool {
		_, err := d.try(args...)
		return err == nil
	})
}

// jobs is the folder that all jobs share.
type jobs string

// newJobs makes the folder, and the files in it, which the users of containers may write.
func newJobs(t *testing.T) jobs {
	t.Helper()
	dir := t.TempDir()
	files := []string{"started", "done", "violations"}
	for i := range composeLimit {
		files = append(files, fmt.Sprintf("lock-%d", i))
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	// Other users pass through the folders of the test.
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return jobs(dir)
}

// names returns the names in a file.
func (j jobs) names(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(string(j), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// up builds the images and starts the servers and the workers.
func (d *docker) up(shared jobs) {
	d.t.Helper()
	dir := d.t.TempDir()
	d.run("make", "-C", "..", "image", "IMAGE="+composeImage)
	d.env = append(d.env, "CGO_ENABLED=0")
	d.run("go", "build", "-o", filepath.Join(dir, "job"), "./testdata/job")
	override := "services:\n"
	for _, name := range []string{"worker-1", "worker-2", "job"} {
		override += fmt.Sprintf("  %s: {volumes: [%q]}\n", name, string(shared)+":/shared")
	}
	for name, text := range map[string]string{
		"Dockerfile":    "FROM " + composeImage + "\nCOPY job /usr/bin/job\n",
		"override.yaml": override,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			d.t.Fatal(err)
		}
	}
	d.run("docker", "build", "-q", "-t", composeJobImage, dir)
	d.env = append(d.env, "COMPOSE_PROJECT_NAME=berthtest",
		"BERTH_IMAGE="+composeImage, "BERTH_WORKER_IMAGE="+composeJobImage, "BERTH_JOB_IMAGE="+composeJobImage)
	d.compose = append(d.compose, "-f", "compose/compose.yaml", "-f", filepath.Join(dir, "override.yaml"))
	d.t.Cleanup(func() {
		if d.t.Failed() {
			out, _ := d.try(d.service("logs", "--no-color", "--tail=50")...)
			d.t.Log(out)
		}
		if out, err := d.try(d.service("down", "-v", "-t", "1", "--remove-orphans")...); err != nil {
			d.t.Errorf("%v\n%s", err, out)
		}
	})
	d.run(d.service("up", "-d")...)
	d.eventually(d.in("b", "cluster", "status")...)
	for _, name := range []string{"a", "worker-1", "worker-2"} {
		d.eventually(d.in(name, "ready")...)
	}
}

// submit queues a run of n jobs of 200 ms.
func (d *docker) submit(id string, n int) {
	d.t.Helper()
	items := "[0"
	for i := 1; i < n; i++ {
		items += fmt.Sprintf(", %d", i)
	}
	file := fmt.Sprintf(`{"id": %q, "steps": [{"name": "job", "items": %s], "concurrency": 8, "pools": {"demo": 1},
		"command": ["job", "/shared", "%s-{{.item}}", "200ms"]}]}`, id, items, id)
	ctx, cancel := context.WithTimeout(context.Background(), composeWait)
	defer cancel()
	words := d.in("b", "submit", "-f", "-")
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env, cmd.Stdin = d.env, strings.NewReader(file)
	if out, err := cmd.CombinedOutput(); err != nil {
		d.t.Fatalf("submit %s: %v\n%s", id, err, out)
	}
}

// wait waits until a run has succeeded.
func (d *docker) wait(id string) {
	d.t.Helper()
	d.run(d.in("b", "runs", "wait", id, "--wait", composeWait.String())...)
}

// Jobs of workers, and one in a container of its own that claims over the socket of a server, never
// exceed the limit, although that server is cut off.
func TestTheComposeFileSurvivesAServerThatIsCutOff(t *testing.T) {
	d := needDocker(t)
	shared := newJobs(t)
	d.up(shared)
	d.run(d.in("a", "pools", "set", "demo", fmt.Sprint(composeLimit), "--lease-duration", "10s")...)

	d.submit("before", 20)
	d.wait("before")
	const holder = "berthtest-holder"
	d.run(d.service("run", "-d", "--name", holder, "job", "exec", "--pool", "demo", "--", "job", "/shared", "holder", "1h")...)
	d.t.Cleanup(func() { _, _ = d.try("docker", "rm", "-f", holder) }) // before the end of dockerd
	polls(t, "the job does not run", func() bool {
		if state := d.run("docker", "inspect", "-f", "{{.State.Running}}", holder); strings.TrimSpace(state) != "true" {
			t.Fatalf("the job has ended:\n%s", d.run("docker", "logs", holder))
		}
		return slices.Contains(shared.names(t, "started"), "holder")
	})

	server := strings.TrimSpace(d.run("docker", "ps", "-q", "--filter", "label=com.docker.compose.project=berthtest", "--filter", "label=com.docker.compose.service=a"))
	const network = "berthtest_default"
	d.submit("during", 60)
	d.run("docker", "network", "disconnect", network, server)
	if code := strings.TrimSpace(d.run("docker", "wait", holder)); code != "76" {
		t.Errorf("the job of the server without a network ended with %s, want 76, a lost claim:\n%s", code, d.run("docker", "logs", holder))
	}
	if out, err := d.try(d.in("b", "cluster", "status")...); err == nil {
		t.Errorf("the server is not cut off:\n%s", out)
	}
	d.wait("during")

	d.run("docker", "network", "connect", "--alias", "a", network, server)
	d.eventually(d.in("b", "cluster", "status")...)
	d.eventually(d.in("a", "ready")...)
	d.submit("after", 20)
	d.run(d.service("run", "--rm", "job", "exec", "--pool", "demo", "--", "job", "/shared", "again", "200ms")...)
	d.wait("after")
	d.run(d.in("c", "verify")...)

	if v := shared.names(t, "violations"); len(v) > 0 {
		t.Errorf("more than %d jobs ran at a time: %s", composeLimit, v)
	}
	if done := shared.names(t, "done"); len(done) != 101 || !slices.Contains(done, "again") || slices.Contains(done, "holder") {
		t.Errorf("%d jobs were done, want 101: %s", len(done), done)
	}
}
