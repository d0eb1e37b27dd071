package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/testcert"
	words "github.com/berthhq/berth/internal/text"
)

const goodToken = "0123456789abcdef"

func TestFieldsThatGoTogether(t *testing.T) {
	authority := testcert.New(t)
	pair, other := authority.Server(t), authority.Server(t)
	cert, key := pair.CertFile, pair.KeyFile
	secretFile := write(t, "secret", goodToken+"\n")
	emptyFile := write(t, "empty", "\n")
	tokens := write(t, "tokens", "- {name: ci, hash: sha256:"+strings.Repeat("0", 64)+", roles: [view]}\n")

	for name, tc := range map[string]struct {
		flag, env map[string]string
		want      []string // "field: words of the message", in order
	}{
		"cert without key":        {flag: map[string]string{"cert": cert}, want: []string{"cert: is set without key"}},
		"key without cert":        {flag: map[string]string{"key": key}, want: []string{"key: is set without cert"}},
		"cert with another's key": {flag: map[string]string{"cert": cert, "key": other.KeyFile}, want: []string{"cert: are not a certificate and its key"}},
		"cert and key":            {flag: map[string]string{"cert": cert, "key": key, "cacert": authority.File}},
		"no such files": {
			flag: map[string]string{"cert": "/no/1", "key": "/no/2", "cacert": "/no/3"},
			want: []string{"cacert: /no/3", "cert: /no/1", "key: /no/2"},
		},
		"a cacert without a certificate": {flag: map[string]string{"cacert": secretFile}, want: []string{"cacert: no PEM certificate in " + secretFile}},
		"TLS files and a plain endpoint": {
			flag: map[string]string{"cacert": authority.File, "endpoints": "http://a:1,https://b:1"},
			want: []string{`endpoints: "http://a:1" has no TLS`},
		},
		"TLS files and a socket":             {flag: map[string]string{"cacert": authority.File, "endpoints": "unix:///s"}},
		"TLS files, a socket and an address": {flag: map[string]string{"cacert": authority.File, "endpoints": "unix:///s,https://b:1"}, want: []string{`endpoints: "unix:///s" has no TLS`}},

		"a sidecar's TLS files": {flag: map[string]string{
			"sidecar": "https://a", "sidecar_cacert": authority.File, "sidecar_cert": cert, "sidecar_key": key,
		}},
		"a sidecar's without a sidecar": {flag: map[string]string{"sidecar_cacert": "/no", "sidecar_cert": "/no"}},
		"a sidecar's cert without key": {
			flag: map[string]string{"sidecar": "https://a", "sidecar_cert": cert},
			want: []string{"sidecar_cert: is set without sidecar_key"},
		},
		"a sidecar's key without cert": {
			flag: map[string]string{"sidecar": "https://a", "sidecar_key": key},
			want: []string{"sidecar_key: is set without sidecar_cert"},
		},
		"a sidecar's cert with another's key": {
			flag: map[string]string{"sidecar": "https://a", "sidecar_cert": cert, "sidecar_key": other.KeyFile},
			want: []string{"sidecar_cert: (sidecar_key) are not a certificate and its key"},
		},
		"no such files of a sidecar": {
			flag: map[string]string{"sidecar": "https://a"},
			env:  map[string]string{"sidecar_cert": "/no/1", "sidecar_key": "/no/2", "sidecar_cacert": "/no/3"},
			want: []string{"sidecar_cacert: (BERTH_SIDECAR_CACERT): can't be read: open /no/3", "sidecar_cert: /no/1", "sidecar_key: /no/2"},
		},
		"a sidecar's cacert without a certificate": {
			flag: map[string]string{"sidecar": "https://a", "sidecar_cacert": secretFile},
			want: []string{"sidecar_cacert: no PEM certificate in " + secretFile},
		},
		"a sidecar's TLS files and plain text": {
			flag: map[string]string{"sidecar": "http://a:1", "sidecar_cacert": authority.File},
			want: []string{`sidecar: "http://a:1" has no TLS`},
		},
		"a sidecar's TLS files and a socket": {
			flag: map[string]string{"sidecar": "unix:///s", "sidecar_cert": cert, "sidecar_key": key},
			want: []string{`sidecar: "unix:///s" has no TLS`},
		},

		"a user without a password":     {flag: map[string]string{"user": "root"}, want: []string{"user: has no password"}},
		"a password without a user":     {env: map[string]string{"password": "p"}, want: []string{"password: needs a user"}},
		"a user with a password":        {flag: map[string]string{"user": "root:p"}},
		"a user and a password":         {flag: map[string]string{"user": "root"}, env: map[string]string{"password": "p"}},
		"a user and a password file":    {flag: map[string]string{"user": "root", "password_file": secretFile}},
		"no such password file":         {flag: map[string]string{"user": "root", "password_file": "/no"}, want: []string{"password_file: /no"}},
		"an empty password file":        {flag: map[string]string{"user": "root", "password_file": emptyFile}, want: []string{"password_file: is empty"}},
		"two passwords of one strength": {env: map[string]string{"user": "root:p", "password": "q"}, want: []string{"user: which password (BERTH_PASSWORD) also gives"}},
		"two of unequal strength":       {flag: map[string]string{"user": "root:p"}, env: map[string]string{"password": "q"}},

		"nothing to listen at": {flag: map[string]string{"listen": ""}, want: []string{"listen: no client could connect"}},
		"only a socket":        {flag: map[string]string{"listen": "", "socket": "/s"}},
		"open without anything": {
			flag: map[string]string{"listen": "0.0.0.0:7420"},
			want: []string{"listen: tls_cert and tls_key", "listen: tokens_file or client_ca"},
		},
		"open without a token": {
			flag: map[string]string{"listen": ":7420", "tls_cert": cert, "tls_key": key},
			want: []string{"listen: tokens_file or client_ca"},
		},
		"open without TLS": {
			flag: map[string]string{"listen": "example.org:7420", "tokens_file": tokens},
			want: []string{"listen: tls_cert and tls_key"},
		},
		"open with half of TLS": {
			flag: map[string]string{"listen": ":7420", "tls_cert": cert}, env: map[string]string{"tokens_file": tokens},
			want: []string{"tls_cert: is set without tls_key"},
		},
		"open with tokens":                {flag: map[string]string{"listen": ":1", "tls_cert": cert, "tls_key": key, "tokens_file": tokens}},
		"open with client certificates":   {flag: map[string]string{"listen": ":1", "tls_cert": cert, "tls_key": key, "client_ca": authority.File}},
		"client certificates without TLS": {flag: map[string]string{"client_ca": authority.File}, want: []string{"client_ca: is set without tls_cert and tls_key"}},
		"no such file of tokens":          {flag: map[string]string{"tokens_file": "/no"}, want: []string{"tokens_file: /no"}},
		"a file of tokens without any":    {flag: map[string]string{"tokens_file": cert}, want: []string{"tokens_file: it is no list of tokens"}},

		"a token in plain text": {
			flag: map[string]string{"sidecar": "http://a:1"}, env: map[string]string{"token": "not-so-secret-token"},
			want: []string{"sidecar: a token is not sent to a:1 over plain HTTP"},
		},
		"a token in plain text that may be": {
			flag: map[string]string{"sidecar": "http://a:1", "insecure": "true"}, env: map[string]string{"token": "not-so-secret-token"},
		},
		"a token file too many":     {flag: map[string]string{"sidecar": "https://a", "token_file": secretFile}, env: map[string]string{"token": goodToken}},
		"a bad token in a file":     {flag: map[string]string{"sidecar": "https://a", "token_file": cert}, want: []string{"token_file: must hold 16 to 256"}},
		"no such token file":        {flag: map[string]string{"sidecar": "https://a", "token_file": "/no"}, want: []string{"token_file: /no"}},
		"a token without a sidecar": {flag: map[string]string{"token_file": "/no"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(given{flag: tc.flag, env: tc.env}.sources(t))
			var problems Problems
			if errors.As(err, &problems); len(problems) != len(tc.want) {
				t.Fatalf("the problems are %v, want %q", err, tc.want)
			}
			for i, want := range tc.want {
				field, words, _ := strings.Cut(want, ": ")
				if p := problems[i]; p.Field != field || !strings.Contains(p.Error(), words) {
					t.Errorf("problem %d is %q, want %s with the words %q", i+1, p, field, words)
				}
				if problems[i].Source == "" {
					t.Errorf("problem %d does not tell its source", i+1)
				}
			}
		})
	}
}

func TestSecretsComeFromTheStrongestSource(t *testing.T) {
	file := write(t, "secret", "\ufefffrom-the-file-1234\r\n") // as an editor of Windows writes it
	got, err := Load(given{
		file: map[string]string{"user": "root", "password_file": file, "token": goodToken},
		env:  map[string]string{"password": "from the environment"},
		flag: map[string]string{"token_file": file, "sidecar": "https://a"},
	}.sources(t))
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "root" || got.Password.Reveal() != "from the environment" {
		t.Errorf("user %q has the password %q", got.User, got.Password.Reveal())
	}
	if got.Token.Reveal() != "from-the-file-1234" {
		t.Errorf("the token is %q", got.Token.Reveal())
	}
}

func TestOnlyWhatACommandNeedsIsCheckedTogether(t *testing.T) {
	src := given{flag: map[string]string{
		"listen": "0.0.0.0:1", "token_file": "/no", "tokens_file": "/no", "cacert": "/no", "user": "root", "password_file": "/no",
		"sidecar": "https://a", "sidecar_cacert": "/no",
	}}.sources(t)
	for _, tc := range []struct {
		groups []Group
		want   []string
	}{
		{[]Group{Common, Claims, Dev, Instance}, nil},
		{[]Group{Access}, []string{"sidecar_cacert", "token_file"}},
		{[]Group{Etcd}, []string{"cacert", "password_file"}},
		{[]Group{Serve}, []string{"listen", "tokens_file"}},
		{nil, []string{"cacert", "listen", "password_file", "sidecar_cacert", "token_file", "tokens_file"}},
	} {
		_, err := Load(src, tc.groups...)
		var problems Problems
		errors.As(err, &problems)
		var got []string
		for _, p := range problems {
			got = append(got, p.Field)
		}
		slices.Sort(got)
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("groups %v: fields with problems (-want +got):\n%s", tc.groups, d)
		}
	}
}

func TestAMachineWithoutANameIsReported(t *testing.T) {
	for name, hostname := range map[string]func() (string, error){
		"an empty name": func() (string, error) { return "", nil },
		"no name":       func() (string, error) { return "", errors.New("no name") },
	} {
		t.Run(name, func(t *testing.T) {
			src := given{}.sources(t)
			src.Hostname = hostname
			_, err := Load(src, State)
			if err == nil || !strings.Contains(err.Error(), "host (the host name of the machine)") {
				t.Errorf("the error is %v", err)
			}
			if _, err := Load(src, Etcd); err != nil {
				t.Errorf("a command that needs no name fails: %v", err)
			}
		})
	}
}

func TestAMachineWhoseNameNoHostCanHaveGetsOne(t *testing.T) {
	for _, name := range []string{"my machine", "a\nb", strings.Repeat("ä", 64)} {
		src := given{}.sources(t)
		src.Hostname = func() (string, error) { return name, nil }
		got, err := Load(src, State)
		if err != nil || got.Host != words.Host(name) {
			t.Errorf("%q: %q, %v", name, got.Host, err)
		}
	}
}

func TestTheStateDirectoryIsTheHostsOwn(t *testing.T) {
	src := given{flag: map[string]string{"host": "two"}}.sources(t)
	src.Env = environment("HOME", "/home/me")
	got, err := Load(src, State)
	if err != nil {
		t.Fatal(err)
	}
	want := "/home/me/.local/state/berth/two"
	if os.Geteuid() == 0 {
		want = "/var/lib/berth/two"
	}
	if got.StateDir != want {
		t.Errorf("the state directory is %q, want %q", got.StateDir, want)
	}
}

func TestFoldersForStateThatOthersCanChangeAreRefused(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for field, groups := range map[string][]Group{"state_dir": {Instance, State}, "data_dir": {Dev}} {
		for _, dir := range []string{open, filepath.Join(open, "below")} {
			_, err := Load(given{flag: map[string]string{field: dir}}.sources(t), groups...)
			var problems Problems
			if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Field != field || !strings.Contains(problems[0].Message, "chmod o-w "+open) {
				t.Errorf("%s %s: %v", field, dir, err)
			}
		}
		if _, err := Load(given{flag: map[string]string{field: t.TempDir()}}.sources(t), groups...); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}
