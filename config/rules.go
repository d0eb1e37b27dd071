package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/own"
	"github.com/berthhq/berth/internal/problem"
	words "github.com/berthhq/berth/internal/text"
)

// rules checks the rules between fields, and sets the defaults that depend on the machine.
func (l *loader) rules() {
	l.login()
	if l.need(Access) && l.settings.Sidecar != "" {
		l.access()
	}
	if l.need(Instance, State) {
		l.host()
	}
	if l.isServer() {
		l.member()
	} else if l.need(Dev) && l.sound("etcd_listen") && !isLoopback(l.settings.EtcdListen) {
		l.wrong("etcd_listen", fmt.Sprintf("%q must be a loopback address such as 127.0.0.1:2379, since everyone who can connect can write", l.settings.EtcdListen))
	}
	if l.origins["endpoints"].strength == byDefault {
		l.findEtcd()
	}
	if l.need(Etcd) {
		l.etcd()
	}
	if l.need(State) {
		l.state()
		l.folder("state_dir", l.settings.StateDir)
	}
	if l.need(Dev) && (l.need(Serve) || !l.isServer()) { // a restore makes the data for the owner of the folder
		l.folder("data_dir", l.settings.DataDir)
	}
	if l.need(Serve) {
		l.serve()
	}
}

// isServer reports whether the settings are those of a server of a cluster.
func (l *loader) isServer() bool { return slices.Contains(l.groups, Server) }

// login takes the user apart, and finds the password that counts.
func (l *loader) login() {
	s := &l.settings
	name, inline, _ := strings.Cut(s.User, ":")
	s.User = name
	offers := l.offers("password", s.Password, s.passwordFile)
	if inline != "" {
		offers = append(offers, offer{field: "user", from: l.origins["user"], text: Secret(inline)})
	}
	if !l.need(Etcd) {
		s.Password = ""
		return
	}
	s.Password = l.secret("password", offers)
	switch {
	case s.User == "" && len(offers) > 0 && l.sound("user"):
		l.wrong(offers[0].field, "needs a user")
	case s.User != "" && s.Password == "" && l.sound("password") && l.sound("password_file"):
		l.wrong("user", "has no password: give one as NAME:PASSWORD, in BERTH_PASSWORD or in password_file")
	}
}

func (l *loader) etcd() {
	s := &l.settings
	if (s.CACert != "" || s.Cert != "") && !s.onSockets() {
		for _, e := range s.Endpoints {
			if strings.HasPrefix(e, "http://") || strings.HasPrefix(e, unixScheme) {
				l.wrong("endpoints", fmt.Sprintf("%q has no TLS, but cacert or cert is set", e))
			}
		}
	}
	l.pair("cert", s.Cert, "key", s.Key)
	_, problems := s.clientTLS(nil)
	l.files(problems)
}

func (l *loader) access() {
	s := &l.settings
	s.Token = l.secret("token", l.offers("token", s.Token, s.tokenFile))
	if (s.SidecarCACert != "" || s.SidecarCert != "") && !s.secureSidecar() {
		l.wrong("sidecar", fmt.Sprintf("%q has no TLS, but sidecar_cacert or sidecar_cert is set", s.Sidecar))
	}
	if err := access.CheckPlain(s.Sidecar); err != nil && s.Token != "" && !s.Insecure {
		l.wrong("sidecar", err.Error())
	}
	l.pair("sidecar_cert", s.SidecarCert, "sidecar_key", s.SidecarKey)
	_, problems := s.sidecarTLS(nil)
	l.files(problems)
}

// host fills in the host's name.
func (l *loader) host() {
	if l.settings.Host != "" || !l.sound("host") {
		return
	}
	if s := &l.settings; l.isServer() && s.Name != "" {
		s.Host, l.origins["host"] = s.Name, l.origins["name"]
		return
	}
	l.origins["host"] = origin{byDefault, "the host name of the machine"}
	name, err := l.src.Hostname()
	if err != nil {
		l.wrong("host", fmt.Sprintf("can't be determined: %v: set it", err))
		return
	}
	f, _ := lookup("host")
	l.set(f, words.Host(name), l.origins["host"])
}

// folder refuses a folder for state that other users can change.
func (l *loader) folder(field, dir string) {
	if dir == "" || !l.sound(field) {
		return
	}
	if err := own.Folder(dir); err != nil {
		l.wrong(field, err.Error())
	}
}

// state fills in the state directory, which depends on the host's name.
func (l *loader) state() {
	s := &l.settings
	if s.StateDir != "" || !l.sound("state_dir") || !l.sound("host") {
		return
	}
	base, err := l.stateHome()
	if err != nil {
		l.wrong("state_dir", err.Error())
		return
	}
	s.StateDir = filepath.Join(base, "berth", s.Host)
}

func (l *loader) stateHome() (string, error) {
	if dir, _ := l.src.Env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib", nil
	}
	if dir, _ := l.src.Env("HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, ".local", "state"), nil
	}
	return "", fmt.Errorf("is not set, and there is no home directory for the default")
}

func (l *loader) serve() {
	s := &l.settings
	if s.Listen == "" && s.Socket == "" && l.sound("listen") && l.sound("socket") {
		l.wrong("listen", "is empty, and so is socket: no client could connect")
	}
	if _, err := access.ParsePolicy(s.Roles); err != nil && l.sound("roles") {
		l.wrong("roles", problem.Of(err).Message)
	}
	l.pair("tls_cert", s.TLSCert, "tls_key", s.TLSKey)
	if s.ClientCA != "" && s.TLSCert == "" && s.TLSKey == "" {
		l.wrong("client_ca", "is set without tls_cert and tls_key")
	}
	_, problems := s.serverTLS(nil)
	l.files(problems)
	_, problems = s.serverTokens(nil)
	l.files(problems)
	if s.Listen == "" || isLoopback(s.Listen) || !l.sound("listen") {
		return
	}
	open := fmt.Sprintf("%q can be reached from other machines: it needs ", s.Listen)
	if s.TLSCert == "" && s.TLSKey == "" {
		l.wrong("listen", open+"tls_cert and tls_key, or a loopback address")
	}
	if s.TokensFile == "" && s.ClientCA == "" {
		l.wrong("listen", open+"tokens_file or client_ca, or a loopback address")
	}
}

// pair checks that a certificate and its key go together.
func (l *loader) pair(certField, cert, keyField, key string) {
	switch {
	case cert != "" && key == "":
		l.wrong(certField, "is set without "+keyField)
	case cert == "" && key != "":
		l.wrong(keyField, "is set without "+certField)
	}
}

// files notes what is wrong with files, and where their names came from.
func (l *loader) files(problems Problems) {
	for _, p := range problems {
		p.Source = l.origins[p.Field].name
		l.problems = append(l.problems, p)
	}
}
