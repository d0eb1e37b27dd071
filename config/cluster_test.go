package config

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/certs"
)

// memberFiles makes an authority, and a certificate of a member with some addresses.
func memberFiles(t *testing.T, hosts ...string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certs")
	if _, err := certs.Init(dir, time.Hour); err != nil {
		t.Fatal(err)
	}
	a, err := certs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Issue(certs.Request{Name: "m", Hosts: hosts, Lifetime: time.Hour}, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"cacert": filepath.Join(dir, certs.AuthorityCert), "cert": pair.CertFile, "key": pair.KeyFile}
}

func with(flags map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for name, value := range flags {
		all[name] = value
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// serverGroups are those of berth server.
var serverGroups = []Group{Common, Etcd, Server, Dev, Instance, Serve, Lead, Claims}

func TestASettingOfAServerThatIsWrongIsNamed(t *testing.T) {
	good, client := memberFiles(t, "10.0.0.1"), memberFiles(t)
	const three = "a=https://10.0.0.1:7423,b=https://10.0.0.2:7423,c=https://10.0.0.3:7423"
	for name, tc := range map[string]struct {
		flag map[string]string
		want string // "field: words of the message"; empty is none
	}{
		"three members":                      {flag: with(good, "name", "a", "cluster", three)},
		"a member alone":                     {flag: with(nil, "name", "a")},
		"another name":                       {flag: with(good, "name", "d", "cluster", three), want: "name: is not among the members of cluster: a=https"},
		"no certificate":                     {flag: with(nil, "name", "a", "cluster", three), want: "cacert: is not set"},
		"a certificate of another address":   {flag: with(good, "name", "b", "cluster", three), want: "cert: is not for 10.0.0.2"},
		"a certificate of a client":          {flag: with(client, "name", "a", "cluster", three), want: "cert: is not for both servers and clients"},
		"a certificate of another authority": {flag: with(good, "name", "a", "cluster", three, "cacert", client["cacert"]), want: "cert: is not signed by an authority in"},
		"no TLS":                             {flag: with(nil, "name", "a", "cluster", "a=http://10.0.0.1:7423"), want: "cluster: has no TLS"},
		"no TLS on loopback":                 {flag: with(nil, "name", "a", "cluster", "a=http://127.0.0.1:7423,b=http://127.0.0.2:7423")},
		"a port that others can't know":      {flag: with(nil, "name", "a", "cluster", "a=http://127.0.0.1:7423", "etcd_listen", "127.0.0.1:0"), want: "etcd_listen: port 0"},
		"clients from elsewhere without it":  {flag: with(nil, "name", "a", "cluster", "a=http://127.0.0.1:7423", "etcd_listen", "0.0.0.0:2379"), want: "etcd_listen: can be reached"},
		"alone with TLS":                     {flag: with(good, "name", "a", "etcd_listen", "10.0.0.1:2379")},
		"alone at the default address":       {flag: with(good, "name", "a"), want: "cert: is not for 127.0.0.1"},
		"alone with a part of TLS":           {flag: with(nil, "name", "a", "cacert", good["cacert"]), want: "key: is not set, and a server with one of cacert, cert and key needs all three"},
		"alone at an open address":           {flag: with(nil, "name", "a", "etcd_listen", "127.0.0.1:2379"), want: "etcd_listen: can't be set without cacert, cert and key"},
		"alone at all addresses":             {flag: with(good, "name", "a", "etcd_listen", "0.0.0.0:2379"), want: "etcd_listen: does not say at which address"},
		"alone at a port that none knows":    {flag: with(good, "name", "a", "etcd_listen", "10.0.0.1:0"), want: "etcd_listen: port 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(given{flag: tc.flag}.sources(t), serverGroups...)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var problems Problems
			errors.As(err, &problems)
			field, words, _ := strings.Cut(tc.want, ": ")
			if !slices.ContainsFunc(problems, func(p Problem) bool { return p.Field == field && strings.Contains(p.Message, words) }) {
				t.Errorf("the problems are %v, want %s", err, tc.want)
			}
		})
	}
}

func TestTheSettingsOfAServerFollowFromItsCluster(t *testing.T) {
	s, err := Load(given{flag: with(memberFiles(t, "10.0.0.2"), "name", "b", "cluster", "a=https://10.0.0.1:7423,b=https://10.0.0.2:7423")}.sources(t), serverGroups...)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"https://10.0.0.2:2379", "https://10.0.0.1:2379"}, s.Endpoints); d != "" {
		t.Errorf("its own endpoint is not the first (-want +got):\n%s", d)
	}
	if s.EtcdListen != "10.0.0.2:2379" || s.DataDir != "/var/lib/berth" {
		t.Errorf("it listens at %s, with data in %s", s.EtcdListen, s.DataDir)
	}

	s, err = Load(given{flag: with(memberFiles(t, "a.example.org"), "name", "a", "cluster", "a=https://a.example.org:7423", "data_dir", "d", "etcd_listen", "127.0.0.1:9")}.sources(t), serverGroups...)
	if err != nil || s.EtcdListen != "127.0.0.1:9" || s.DataDir != "d" || s.Endpoints[0] != "https://a.example.org:9" {
		t.Errorf("what is set does not count: %v, %v", s, err)
	}
	if s, err = Load(given{flag: with(memberFiles(t, "a.example.org"), "name", "a", "cluster", "a=https://a.example.org:7423")}.sources(t), serverGroups...); err != nil || s.EtcdListen != "0.0.0.0:2379" {
		t.Errorf("a member with a name listens at %s, %v", s.EtcdListen, err)
	}
}

func TestTheNamesOfAServerAndOfItsHostFollowFromEachOther(t *testing.T) {
	for name, tc := range map[string]struct {
		flag       map[string]string
		name, host string
	}{
		"neither":  {nil, "machine", "machine"},
		"the name": {map[string]string{"name": "A"}, "a", "a"},
		"the host": {map[string]string{"host": "h"}, "h", "h"},
		"both":     {map[string]string{"name": "a", "host": "h"}, "a", "h"},
	} {
		s, err := Load(given{flag: tc.flag}.sources(t), serverGroups...)
		if err != nil || s.Name != tc.name || s.Host != tc.host {
			t.Errorf("%s: name %q of host %q, %v; want %q of %q", name, s.Name, s.Host, err, tc.name, tc.host)
		}
	}
	if s, err := Load(given{flag: map[string]string{"name": "a"}}.sources(t), Instance); err != nil || s.Host != "machine" {
		t.Errorf("another process is on host %q, %v", s.Host, err)
	}
}

func TestCommandsFindTheClusterOfTheirSettings(t *testing.T) {
	src := given{flag: map[string]string{"cluster": "a=https://10.0.0.1:7423,b=https://10.0.0.2:7423"}}
	if s, err := Load(src.sources(t), Etcd); err != nil || len(s.Endpoints) != 2 || s.Endpoints[0] != "https://10.0.0.1:2379" {
		t.Errorf("they use %v, %v", s.Endpoints, err)
	}
	src.flag["endpoints"] = "https://e:1"
	if s, err := Load(src.sources(t), Etcd); err != nil || len(s.Endpoints) != 1 {
		t.Errorf("with endpoints they use %v, %v", s.Endpoints, err)
	}
}

func TestDevListensOnLoopbackOnly(t *testing.T) {
	_, err := Load(given{flag: map[string]string{"etcd_listen": "0.0.0.0:2379"}}.sources(t), Dev)
	if err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("the error is %v", err)
	}
}
