package main

import (
	"strings"
	"testing"

	"github.com/berthhq/berth/config"
)

func TestDevTellsWhereItsPagesAre(t *testing.T) {
	var b strings.Builder
	banner(&page{out: &b}, addresses{HTTP: "http://127.0.0.1:7420", Etcd: "http://127.0.0.1:2379", DataDir: "/data", PID: 7}, "berth")
	if !strings.Contains(b.String(), "\n  pages  http://127.0.0.1:7420/pools\n") {
		t.Errorf("%s", b.String())
	}
	if !strings.Contains(b.String(), "\n  etcd   http://127.0.0.1:2379 (open: all users of this machine can read and change everything)\n") {
		t.Errorf("it does not say that its etcd is open: %s", b.String())
	}
	b.Reset()
	banner(&page{out: &b}, addresses{Socket: "unix:///data/berth.sock", Etcd: "http://127.0.0.1:2379", DataDir: "/data", PID: 7}, "berth")
	if strings.Contains(b.String(), "pages") {
		t.Errorf("a browser can't go there: %s", b.String())
	}
}

// A command of a clone is typed as bin/berth: a plain berth is not on the PATH of its user.
func TestDevSuggestsCommandsByTheNameUnderWhichItWasStarted(t *testing.T) {
	for name, suggested := range map[string]string{"berth": "berth", "bin/berth": "bin/berth"} {
		var b strings.Builder
		banner(&page{out: &b}, addresses{Etcd: "http://127.0.0.1:2379", DataDir: "/data", PID: 7}, name)
		for _, command := range []string{" pools set demo 3\n", " exec --pool demo -- sleep 10\n", " pools info demo\n"} {
			if !strings.Contains(b.String(), "\n  "+suggested+command) {
				t.Errorf("started as %s, it does not suggest %q: %s", name, suggested+command, b.String())
			}
		}
	}
}

func TestDevIsOpenOnlyWithoutSettingsOfAccess(t *testing.T) {
	if !devOpen(config.Settings{}) {
		t.Error("it is not open by default")
	}
	for _, s := range []config.Settings{{TokensFile: "tokens.yaml"}, {ClientCA: "ca.pem"}, {Roles: []string{"anonymous view"}}} {
		if devOpen(s) {
			t.Errorf("it is open with %+v", s)
		}
	}
}
