//go:build linux

package packaging

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unit is what a unit file sets in its section [Service], each with its values in their order.
type unit map[string][]string

// parseUnit reads a unit file.
func parseUnit(text string) unit {
	u, section := unit{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		if key, value, ok := strings.Cut(line, "="); ok && section == "[Service]" && !strings.HasPrefix(line, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u
}

// one returns the value of a setting that has one.
func (u unit) one(key string) string {
	if len(u[key]) != 1 {
		return ""
	}
	return u[key][0]
}

// exposures bound how exposed systemd-analyze finds a service, from 0 to 100. A worker has no
// restrictions, since its commands would have them.
var exposures = map[string]string{
	"berth-server.service": "20", "berth-sidecar.service": "20", "berth-coordinator.service": "15",
	"berth-source@.service": "55", "berth-worker.service": "95",
}

func TestUnitsAreValidAndRestricted(t *testing.T) {
	t.Parallel()
	need(t, "systemd-analyze")
	dir, berth := t.TempDir(), filepath.Join(unpacked(t), "berth")
	for _, name := range units(t) {
		path := filepath.Join(dir, name)
		write(t, path, strings.ReplaceAll(read(t, "systemd/"+name), "/usr/bin/berth", berth)) // a command must exist
		out, err := output("systemd-analyze", "verify", "--man=no", strings.Replace(path, "@.", "@inbox.", 1))
		if err != nil || out != "" {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		out, err = output("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+exposures[name], path)
		if err != nil {
			t.Error(err)
		}
		t.Log(regexp.MustCompile(`Overall.*`).FindString(out))
	}
}

func TestServicesStartAgainAndNotifySystemd(t *testing.T) {
	for _, name := range units(t) {
		u := parseUnit(read(t, "systemd/"+name))
		for key, want := range map[string]string{
			"Type": "notify", "Restart": "always", "RestartSec": "1", "Environment": "BERTH_CONFIG=/etc/berth/berth.yaml",
		} {
			if got := u.one(key); got != want {
				t.Errorf("%s: %s is %q, not %s", name, key, got, want)
			}
		}
		// Those with claims or commands leave them to the next process, and postinstall reloads them.
		reload := slices.Contains([]string{"berth-server.service", "berth-sidecar.service", "berth-worker.service"}, name)
		if got := u.one("ExecReload") != ""; got != reload {
			t.Errorf("%s: it can be reloaded: %t", name, got)
		}
	}
}
