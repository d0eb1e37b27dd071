package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/berthhq/berth/internal/testcert"
)

func TestSecretsDoNotShow(t *testing.T) {
	const secret = "very-secret-indeed"
	s, err := Load(given{
		flag: map[string]string{"user": "root:" + secret},
		env:  map[string]string{"token": secret},
	}.sources(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.Password.Reveal() != secret || s.Token.Reveal() != secret {
		t.Fatal("the secrets did not arrive")
	}

	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%T %[1]v"} {
		for _, v := range []any{s, &s, s.Password, &s.Password, []Secret{s.Token}, struct{ S Settings }{s}, map[string]any{"s": s}} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
	}
	shown.WriteString(s.String())
	if err := json.NewEncoder(&shown).Encode(s); err != nil {
		t.Fatal(err)
	}
	for _, asJSON := range []bool{false, true} {
		log := hclog.New(&hclog.LoggerOptions{Output: &shown, JSONFormat: asJSON})
		log.Info("settings", "all", s, "token", s.Token, "pointer", &s)
	}
	if strings.Contains(shown.String(), secret) || strings.Contains(shown.String(), fmt.Sprintf("%x", secret)) {
		t.Errorf("a secret shows:\n%s", shown.String())
	}
	if !strings.Contains(s.String(), "token: (hidden)\n") || !strings.Contains(s.String(), "user: root\n") {
		t.Errorf("the settings read\n%s", s)
	}
}

func TestProblemsDoNotShowSecrets(t *testing.T) {
	const secret = "very secret\nindeed"
	_, err := Load(given{env: map[string]string{"token": secret, "password": secret, "user": "root:" + secret}}.sources(t))
	if err == nil || strings.Contains(fmt.Sprintf("%v %+v %q", err, err, err), "very") {
		t.Errorf("the error reads %v", err)
	}
}

func TestLongValuesAreCutInProblems(t *testing.T) {
	_, err := Load(given{flag: map[string]string{"host": strings.Repeat("é", 10_000)}}.sources(t))
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("the error is %d bytes long", len(err.Error()))
	}
}

func TestChildProcessesGetNoSecret(t *testing.T) {
	env := []string{
		"PATH=/bin", "BERTH_TOKEN=secret", "BERTH_SIDECAR=unix:///s", "BERTH_PASSWORD=secret", "BERTH_USER=root:sec:ret", "HOME=/root",
		"BERTH_TOKEN_FILE=/t", "BERTH_PASSWORD_FILE=/p", "BERTH_CONFIG=/c", "BERTH_RUN_ID=r", "BERTH_TOKENS=mine", "MY_BERTH_TOKEN=mine", "NOTIFY_SOCKET=/n",
	}
	for what, test := range map[string]struct{ got, want []string }{
		"exec": {WithoutSecrets(env), []string{
			"PATH=/bin", "BERTH_SIDECAR=unix:///s", "BERTH_USER=root", "HOME=/root",
			"BERTH_TOKEN_FILE=/t", "BERTH_PASSWORD_FILE=/p", "BERTH_CONFIG=/c", "BERTH_RUN_ID=r", "BERTH_TOKENS=mine", "MY_BERTH_TOKEN=mine", "NOTIFY_SOCKET=/n",
		}},
		"exec without a password": {WithoutSecrets([]string{"BERTH_USER=root", "BERTH_TOKEN="}), []string{"BERTH_USER=root", "BERTH_TOKEN="}},
		"tracing": {WithoutSettings([]string{
			"TRACEPARENT=t", "TRACESTATE=s", "OTEL_SERVICE_NAME=berth", "OTEL_RESOURCE_ATTRIBUTES=a=b", "OTEL_EXPORTER_OTLP_HEADERS=secret",
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS=secret", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_TRACES_SAMPLER=always_on",
		}), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_TRACES_SAMPLER=always_on"}},
		"no user":           {WithoutSecrets([]string{"BERTH_USER=:secret"}), nil},
		"steps and sources": {WithoutSettings(env), []string{"PATH=/bin", "HOME=/root", "MY_BERTH_TOKEN=mine"}},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: %q, want %q", what, test.got, test.want)
		}
	}
}

func TestFilesWithSecretsAreForTheirOwnersOnly(t *testing.T) {
	pair := testcert.New(t).Server(t)
	secret := write(t, "secret", "0123456789abcdef\n")
	all := given{flag: map[string]string{
		"user": "root", "password_file": secret, "token_file": secret, "cert": pair.CertFile, "key": pair.KeyFile,
		"tls_cert": pair.CertFile, "tls_key": pair.KeyFile,
		"sidecar": "https://a", "sidecar_cert": pair.CertFile, "sidecar_key": pair.KeyFile,
	}}
	for mode, refused := range map[fs.FileMode]bool{
		0o600: false, 0o440: false, 0o660: false, 0o601: false,
		0o644: true, 0o604: true, 0o602: true, 0o666: true,
	} {
		for _, path := range []string{secret, pair.KeyFile} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Load(all.sources(t))
		var problems Problems
		errors.As(err, &problems)
		var got []string
		for _, p := range problems {
			got = append(got, p.Field)
			path := pair.KeyFile
			if strings.HasSuffix(p.Field, "_file") {
				path = secret
			}
			want := fmt.Sprintf("%s holds a secret, and all users may read or change it (mode %04o): run chmod o-rwx %s", path, mode, path)
			if p.Message != want {
				t.Errorf("mode %04o: %q, want %q", mode, p.Message, want)
			}
		}
		slices.Sort(got)
		var want []string
		if refused {
			want = []string{"key", "password_file", "sidecar_key", "tls_key", "token_file"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("mode %04o: problems with %q, want %q: %v", mode, got, want, err)
		}
	}
}

func TestASettingsFileWithASecretIsForItsOwnerOnly(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		refused []string
	}{
		"no secret":  {"user: root\npassword_file: /p\n", nil},
		"a token":    {"token: 0123456789abcdef\n", []string{"token"}},
		"a password": {"password: p\n", []string{"password"}},
		"a user's":   {"user: root:p\ntoken: 0123456789abcdef\n", []string{"user", "token"}},
		"empty ones": {"user: 'root:'\ntoken: ''\npassword: ~\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "berth.yaml", test.text)
			for mode, refused := range map[fs.FileMode][]string{0o600: nil, 0o640: nil, 0o644: test.refused} {
				if err := os.Chmod(path, mode); err != nil {
					t.Fatal(err)
				}
				_, err := Load(Sources{File: path}, Common)
				var problems Problems
				errors.As(err, &problems)
				var got []string
				for _, p := range problems {
					got = append(got, p.Field)
					if !strings.HasPrefix(p.Source, path+":") || p.Message != "is a secret in a file that all users may read or change (mode 0644): run chmod o-rwx "+path {
						t.Errorf("%v", p)
					}
				}
				if !slices.Equal(got, refused) {
					t.Errorf("mode %04o: %v", mode, err)
				}
			}
		})
	}
}
