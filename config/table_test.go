package config

import (
	"regexp"
	"strings"
	"testing"
)

func TestEveryFieldOfTheTableIsWhole(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	seen := map[string]bool{}
	for _, f := range Fields() {
		if !name.MatchString(f.Name) || seen[f.Name] {
			t.Errorf("name %q is twice in the table, or none", f.Name)
		}
		seen[f.Name] = true
		if f.Usage == "" || f.Must == "" || f.Group == "" || f.value == nil {
			t.Errorf("%s lacks something: %+v", f.Name, f)
		}
		var s Settings
		if f.Default != "" && !f.value.set(&s, f.Default) {
			t.Errorf("the default of %s, %q, is not allowed", f.Name, f.Default)
		}
		if f.secret && !f.NoFlag && f.Name != "user" {
			t.Errorf("%s can be seen in a list of processes", f.Name)
		}
	}
}

func TestNamesAreDerived(t *testing.T) {
	f, ok := lookup("claim_poll_interval")
	if !ok || f.Env() != "BERTH_CLAIM_POLL_INTERVAL" || f.Flag() != "claim-poll-interval" {
		t.Errorf("%s has the variable %s and the flag --%s", f.Name, f.Env(), f.Flag())
	}
	if f, _ := lookup("token"); f.Flag() != "" {
		t.Errorf("a token can be given as --%s", f.Flag())
	}
}

// TestValues is the table of what each kind of field takes.
func TestValues(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, tc := range []struct {
		field     string
		good, bad []string
	}{
		{"log_level", []string{"trace", "error"}, []string{"", "verbose", "INFO"}},
		{"log_format", []string{"text", "json"}, []string{"", "xml"}},
		{
			"endpoints",
			[]string{"a:1", "10.0.0.1:2379", "http://a:1,https://b:2", "[::1]:2379", "unix:///run/etcd.sock", "a:1, b:2"},
			[]string{"", "a", "a:0", ":2379", "a:99999", "ftp://a:1", "a:1,a:1", "a:1,", "http://https://a:1", "http://a:1/x", "unix://etcd.sock"},
		},
		{
			"prefix",
			[]string{"/berth/", "/berth", "/teams/a-1/berth_2.x/"},
			[]string{"", "/", "berth/", "//", "/a//b/", "/a b/", "/ä/", "/" + strings.Repeat("x", 200)},
		},
		{"cacert", []string{"", "ca.pem", "/etc/ca.pem"}, []string{"a\x00b", strings.Repeat("x", 5000)}},
		{"user", []string{"", "root", "root:", "root:a:b"}, []string{":secret", "root:a\nb"}},
		{"password", []string{"", "p w", "ä"}, []string{"a\nb"}},
		{
			"sidecar",
			[]string{"", "http://127.0.0.1:7420", "https://host/", "unix:///run/berth.sock", "http://[::1]:1"},
			[]string{"127.0.0.1:7420", "http://", "http://a/path", "http://a?q=1", "http://u:p@a", "unix://sock", "ftp://a", "http://a:b"},
		},
		{
			"claim_timeout",
			[]string{"0", "30s", "5m", "1h30m", "8760h"},
			[]string{"", "30", "-1s", "8761h", "1d", "forever", "999999999999h"},
		},
		{"host", []string{"a", "host-1.example_x", "HOST", long[1:]}, []string{"", "-a", "ä", "a/b", long}},
		{
			"listen",
			[]string{"", "127.0.0.1:0", ":7420", "localhost:7420", "[::1]:7420", "0.0.0.0:1"},
			[]string{"7420", "127.0.0.1", "a:b", "a:70000", "a b:1"},
		},
		{"socket", []string{"", "/run/berth.sock"}, []string{"berth.sock", "/" + strings.Repeat("x", 99)}},
		{"socket_mode", []string{"0600", "0660", "0666"}, []string{"", "660", "0640", "0777", "432", "rw-rw----"}},
		{"socket_group", []string{"", "berth", "_x-y.z$", "0", "1000"}, []string{"-1", "a b", "a:b", "ä", "12345678901", strings.Repeat("x", 33)}},
		{"token", []string{"", "0123456789abcdef"}, []string{"short", "0123456789 abcdef", strings.Repeat("x", 257)}},
		{"coordinator", []string{"true", "false"}, []string{"", "yes", "1", "TRUE"}},
		{"tick_interval", []string{"10ms", "250ms", "10s"}, []string{"", "0", "9ms", "10001ms", "250"}},
		{"start_timeout", []string{"1s", "3m", "24h"}, []string{"", "0", "999ms", "24h1s", "-1"}},
		{"max_unfinished_runs", []string{"1", "10000", "1000000"}, []string{"", "0", "-1", "1000001", "1e3", "many"}},
		{"max_stored_run_data", []string{"1MiB", "256MiB", "1.5GiB", "64GiB", "1048576"}, []string{"", "0", "1KiB", "65GiB", "-1MiB", "256MB"}},
		{"max_not_before", []string{"1h", "8784h"}, []string{"", "0", "59m", "87841h", "366d"}},
		{"max_run_events", []string{"100", "500"}, []string{"", "0", "99", "100001"}},
		{"run_retention", []string{"1m", "24h", "8760h"}, []string{"", "0", "59s", "8761h", "1d"}},
		{"compact_interval", []string{"0", "0s", "1m", "24h"}, []string{"", "-1m", "59s", "25h"}},
		{"data_dir", []string{".berth"}, []string{""}},
		{
			"etcd_listen",
			[]string{"127.0.0.1:0", "localhost:2379", "[::1]:2379", "127.1.2.3:1", "0.0.0.0:2379", "10.0.0.1:2379"},
			[]string{"", ":2379", "example.org:1", "127.0.0.1", "127.0.0.1:x"},
		},
		{"name", []string{"a", "db-1.example", "A"}, []string{"", "-a", "a/b", long}},
		{
			"cluster",
			[]string{"a=https://10.0.0.1:7423", "a=http://127.0.0.1:1, b=http://[::1]:2", "a=https://h:1,b=https://i:1,c=https://j:1"},
			[]string{
				"", "a", "a=10.0.0.1:7423", "=https://h:1", "a=https://h", "a=https://h:0", "a=https://h:1/", "a=https://h:1/x", "a=https://u@h:1", "a=ftp://h:1",
				"a=https://h:1,", "a=https://h:1,a=https://i:1", "a=https://h:1,b=https://h:1", "a=https://h:1,b=http://i:1", "-=https://h:1",
				"a=https://h:1,b=https://h:2,c=https://h:3,d=https://h:4,e=https://h:5,f=https://h:6,g=https://h:7,h=https://h:8,i=https://h:9,j=https://h:10",
			},
		},
	} {
		f, ok := lookup(tc.field)
		if !ok {
			t.Fatalf("there is no field %s", tc.field)
		}
		for _, text := range tc.good {
			if !f.value.set(new(Settings), text) {
				t.Errorf("%s: %q is refused", tc.field, text)
			}
		}
		for _, text := range tc.bad {
			if f.value.set(new(Settings), text) {
				t.Errorf("%s: %q is allowed", tc.field, text)
			}
		}
	}
}
