package access

import (
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// Rule gives grants to the identities that match a subject.
type Rule struct {
	// Subject is "anonymous", or a kind with a pattern of names, such as "user:alice",
	// "group:etl" or "cert:*.example.com".
	Subject string
	Grants  Grants
}

// noRoles is the word of a rule that gives nothing, in place of a default.
const noRoles = "none"

// subjectKinds begin the subjects of rules.
var subjectKinds = []string{string(User) + ":", groupSubject, string(TokenBearer) + ":", string(Certificate) + ":"}

// ParseRule reads SUBJECT ROLE ROLE …, or SUBJECT none.
func ParseRule(text string) (Rule, error) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return Rule{}, problem.Field("roles", `%s: must be a subject and its roles, such as "group:etl view claim:etl-*"`, problem.Quote(text))
	}
	r := Rule{Subject: words[0]}
	if !validSubject(r.Subject) {
		return r, problem.Field("roles", "%s is no subject of a rule: use user:NAME, group:NAME, token:NAME, cert:NAME and anonymous; * in a name is any text", problem.Quote(r.Subject))
	}
	if len(words) == 2 && words[1] == noRoles {
		return r, nil
	}
	var err error
	if r.Grants, err = ParseGrants(words[1:]); err != nil {
		return r, err
	}
	if r.Subject != string(Anonymous) {
		return r, nil
	}
	for _, g := range r.Grants {
		if !slices.Contains(anonymousRoles, g.Role) {
			return r, problem.Field("roles", "%s: anonymous callers can have the roles view, claim and submit only: use the unix socket, a token or a client certificate", problem.Quote(text))
		}
	}
	return r, nil
}

// anonymousRoles are the roles that anonymous callers can have.
var anonymousRoles = []Role{View, Claim, Submit}

func validSubject(s string) bool {
	if s == string(Anonymous) {
		return true
	}
	for _, kind := range subjectKinds {
		if name, ok := strings.CutPrefix(s, kind); ok {
			return validName(name)
		}
	}
	return false
}

// Patterns match identities as records have them, such as "user:alice": each is such a text, in
// whose name * is any text. [Everything] matches all identities, also one that is not recorded.
type Patterns []string

// recordedKinds begin the identities in records that have names.
var recordedKinds = []string{string(User) + ":", string(TokenBearer) + ":", string(Certificate) + ":", string(EtcdUser) + ":"}

// ParsePatterns reads patterns.
func ParsePatterns(texts []string) (Patterns, error) {
	for _, text := range texts {
		named := slices.ContainsFunc(recordedKinds, func(kind string) bool {
			name, ok := strings.CutPrefix(text, kind)
			return ok && validName(name)
		})
		if !named && !slices.Contains([]string{Everything, string(Anonymous), string(Unauthenticated)}, text) {
			return nil, problem.New(problem.Invalid, "%s is no pattern of identities: use user:NAME, token:NAME, cert:NAME, etcd:NAME, anonymous and unauthenticated; * in a name is any text, and * alone is all", problem.Quote(text))
		}
	}
	return texts, nil
}

// Match reports whether one of the patterns matches a recorded identity, which is empty if none
// is recorded.
func (ps Patterns) Match(recorded string) bool {
	return slices.ContainsFunc(ps, func(p string) bool { return p == Everything || matchSubject(p, recorded) })
}

// Policy gives grants to identities.
type Policy struct {
	// Rules are the rules of the settings.
	Rules []Rule
	// Open gives everybody all grants, as for a developer's own machine.
	Open bool
	// Local gives [DefaultGrants] to anonymous callers, unless a rule says otherwise: only
	// processes of this host can connect, and there is nothing that they could show.
	Local bool
}

// DefaultGrants are what users of the unix socket get unless a rule for all users says
// otherwise.
var DefaultGrants = Grants{{View, Everything}, {Claim, Everything}}

// ParsePolicy reads the rules of a policy.
func ParsePolicy(texts []string) (p Policy, err error) {
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			return p, err
		}
		p.Rules = append(p.Rules, r)
	}
	return p, nil
}

// everyUser is the subject whose rules replace the defaults of users.
const everyUser = string(User) + ":" + Everything

// UsesGroups reports whether the groups of users matter.
func (p *Policy) UsesGroups() bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool { return strings.HasPrefix(r.Subject, groupSubject) })
}

// Grants returns what an identity may do. Own are grants that it brings with it, as a token
// does.
func (p *Policy) Grants(id Identity, own Grants) Grants {
	if p.Open {
		return AllGrants
	}
	all := slices.Clone(own)
	subjects := id.subjects()
	replaced := false
	for _, r := range p.Rules {
		replaced = replaced || r.Subject == everyUser && id.Kind == User || r.Subject == string(Anonymous) && !id.Authenticated()
		if slices.ContainsFunc(subjects, func(s string) bool { return matchSubject(r.Subject, s) }) {
			all = append(all, r.Grants...)
		}
	}
	if !replaced && (id.Kind == User || !id.Authenticated() && p.Local) {
		all = append(all, DefaultGrants...)
	}
	return all
}

// matchSubject reports whether a subject of a rule matches that of an identity. A * matches
// names, and no kinds.
func matchSubject(rule, subject string) bool {
	kind, pattern, patterned := strings.Cut(rule, ":")
	if !patterned {
		return rule == subject
	}
	name, ok := strings.CutPrefix(subject, kind+":")
	return ok && match(pattern, name)
}
