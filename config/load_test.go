package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/berthhq/berth/internal/problem"
)

func TestWithoutAnythingGivenTheDefaultsCount(t *testing.T) {
	src := given{}.sources(t)
	src.Env = environment("XDG_STATE_HOME", "/state")
	got, err := Load(src)
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		LogLevel: "info", LogFormat: "text",
		Endpoints: []string{"127.0.0.1:2379"}, Prefix: "/berth/",
		Host: "machine", StateDir: "/state/berth/machine", Listen: "127.0.0.1:7420", SocketMode: 0o660,
		ClaimTimeout: 10 * time.Minute, ClaimPollInterval: time.Second, ClaimPollJitter: 500 * time.Millisecond,
		TickInterval: 250 * time.Millisecond, StartTimeout: 3 * time.Minute, RunRetention: 24 * time.Hour, MaxRunEvents: 500,
		MaxUnfinishedRuns: 10_000, MaxStoredRunData: 256 << 20, MaxNotBefore: 8784 * time.Hour, CompactInterval: 5 * time.Minute,
		CommandsFrom: []string{"*"}, DataDir: ".berth", EtcdListen: "127.0.0.1:2379",
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Settings{}), cmpopts.IgnoreTypes(&finder{})); d != "" {
		t.Errorf("settings (-want +got):\n%s", d)
	}
}

// samples are two good texts for fields that need nothing else to be good.
var samples = map[string][2]string{
	"log_level":           {"debug", "warn"},
	"endpoints":           {"a:1,b:2", "https://c:3"},
	"prefix":              {"/one/", "/two/"},
	"sidecar":             {"http://a:1", "unix:///s"},
	"host":                {"one", "two"},
	"state_dir":           {"/one", "/two"},
	"listen":              {"127.0.0.1:1", "localhost:2"},
	"claim_timeout":       {"1m0s", "2m0s"},
	"claim_poll_interval": {"3s", "4s"},
	"claim_poll_jitter":   {"0s", "5s"},
	"data_dir":            {"one", "two"},
}

func TestTheStrongestSourceCounts(t *testing.T) {
	text := func(field string, n int) string { return samples[field][n] }
	rapid.Check(t, func(r *rapid.T) {
		g := given{file: map[string]string{}, env: map[string]string{}, flag: map[string]string{}}
		want := map[string]string{}
		for field := range samples {
			// Weakest first, so that the last one that gives it is the strongest.
			for _, source := range []map[string]string{g.file, g.env, g.flag} {
				if rapid.Bool().Draw(r, "given") {
					source[field] = text(field, rapid.IntRange(0, 1).Draw(r, "sample"))
					want[field] = source[field]
				}
			}
		}
		got, err := Load(g.sources(t))
		if err != nil {
			r.Fatal(err)
		}
		for name, text := range want {
			f, _ := lookup(name)
			if shown := f.value.show(&got); shown != text {
				r.Errorf("%s is %q, want %q of %+v", name, shown, text, g)
			}
		}
	})
}

func TestAnEmptyVariableIsNotSetAndAnEmptyFlagIs(t *testing.T) {
	got, err := Load(given{
		file: map[string]string{"sidecar": "http://a:1", "socket": "/s"},
		env:  map[string]string{"sidecar": ""},
		flag: map[string]string{"listen": ""},
	}.sources(t))
	if err != nil {
		t.Fatal(err)
	}
	if got.Sidecar != "http://a:1" || got.Listen != "" {
		t.Errorf("sidecar is %q and listen %q, want the file's and none", got.Sidecar, got.Listen)
	}
}

func TestTheFileCanBeNamedByTheEnvironment(t *testing.T) {
	path := write(t, "b.yaml", "prefix: /named/")
	got, err := Load(Sources{Env: environment(FileEnv, path)}, Common)
	if err != nil || got.Prefix != "/named/" {
		t.Errorf("prefix is %q, error %v", got.Prefix, err)
	}
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	src := given{
		env:  map[string]string{"claim_timeout": "soon", "host": "Größe", "token": "short"},
		flag: map[string]string{"listen": "here", "endpoints": ""},
	}.sources(t)
	src.File = write(t, "berth.yaml", `
claim_poll_jitter: -1s
endpoint: a:1
tls_key: key.pem
log_level: [info]
log_format: json
log_format: text
`)
	_, err := Load(src)
	var got Problems
	if !errors.As(err, &got) {
		t.Fatalf("the error is %v, want problems", err)
	}
	type reported struct{ Field, Source, Value string }
	var all []reported
	for _, p := range got {
		all = append(all, reported{p.Field, strings.TrimPrefix(p.Source, src.File), p.Value})
	}
	want := []reported{
		{"", ":3", "endpoint"},
		{"log_level", ":5", ""},
		{"log_format", ":7", ""},
		{"endpoints", "--endpoints", ""},
		{"token", "BERTH_TOKEN", "(hidden)"},
		{"claim_timeout", "BERTH_CLAIM_TIMEOUT", "soon"},
		{"claim_poll_jitter", ":2", "-1s"},
		{"host", "BERTH_HOST", "Größe"},
		{"listen", "--listen", "here"},
		{"tls_key", ":4", ""},
	}
	if d := cmp.Diff(want, all); d != "" {
		t.Errorf("problems (-want +got):\n%s\n%v", d, err)
	}
	if text := err.Error(); !strings.Contains(text, "settings: 10 problems\n") ||
		!strings.Contains(text, "\n  claim_timeout (BERTH_CLAIM_TIMEOUT): \"soon\" must be a duration such as 30s") {
		t.Errorf("the error reads\n%s", text)
	}
}

func TestNothingIsReportedOfAValueThatIsOverridden(t *testing.T) {
	got, err := Load(given{
		file: map[string]string{"claim_timeout": "soon"},
		flag: map[string]string{"claim_timeout": "1s"},
	}.sources(t))
	if err != nil || got.ClaimTimeout != time.Second {
		t.Errorf("claim timeout is %s, error %v", got.ClaimTimeout, err)
	}
}

func TestProblemsAreThoseOfTheSharedTable(t *testing.T) {
	_, err := Load(given{flag: map[string]string{"prefix": "/"}}.sources(t))
	if code := problem.CodeOf(err); code != problem.Invalid {
		t.Errorf("the code is %q", code)
	}
	var p *problem.Error
	if !errors.As(err, &p) || p.Field != "prefix" {
		t.Errorf("the problem is %+v", p)
	}
}

func TestAMissingFileIsReported(t *testing.T) {
	_, err := Load(Sources{File: "/no/such/file.yaml"}, Common)
	if err == nil || !strings.Contains(err.Error(), "/no/such/file.yaml") {
		t.Errorf("the error is %v", err)
	}
}
