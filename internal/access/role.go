package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// Role is what an identity may do.
type Role string

// The roles.
const (
	// View reads pools, claims, runs, hosts and the record of actions.
	View Role = "view"
	// Claim claims slots of pools. What it has claimed is its own.
	Claim Role = "claim"
	// Submit submits runs to queues, without commands. What it has submitted is its own.
	Submit Role = "submit"
	// Command submits runs with commands, which workers of the queue run as their own user.
	Command Role = "command"
	// Execute starts runs, and takes step instances of queues: it is an executor.
	Execute Role = "execute"
	// Operate changes pools and limits, pauses, revokes, cancels and retries, and controls
	// workers.
	Operate Role = "operate"
	// Admin has all roles for everything.
	Admin Role = "admin"
)

// Roles are all roles, from the least to the greatest.
var Roles = []Role{View, Claim, Submit, Command, Execute, Operate, Admin}

// implied are the roles that a role includes, for the same things.
var implied = map[Role][]Role{
	Command: {Submit},
	Operate: {View},
	Admin:   Roles,
}

// Of is what the pattern of a grant of the role matches: "pool", "queue", or empty if the role
// takes no pattern.
func (r Role) Of() string {
	switch r {
	case Claim, Operate:
		return "pool"
	case Submit, Command, Execute:
		return "queue"
	}
	return ""
}

// Everything is the thing that only a grant without a pattern allows.
const Everything = "*"

// Grant is a role for the pools or queues that match a pattern.
type Grant struct {
	Role Role
	// Pattern is a name in which each * is any text; [Everything] matches all names.
	Pattern string
}

// String writes a grant as [ParseGrant] reads it.
func (g Grant) String() string {
	if g.Pattern == Everything {
		return string(g.Role)
	}
	return string(g.Role) + ":" + g.Pattern
}

// ParseGrant reads ROLE or ROLE:PATTERN.
func ParseGrant(text string) (Grant, error) {
	name, pattern, patterned := strings.Cut(text, ":")
	g := Grant{Role(name), Everything}
	if !slices.Contains(Roles, g.Role) {
		return g, problem.Field("roles", "invalid role %s: use %s", problem.Quote(name), RoleNames())
	}
	if !patterned {
		return g, nil
	}
	if g.Role.Of() == "" {
		return g, problem.Field("roles", "%s: the role %s takes no pattern", problem.Quote(text), name)
	}
	if g.Pattern = pattern; !validPattern(pattern) {
		return g, problem.Field("roles", "%s: after the colon comes the name of a %s, in which * is any text", problem.Quote(text), g.Role.Of())
	}
	return g, nil
}

// RoleNames returns the names of all roles, as a list for messages.
func RoleNames() string {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

// validPattern reports whether a name of a pool or queue can match a pattern.
func validPattern(p string) bool {
	return p != "" && len(p) <= MaxName && !strings.ContainsFunc(p, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("._-*", r)
	})
}

// match reports whether a name matches a pattern. It takes time proportional to the product
// of their lengths at most.
func match(pattern, name string) bool {
	star, from := -1, 0 // the last * of the pattern, and where in the name its text ends
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p, n = p+1, n+1
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Grants are what an identity may do.
type Grants []Grant

// AllGrants allow everything.
var AllGrants = Grants{{Admin, Everything}}

// ParseGrants reads a list of grants.
func ParseGrants(texts []string) (Grants, error) {
	var all Grants
	for _, text := range texts {
		g, err := ParseGrant(text)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// Texts writes grants as [ParseGrants] reads them.
func (gs Grants) Texts() []string {
	texts := make([]string, len(gs))
	for i, g := range gs {
		texts[i] = g.String()
	}
	return texts
}

// Has reports whether there is a grant of a role, for whatever thing.
func (gs Grants) Has(role Role) bool {
	return slices.ContainsFunc(gs, func(g Grant) bool { return g.Role.includes(role) })
}

// Allow reports whether a role is granted for a thing.
func (gs Grants) Allow(role Role, thing string) bool {
	return slices.ContainsFunc(gs, func(g Grant) bool {
		if !g.Role.includes(role) {
			return false
		}
		if g.Pattern == Everything || role.Of() == "" {
			return true
		}
		return thing != Everything && match(g.Pattern, thing)
	})
}

func (r Role) includes(o Role) bool { return r == o || slices.Contains(implied[r], o) }

// Refusal is why an identity may not do something. Its text is for programs and commands: it
// says who the caller is, which role is missing, and how to get it.
type Refusal struct {
	By   Identity
	Need Grant

	problem *problem.Error
}

// Error says what is missing.
func (r *Refusal) Error() string { return r.problem.Error() }

// Unwrap returns the problem: unauthorized or forbidden.
func (r *Refusal) Unwrap() error { return r.problem }

// Refusal returns the error of what the identity may not do for want of a role for a thing: a
// [*Refusal].
func (i Identity) Refusal(role Role, thing string) error {
	if thing != Everything {
		thing = cmp.Or(NameOf(thing), Everything) // a caller may have named what can be no name
	}
	r := &Refusal{By: i, Need: Grant{role, thing}}
	if i.Authenticated() {
		r.problem = problem.New(problem.Forbidden, "this needs the role %s, which %s does not have: an administrator of the sidecar can add %q to its setting roles", r.Need, i, i.String()+" "+r.Need.String())
	} else {
		r.problem = problem.New(problem.Unauthorized, "this needs the role %s, which a caller without a token does not have: send a token that has it as Authorization: Bearer …, or use the unix socket of the sidecar", r.Need)
	}
	return r
}

// InWords says the same to the reader of a web page: what is missing, and how to get it.
// TokensCount reports whether one can sign in with a token.
func (r *Refusal) InWords(tokensCount bool) (missing, how string) {
	role := r.Need.String()
	switch {
	case r.By.Authenticated():
		missing = fmt.Sprintf("This needs the role %s, which %s does not have.", role, r.By)
		how = fmt.Sprintf("An administrator of this server can give it: by the rule %q in its setting roles", r.By.String()+" "+role)
		if r.By.Kind == TokenBearer {
			return missing, how + ", or by another token with that role."
		}
		return missing, how + "."
	case tokensCount:
		return fmt.Sprintf("This needs the role %s, and you have not signed in.", role),
			"Sign in with a token that has it. An administrator of this server makes tokens: berth token create NAME --role " + role
	}
	missing = fmt.Sprintf("This needs the role %s. This address does not ask who you are, and allows only what everyone may do.", role)
	how = fmt.Sprintf("An administrator of this server can make a token with that role for you to sign in with (setting tokens_file: berth token create NAME --role %s). On the host itself, the command berth acts as your user.", role)
	if slices.Contains(anonymousRoles, r.Need.Role) {
		how += fmt.Sprintf(" Or everyone gets it, by the rule %q in the setting roles.", string(Anonymous)+" "+role)
	}
	return missing, how
}
