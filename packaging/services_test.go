//go:build linux

package packaging

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// services runs the services of a host from its installed units, in place of systemd: their
// user, groups, capabilities, environment, folders and commands. It does not apply the other
// restrictions.
type services struct {
	*host
	running map[string]*service
}

// service is a process of a unit.
type service struct {
	*exec.Cmd
	unit
	log bytes.Buffer
}

// unit reads an installed unit.
func (s *services) unit(name string) unit {
	s.Helper()
	file, instance, _ := strings.Cut(name, "@")
	if instance != "" {
		file += "@"
	}
	data, err := os.ReadFile(filepath.Join(s.root, "usr/lib/systemd/system", file+".service"))
	if err != nil {
		s.Fatal(err)
	}
	return parseUnit(strings.ReplaceAll(string(data), "%i", instance))
}

// start starts a service, and waits until it has notified systemd that it is ready.
func (s *services) start(name string) {
	s.Helper()
	p := &service{unit: s.unit(name)}
	for _, dir := range strings.Fields(p.one("StateDirectory")) {
		s.sh(fmt.Sprintf("install -d -m %s -o %s -g %s /var/lib/%s", p.one("StateDirectoryMode"), p.one("User"), p.one("Group"), dir))
	}
	const notify = "/run/notify"
	socket := filepath.Join(s.root, notify)
	_ = os.Remove(socket) // of the service before
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err == nil {
		err = os.Chmod(socket, 0o777)
	}
	if err != nil {
		s.Fatal(err)
	}
	defer ready.Close()

	args := []string{"setpriv", "--reuid", p.one("User"), "--regid", p.one("Group"), "--init-groups"}
	if p.one("NoNewPrivileges") == "yes" {
		args = append(args, "--no-new-privs")
	}
	if _, ok := p.unit["CapabilityBoundingSet"]; ok {
		args = append(args, "--bounding-set=-all"+capability(p.one("CapabilityBoundingSet")))
	}
	if c := p.one("AmbientCapabilities"); c != "" {
		args = append(args, "--inh-caps=-all"+capability(c), "--ambient-caps=-all"+capability(c))
	}
	args = append(args, "env", "--chdir=/"+p.one("WorkingDirectory"), "NOTIFY_SOCKET="+notify, p.one("Environment"))
	args = append(args, strings.Fields(strings.ReplaceAll(p.one("ExecStart"), "$BERTH_OPTIONS", ""))...)
	p.Cmd = s.command(args...)
	p.Stdout, p.Stderr = &p.log, &p.log
	if err := p.Start(); err != nil {
		s.Fatal(err)
	}
	s.running[name] = p
	got := make([]byte, 64)
	if err := ready.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.Fatal(err)
	}
	if n, err := ready.Read(got); err != nil || string(got[:n]) != "READY=1" {
		_ = p.Process.Kill()
		_ = p.Wait()
		s.Fatalf("%s has notified %q, %v:\n%s", name, got[:n], err, p.log.String())
	}
}

// capability writes a capability as setpriv reads it: CAP_KILL is ,+kill.
func capability(name string) string {
	if name == "" {
		return ""
	}
	return ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
}

// reload does what ExecReload= of a service says, which ends it, and starts it again.
func (s *services) reload(name string) {
	s.Helper()
	p := s.running[name]
	_, script, ok := strings.Cut(p.one("ExecReload"), "/bin/sh -c '")
	if !ok {
		s.Fatalf("%s is reloaded with %q", name, p.one("ExecReload"))
	}
	script = strings.ReplaceAll(strings.TrimSuffix(script, "'"), "$MAINPID", fmt.Sprint(p.Process.Pid))
	s.sh(fmt.Sprintf("setpriv --reuid %s --regid %s --clear-groups sh -c '%s'", p.one("User"), p.one("Group"), script))
	s.ended(name)
	s.start(name)
}

// restart stops a service and starts it again.
func (s *services) restart(name string) {
	s.Helper()
	s.stop(name)
	s.start(name)
}

// stop stops a service.
func (s *services) stop(name string) {
	s.Helper()
	if err := s.running[name].Process.Signal(syscall.SIGTERM); err != nil {
		s.Errorf("%s: %v", name, err)
	}
	s.ended(name)
}

// ended waits for the end of a service, which must have exited with 0.
func (s *services) ended(name string) {
	s.Helper()
	p := s.running[name]
	delete(s.running, name)
	late := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	defer late.Stop()
	if err := p.Wait(); err != nil {
		s.Errorf("%s ends with %v:\n%s", name, err, p.log.String())
	}
}

// stopAll stops what runs.
func (s *services) stopAll() {
	s.Helper()
	for name := range s.running {
		s.stop(name)
	}
}
