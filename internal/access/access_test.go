package access

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

func TestAGrantAllowsWhatItsPatternMatches(t *testing.T) {
	for _, c := range []struct {
		grants string
		role   Role
		thing  string
		want   bool
	}{
		{"view", View, Everything, true},
		{"view", Claim, "db", false},
		{"claim", Claim, "db", true},
		{"claim", Claim, Everything, true},
		{"claim:db", Claim, "db", true},
		{"claim:db", Claim, "db2", false},
		{"claim:db", Claim, Everything, false},
		{"claim:etl-*", Claim, "etl-nightly", true},
		{"claim:etl-*", Claim, "etl", false},
		{"claim:*-gpu-*", Claim, "a-gpu-b", true},
		{"claim:*-gpu-*", Claim, "gpu-b", false},
		{"claim:a*a", Claim, "a", false},
		{"claim:db submit:db", Submit, "db", true},
		{"command:etl", Submit, "etl", true},
		{"submit:etl", Command, "etl", false},
		{"operate:db", View, Everything, true},
		{"operate:db", Operate, "gpu", false},
		{"operate:db", Operate, Everything, false},
		{"operate", Claim, "db", false},
		{"admin", Command, "any", true},
		{"admin", Operate, Everything, true},
		{"", View, Everything, false},
	} {
		gs, err := ParseGrants(strings.Fields(c.grants))
		if err != nil {
			t.Fatal(err)
		}
		if got := gs.Allow(c.role, c.thing); got != c.want {
			t.Errorf("%q allows %s for %q: %v, want %v", c.grants, c.role, c.thing, got, c.want)
		}
		if gs.Allow(c.role, c.thing) && !gs.Has(c.role) {
			t.Errorf("%q allows %s, and has it not", c.grants, c.role)
		}
	}
}

func TestRulesThatCannotBeReadAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "must be a subject",
		"user:alice":               "must be a subject",
		"alice view":               "no subject",
		"user: view":               "no subject",
		"host:a view":              "no subject",
		"user:alice read":          `invalid role "read": use view, claim`,
		"user:alice view:db":       "takes no pattern",
		"user:alice claim:":        "name of a pool",
		"user:alice claim:DB":      "name of a pool",
		"user:alice submit:a/b":    "name of a queue",
		"user:alice none view":     `invalid role "none": use view`,
		"anonymous view operate":   "anonymous callers can have",
		"anonymous admin":          "anonymous callers can have",
		"anonymous command:builds": "anonymous callers can have",
	} {
		if _, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestAPolicyGivesGrants(t *testing.T) {
	alice := Identity{Kind: User, Name: "alice", Names: []string{"etl", "users"}}
	bob := Identity{Kind: User, Name: "bob", Names: []string{"users"}}
	ci := Identity{Kind: TokenBearer, Name: "ci"}
	airflow := Identity{Kind: Certificate, Name: "airflow", Names: []string{"airflow.example.com"}}
	for _, c := range []struct {
		rules string // separated by ;
		local bool
		id    Identity
		own   string
		want  string
	}{
		{"", false, bob, "", "view claim"},
		{"", false, Identity{}, "", ""},
		{"", true, Identity{}, "", "view claim"},
		{"", true, Identity{Kind: Anonymous}, "", "view claim"},
		{"", true, ci, "submit:a", "submit:a"},
		{"anonymous none", true, Identity{}, "", ""},
		{"anonymous view", false, Identity{}, "", "view"},
		{"user:* view", false, bob, "", "view"},
		{"user:* none", false, bob, "", ""},
		{"group:etl command:etl", false, alice, "", "command:etl view claim"},
		{"group:etl command:etl", false, bob, "", "view claim"},
		{"user:* none;group:etl claim:etl-*", false, alice, "", "claim:etl-*"},
		{"user:al* operate", false, alice, "", "operate view claim"},
		{"token:ci claim:db", false, ci, "view", "view claim:db"},
		{"user:ci operate;group:ci operate;cert:ci operate", false, ci, "", ""},
		{"cert:*.example.com submit:etl", false, airflow, "", "submit:etl"},
		{"group:airflow.example.com admin", false, airflow, "", ""},
		{"token:* admin", false, alice, "", "view claim"},
	} {
		p := Policy{Local: c.local}
		if c.rules != "" {
			var err error
			if p, err = ParsePolicy(strings.Split(c.rules, ";")); err != nil {
				t.Fatal(err)
			}
			p.Local = c.local
		}
		own, err := ParseGrants(strings.Fields(c.own))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(p.Grants(c.id, own).Texts(), " "); got != c.want {
			t.Errorf("rules %q: %s has %q, want %q", c.rules, c.id, got, c.want)
		}
		p.Open = true
		if !p.Grants(c.id, own).Allow(Operate, Everything) {
			t.Errorf("an open policy refuses %s", c.id)
		}
	}
}

func TestPatternsMatchRecordedIdentities(t *testing.T) {
	for _, c := range []struct {
		patterns, recorded string
		want               bool
	}{
		{"*", "user:alice", true},
		{"*", "", true},
		{"user:alice", "user:alice", true},
		{"user:alice", "token:alice", false},
		{"user:*", "", false},
		{"user:*", "unauthenticated", false},
		{"etcd:*,token:ci", "etcd:source", true},
		{"etcd:*,token:ci", "token:ci-2", false},
		{"anonymous", "anonymous", true},
		{"unauthenticated", "unauthenticated", true},
		{"cert:*.example.com", "cert:a.example.com", true},
		{"cert:*.example.com", "cert:example.com", false},
	} {
		ps, err := ParsePatterns(strings.Split(c.patterns, ","))
		if err != nil {
			t.Fatal(err)
		}
		if got := ps.Match(c.recorded); got != c.want {
			t.Errorf("%s matches %q: %v, want %v", c.patterns, c.recorded, got, c.want)
		}
	}
	for _, text := range []string{"", "alice", "group:etl", "user:", "user:a b", "anonymous:x", "**"} {
		if _, err := ParsePatterns([]string{text}); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if (Patterns)(nil).Match("user:alice") {
		t.Error("no pattern matches")
	}
}

func TestARefusalNamesTheCallerAndTheRole(t *testing.T) {
	ctx := With(context.Background(), func() Identity { return Identity{Kind: User, Name: "bob", Grants: DefaultGrants} })
	err := Allow(ctx, Operate, "db")
	if problem.CodeOf(err) != problem.Forbidden {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"operate:db", "user:bob", `"user:bob operate:db"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	if err := Allow(ctx, Claim, "a", "b"); err != nil {
		t.Error(err)
	}
	if err := Allow(context.Background(), View); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("a request without an identity: %v", err)
	}
}

func TestTokensAreFoundByTheirSecret(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	grants, _ := ParseGrants([]string{"view", "claim:db-*"})
	var ts Tokens
	secrets := map[string]string{}
	for name, expires := range map[string]time.Time{"ci": {}, "old": now.Add(time.Hour)} {
		token, secret, err := NewToken(name, grants, now, expires)
		if err != nil {
			t.Fatal(err)
		}
		if err := ts.Add(token, now); err != nil {
			t.Fatal(err)
		}
		secrets[name] = secret
	}
	data, err := ts.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		if strings.Contains(string(data), secret) {
			t.Fatal("the file has a secret")
		}
	}
	if ts, err = ParseTokens(data); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	later := now.Add(time.Hour)
	if got, err := ts.Find(secrets["ci"], later); err != nil || got.Name != "ci" || got.Identity(&Policy{}).Grants.Allow(Claim, "gpu") || !got.Identity(&Policy{}).Grants.Allow(Claim, "db-1") {
		t.Errorf("ci: %v, %v", got, err)
	}
	if _, err := ts.Find(secrets["old"], now); err != nil {
		t.Error(err)
	}
	if _, err := ts.Find(secrets["old"], later); problem.CodeOf(err) != problem.Unauthorized || !strings.Contains(err.Error(), "expired at 2030-01-01T01:00:00Z") {
		t.Errorf("an expired token: %v", err)
	}
	if _, err := ts.Find("", now); problem.CodeOf(err) != problem.Unauthorized {
		t.Errorf("no secret: %v", err)
	}
	again, _, _ := NewToken("ci", grants, now, time.Time{})
	if err := ts.Add(again, later); err == nil {
		t.Error("a name was given twice")
	}
	again.Name = "old"
	if err := ts.Add(again, later); err != nil {
		t.Errorf("the name of an expired token: %v", err)
	}
	if found, err := ts.Revoke("ci"); !found || err != nil {
		t.Errorf("revoke: %v, %v", found, err)
	}
	if _, err := ts.Find(secrets["ci"], now); err == nil {
		t.Error("a revoked token is accepted")
	}
}

func TestFilesOfTokensAreReadStrictly(t *testing.T) {
	hash := hashOf("x")
	for text, want := range map[string]string{
		"- {name: a, hash: " + hash + ", roles: [reed]}":                          "token a: ",
		"- {name: a, hash: abc, roles: [view]}":                                   "its hash must be",
		"- {name: '', hash: " + hash + "}":                                        "no name of a token",
		"- {name: a, hash: " + hash + "}\n- {name: a, hash: " + hashOf("y") + "}": "given twice",
		"- {name: a, hash: " + hash + "}\n- {name: b, hash: " + hash + "}":        "has its hash",
		"- {name: a, secret: x}":                                                  "no list of tokens",
		"name: a":                                                                 "no list of tokens",
		"[]\n---\n[]":                                                             "more than one document",
		"- {name: a, hash: " + hash + ", expires: tomorrow}":                      "no list of tokens",
		strings.Repeat("#", MaxTokens) + "\n":                                     "longer than",
	} {
		if _, err := ParseTokens([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "[]", "# none yet\n"} {
		if ts, err := ParseTokens([]byte(text)); err != nil || len(ts.List) != 0 {
			t.Errorf("%q: %v, %v", text, ts, err)
		}
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte("- {name: a, hash: " + hashOf("x") + ", roles: [view], expires: 2030-01-01T00:00:00Z}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ts, err := ParseTokens(data)
		if err != nil {
			return
		}
		text, err := ts.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseTokens(text)
		if err != nil || len(again.List) != len(ts.List) {
			t.Fatalf("written as\n%s\n%v", text, err)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	f.Add("group:etl view claim:etl-* command:etl")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		again, err := ParseRule(strings.TrimSpace(r.Subject + " " + strings.Join(append(r.Grants.Texts(), map[bool]string{true: "none"}[len(r.Grants) == 0]), " ")))
		if err != nil || again.Subject != r.Subject || !slices.Equal(again.Grants, r.Grants) {
			t.Fatalf("%q: %v, then %v, %v", text, r, again, err)
		}
	})
}
