package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
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
		"BERTH_TOKEN_FILE=/t", "BERTH_PASSWORD_FILE=/p", "BERTH_CONFIG=/c", "BERTH_RUN_ID=r", "BERTH_TOKENS=mine", "MY_BERTH_TOKEN=mine",
	}
	for what, test := range map[string]struct{ got, want []string }{
		"exec": {WithoutSecrets(env), []string{
			"PATH=/bin", "BERTH_SIDECAR=unix:///s", "BERTH_USER=root", "HOME=/root",
			"BERTH_TOKEN_FILE=/t", "BERTH_PASSWORD_FILE=/p", "BERTH_CONFIG=/c", "BERTH_RUN_ID=r", "BERTH_TOKENS=mine", "MY_BERTH_TOKEN=mine",
		}},
		"exec without a password": {WithoutSecrets([]string{"BERTH_USER=root", "BERTH_TOKEN="}), []string{"BERTH_USER=root"}},
		"no user":                 {WithoutSecrets([]string{"BERTH_USER=:secret"}), nil},
		"steps and sources":       {WithoutSettings(env), []string{"PATH=/bin", "HOME=/root", "MY_BERTH_TOKEN=mine"}},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: %q, want %q", what, test.got, test.want)
		}
	}
}
