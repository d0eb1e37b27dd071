//go:build linux

package packaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// patience bounds how long a test waits for what must come.
const patience = time.Minute

// berth is the command of an operator.
const berth = "BERTH_CONFIG=/etc/berth/berth.yaml berth "

// enter runs a command in the root that is its first argument. It has a /proc for as long as
// the command runs, and no mount is left.
const enter = `root=$1; shift; mount --bind /proc "$root/proc"; exec chroot "$root" "$@"`

// host is a clean Debian in a folder.
type host struct {
	*testing.T
	root string
}

// newHost makes a clean Debian with what the package depends on, and with a systemctl that
// writes down how it is called: there is no systemd.
func newHost(t *testing.T) *host {
	t.Helper()
	skipShort(t)
	need(t, "dpkg", "mmdebstrap", "unshare")
	if os.Geteuid() != 0 {
		missing(t, "only root can make a root of Debian")
	}
	if err := command("unshare", "--mount", "true"); err != nil {
		missing(t, "mounts are not allowed here: "+err.Error())
	}
	h := &host{t, filepath.Join(t.TempDir(), "root")}
	if err := command("sh", "-ec", `. /etc/os-release
		mmdebstrap --quiet --variant=essential --include=systemd-standalone-sysusers,systemd-standalone-tmpfiles "$VERSION_CODENAME" "$1"`, "sh", h.root); err != nil {
		t.Fatal(err)
	}
	h.sh(`mkdir -p /run/systemd/system
		printf '#!/bin/sh\necho "$*" >>/systemctl.log\n' >/usr/bin/systemctl
		chmod 755 /usr/bin/systemctl
		systemd-sysusers --inline 'u member -' 'u other -'`)
	return h
}

// command returns a command that runs in the root.
func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation=private", "sh", "-ec", enter, "sh", h.root}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	return cmd
}

// sh runs a script in the root and returns what it prints.
func (h *host) sh(script string) string {
	h.Helper()
	out, err := h.command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		h.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// until runs a script until it prints what is wanted.
func (h *host) until(script, want string) {
	h.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		out, _ := h.command("sh", "-ec", script).CombinedOutput()
		if strings.Contains(string(out), want) {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			h.Fatalf("%s prints, without %q:\n%s", script, want, out)
		}
	}
}

// install installs a Debian package.
func (h *host) install(deb string) {
	h.Helper()
	data, err := os.ReadFile(deb)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.root, "berth.deb"), data, 0o600)
	}
	if err != nil {
		h.Fatal(err)
	}
	h.sh("dpkg -i /berth.deb")
}

// calls returns the calls of systemctl since the last time.
func (h *host) calls() string {
	h.Helper()
	return h.sh("touch /systemctl.log; cat /systemctl.log; rm /systemctl.log")
}

func TestThePackageIsInstalledUpgradedAndRemoved(t *testing.T) {
	t.Parallel() // the root is made while the releases are built
	h := newHost(t)
	h.install(debOf(t, "old"))
	if got, want := h.calls(), "daemon-reload\n"; got != want {
		t.Errorf("the first installation calls systemctl with\n%s", got)
	}
	for script, want := range map[string]string{
		"berth version":                               "berth " + oldVersion + " ",
		"id -Gn berth":                                "berth\n",
		"id -Gn berth-worker":                         "berth-worker berth\n",
		"stat -c '%A %U %G' /run/berth":               "drwxr-x--- berth berth\n",
		"stat -c '%A %U %G' /etc/berth/berth.yaml":    "-rw-r--r-- root root\n",
		"ls /var/lib | grep berth || echo none":       "none\n",
		"ls /etc/systemd/system | grep berth || true": "",
	} {
		if got := h.sh(script); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s prints %q, not %q", script, got, want)
		}
	}

	etcd := embedtest.New(t)
	h.sh(fmt.Sprintf("systemd-sysusers --inline 'm member berth'; printf 'endpoints: %s\\nhost: one\\nlisten: 127.0.0.1:0\\n' >>/etc/berth/berth.yaml", etcd.Endpoint()))
	settings := h.sh("cat /etc/berth/berth.yaml")
	h.sh(`mkdir /srv/inbox; touch /srv/inbox/a; cat >/etc/berth/sources/inbox.yaml <<END
name: inbox
list: [ls, /srv/inbox]
run: {steps: [{name: one, command: [id, -un]}]}
END`)
	h.sh(berth + "pools set demo 1")

	s := &services{host: h, running: map[string]*service{}}
	defer s.stopAll()
	for _, name := range []string{"berth-sidecar", "berth-coordinator", "berth-worker", "berth-source@inbox"} {
		s.start(name)
	}
	if got := h.sh("stat -c '%A %U %G' /run/berth/berth.sock"); got != "srw-rw---- berth berth\n" {
		t.Errorf("the socket is %s", got)
	}
	// The only capability of the sidecar is to stop processes of other users: CAP_KILL is the sixth.
	if got := h.sh(fmt.Sprintf("grep -E '^Cap(Eff|Bnd)|^NoNew' /proc/%d/status | tr -d '\\n'", s.running["berth-sidecar"].Process.Pid)); got != "CapEff:\t0000000000000020CapBnd:\t0000000000000020NoNewPrivs:\t1" {
		t.Errorf("the rights of the sidecar are %q", got)
	}
	// A step runs as the user of the worker.
	h.until(berth+"runs logs inbox.a", "berth-worker\n")

	const asUser = `setpriv --reuid %s --regid %[1]s --init-groups env BERTH_SIDECAR=unix:///run/berth/berth.sock berth `
	if out, err := h.command("sh", "-c", fmt.Sprintf(asUser, "other")+"exec --pool demo -- true").CombinedOutput(); err == nil || !strings.Contains(string(out), "permission denied") {
		t.Errorf("a user who is not in group berth claims: %v\n%s", err, out)
	}
	job := h.command("sh", "-c", "exec "+fmt.Sprintf(asUser, "member")+"exec --id job --pool demo -- sh -c 'touch /tmp/claimed; until test -e /tmp/go; do sleep 0.1; done; echo done'")
	var printed strings.Builder
	job.Stdout, job.Stderr = &printed, &printed
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Process.Kill() }() // if the test fails before
	h.until("test -e /tmp/claimed && echo claimed", "claimed")
	before := h.claim()
	h.sh(berth + `submit --id step -- sh -c 'touch /tmp/began; until test -e /tmp/go; do sleep 0.1; done; echo "attempt $BERTH_ATTEMPT"'`)
	h.until("test -e /tmp/began && echo began", "began")

	h.install(debOf(t, "new"))
	wanted := `daemon-reload
try-reload-or-restart berth-server.service berth-sidecar.service berth-worker.service
try-restart berth-coordinator.service berth-source@*.service
`
	if got := h.calls(); got != wanted {
		t.Errorf("the upgrade calls systemctl with\n%s", got)
	}
	// The scripts of the RPM package are the same: it calls them with a number of versions.
	for script, want := range map[string]string{"postinst 1": "daemon-reload\n", "postinst 2": wanted, "prerm 1": "", "postrm 1": ""} {
		h.sh("/var/lib/dpkg/info/berth." + script)
		if got := h.calls(); got != want {
			t.Errorf("%s calls systemctl with\n%s", script, got)
		}
	}
	// What systemd does then: reload, and start again what has ended.
	s.reload("berth-sidecar")
	s.reload("berth-worker")
	s.restart("berth-coordinator")
	s.restart("berth-source@inbox")
	if got := h.sh("cat /etc/berth/berth.yaml"); got != settings {
		t.Errorf("the upgrade has changed the settings:\n%s", got)
	}
	h.until(berth+"hosts list | grep sidecar", newVersion+" ")
	h.until(berth+"hosts list | grep worker", newVersion+" ")
	if after := h.claim(); after != before {
		t.Errorf("the claim was %+v, and is %+v after the upgrade", before, after)
	}
	h.sh("touch /tmp/go")
	if err := job.Wait(); err != nil || !strings.Contains(printed.String(), "done\n") {
		t.Errorf("the job ends with %v:\n%s", err, printed.String())
	}
	h.until(berth+"runs logs step", "attempt 1\n")

	h.revoked()

	h.sh(`mkdir -p /etc/systemd/system/multi-user.target.wants
		ln -s /usr/lib/systemd/system/berth-source@.service /etc/systemd/system/multi-user.target.wants/berth-source@inbox.service
		dpkg -r berth
		rm /etc/systemd/system/multi-user.target.wants/*`)
	wanted = `stop berth-source@*.service berth-worker.service berth-coordinator.service berth-sidecar.service berth-server.service
--quiet disable berth-worker.service berth-coordinator.service berth-sidecar.service berth-server.service
--quiet disable berth-source@inbox.service
daemon-reload
`
	if got := h.calls(); got != wanted {
		t.Errorf("the removal calls systemctl with\n%s", got)
	}
	sidecar := s.running["berth-sidecar"]
	s.stopAll()
	if log := sidecar.log.String(); !strings.Contains(log, "serves all users of this machine and can't tell who calls") {
		t.Errorf("the sidecar does not warn of its open address:\n%s", log)
	}
	if got := h.sh("ls -d /usr/bin/berth /run/berth /etc/berth/berth.yaml /etc/berth/sources/inbox.yaml /var/lib/berth-sidecar 2>/dev/null || true"); got != "/etc/berth/berth.yaml\n/etc/berth/sources/inbox.yaml\n/var/lib/berth-sidecar\n" {
		t.Errorf("after the removal there are\n%s", got)
	}
	h.sh("dpkg -P berth")
	if got := h.sh("find / -xdev \\( -path /proc -o -path /berth.deb \\) -prune -o -name '*berth*' -print; dpkg -l | grep berth || true"); got != "" {
		t.Errorf("after a purge there are\n%s", got)
	}
}

// revoked checks that the sidecar, which is not root's, stops a process of another user whose
// claim is revoked.
func (h *host) revoked() {
	h.Helper()
	job := h.command("setpriv", "--reuid", "other", "--regid", "other", "--init-groups", "sleep", "600")
	if err := job.Start(); err != nil {
		h.Fatal(err)
	}
	defer func() { _ = job.Process.Kill() }() // if the test fails before
	h.until(fmt.Sprintf("cat /proc/%d/comm", job.Process.Pid), "sleep")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.root, "run/berth/berth.sock"))
	}}}
	resp, err := client.Post("http://localhost/v1/claims", "application/json",
		strings.NewReader(fmt.Sprintf(`{"id": "bound", "pools": {"demo": 1}, "pid": %d}`, job.Process.Pid)))
	if err != nil {
		h.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode/100 != 2 {
		h.Errorf("the claim is answered with %s: %s, %v", resp.Status, body, err)
	}
	h.sh(berth + "claims revoke bound")
	late := time.AfterFunc(patience, func() { _ = job.Process.Kill() })
	defer late.Stop()
	if err := job.Wait(); err == nil || err.Error() != "signal: terminated" {
		h.Errorf("the process of the revoked claim ends with %v", err)
	}
}

// held is a claim, and what an upgrade must not change of it.
type held struct {
	Status string
	Fence  int64
}

// claim returns the claim of the job.
func (h *host) claim() held {
	h.Helper()
	var c held
	if err := json.Unmarshal([]byte(h.sh(berth+"claims info job -o json")), &c); err != nil || c.Fence == 0 || c.Status != "held" {
		h.Fatalf("the claim is %+v, %v", c, err)
	}
	return c
}
