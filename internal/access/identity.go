package access

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"github.com/berthhq/berth/internal/problem"
)

// Kind is how an identity was authenticated.
type Kind string

// The kinds.
const (
	// User is a user of the host, at the other end of the unix socket.
	User Kind = "user"
	// TokenBearer has shown a token.
	TokenBearer Kind = "token"
	// Certificate has shown a client certificate.
	Certificate Kind = "cert"
	// Anonymous has shown nothing.
	Anonymous Kind = "anonymous"
	// EtcdUser is a user of etcd, of a process that has a connection of its own.
	EtcdUser Kind = "etcd"
	// Unauthenticated is a process with a connection to an etcd without users.
	Unauthenticated Kind = "unauthenticated"
)

// Identity is who sends a request.
type Identity struct {
	Kind Kind
	// Name of the user, of the token or of the certificate; empty for [Anonymous].
	Name string
	// Names are further names: the groups of a user, the alternative names of a certificate.
	Names []string
	// Grants are what it may do.
	Grants Grants
}

// String returns the identity as rules and records have it, such as "user:alice".
func (i Identity) String() string {
	switch {
	case i.Kind == "":
		return string(Anonymous)
	case i.Name == "":
		return string(i.Kind)
	}
	return string(i.Kind) + ":" + i.Name
}

// UserOf returns the identity of a user of this host. A user without a name, or with one that is
// too long, has its number as its name.
func UserOf(uid uint32) Identity {
	id := Identity{Kind: User, Name: strconv.FormatUint(uint64(uid), 10)}
	if found, err := user.LookupId(id.Name); err == nil {
		if name := NameOf(found.Username); name != "" {
			id.Name = name
		}
	}
	return id
}

// Authenticated reports whether it is known who it is.
func (i Identity) Authenticated() bool { return i.Name != "" }

// Is reports whether it is the identity that is recorded as such a text. Callers that are not
// authenticated cannot be distinguished, so none of them is.
func (i Identity) Is(recorded string) bool { return i.Authenticated() && i.String() == recorded }

// subjects are the subjects of rules that the identity matches.
func (i Identity) subjects() []string {
	all := []string{i.String()}
	for _, name := range i.Names {
		if i.Kind == User {
			all = append(all, groupSubject+name)
		} else {
			all = append(all, string(i.Kind)+":"+name)
		}
	}
	return all
}

// groupSubject begins the subject of a rule for the members of a group.
const groupSubject = "group:"

const (
	// MaxName bounds the names of identities, in bytes.
	MaxName = 128
	// MaxIdentity bounds the text of an identity where it is recorded: a name and what is before it.
	MaxIdentity = 2 * MaxName
)

type identityKey struct{}

// With returns a context for the requests of an identity, which is found out when it is first
// needed.
func With(ctx context.Context, id func() Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// Of returns the identity whose request has that context; one that may do nothing if there
// is none.
func Of(ctx context.Context) Identity {
	id, ok := ctx.Value(identityKey{}).(func() Identity)
	if !ok {
		return Identity{}
	}
	return id()
}

// Allow returns nil if the caller may act in a role on each of the things, which are pools or
// queues; [Everything] is all there are. Otherwise it returns the refusal.
func Allow(ctx context.Context, role Role, things ...string) error {
	return Of(ctx).Allow(role, things...)
}

// Allow is the same for an identity.
func (i Identity) Allow(role Role, things ...string) error {
	for _, thing := range things {
		if !i.Grants.Allow(role, thing) {
			return i.Refusal(role, thing)
		}
	}
	if len(things) == 0 && !i.Grants.Has(role) {
		return i.Refusal(role, Everything)
	}
	return nil
}

// AllowAny returns nil if the identity has any role. Otherwise it returns the refusal of what
// would take more than a caller without roles may use up.
func (i Identity) AllowAny(what string) error {
	if len(i.Grants) > 0 {
		return nil
	}
	code := problem.Forbidden
	if !i.Authenticated() {
		code = problem.Unauthorized
	}
	return problem.New(code, "%s needs a role, and %s has none", what, i)
}

// validName reports whether a name can be that of an identity.
func validName(name string) bool {
	return name != "" && len(name) <= MaxName && !strings.ContainsFunc(name, unnamable)
}

// unnamable reports whether a rule can't have a character in a name.
func unnamable(r rune) bool { return r <= ' ' || r > '~' || r == ',' || r == '"' }

// NameOf returns the name of a user, a group or a certificate as rules and records have it. What
// they can't have, and the characters * and %, are written as in URLs: "%20" is a space.
// The result is empty if it would be longer than [MaxName].
func NameOf(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return unnamable(r) || r == '*' || r == '%' }) && len(name) <= MaxName {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name) && b.Len() <= MaxName; i++ {
		if c := rune(name[i]); unnamable(c) || c == '*' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(name[i])
		}
	}
	if b.Len() > MaxName {
		return ""
	}
	return b.String()
}
