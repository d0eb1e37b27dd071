//go:build linux

package packaging

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/internal/testcert"
)

// commented is a setting that is commented out, or a line that continues one.
var commented = regexp.MustCompile(`(?m)^#([a-z_]+:.*|  - .*)$`)

// elsewhere are settings that the file does not have, since they are for clients, are secrets,
// or are in the units.
var elsewhere = map[string]bool{
	"sidecar": true, "sidecar_cacert": true, "sidecar_cert": true, "sidecar_key": true, "token": true, "token_file": true, "insecure": true,
	"password": true, "state_dir": true,
}

// load reads a settings file with the reader of the services.
func load(t *testing.T, path string) (config.Settings, error) {
	t.Helper()
	return config.Load(config.Sources{File: path})
}

func TestThePackagedSettingsAreValid(t *testing.T) {
	s, err := load(t, "berth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s.Socket != "/run/berth/berth.sock" || s.DataDir != "/var/lib/berth" {
		t.Errorf("the socket is %s, the data %s", s.Socket, s.DataDir)
	}
}

// The file with all its settings is valid, and has every setting of services: it can't be
// out of date.
func TestTheCommentedSettingsAreValidAndComplete(t *testing.T) {
	text := commented.ReplaceAllString(read(t, "berth.yaml"), "$1")
	for _, f := range config.Fields() {
		has := regexp.MustCompile(`(?m)^` + f.Name + `:`).MatchString(text)
		if has == elsewhere[f.Name] {
			t.Errorf("setting %s is in the file: %t", f.Name, has)
		}
	}
	dir, ca := t.TempDir(), testcert.New(t)
	host, client := ca.Server(t), ca.Client(t, "host-1")
	for name, from := range map[string]string{
		"etcd-ca.pem": ca.File, "etcd-client.pem": client.CertFile, "etcd-client-key.pem": client.KeyFile,
		"host.pem": host.CertFile, "host-key.pem": host.KeyFile, "clients-ca.pem": ca.File,
	} {
		write(t, filepath.Join(dir, name), read(t, from))
	}
	write(t, filepath.Join(dir, "etcd-password"), "secret\n")
	write(t, filepath.Join(dir, "tokens.yaml"), "")
	path := filepath.Join(dir, "berth.yaml")
	write(t, path, strings.ReplaceAll(text, "/etc/berth/", dir+"/"))
	s, err := load(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Coordinator || s.SocketMode != 0o660 || len(s.Roles) != 2 || len(s.Endpoints) != 3 {
		t.Errorf("the settings are not read:\n%s", s)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
