// Package accesstest makes identities and tokens for tests.
package accesstest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/berthhq/berth/internal/access"
)

// Admin is an identity that may do everything.
var Admin = access.Identity{Kind: access.User, Name: "admin", Grants: access.AllGrants}

// As returns a context for the requests of an identity.
func As(ctx context.Context, id access.Identity) context.Context {
	return access.With(ctx, func() access.Identity { return id })
}

// Tokens returns one token with a secret, and with roles.
func Tokens(name, secret string, roles ...string) func() access.Tokens {
	tokens, err := access.ParseTokens(fmt.Appendf(nil, "- {name: %q, hash: sha256:%x, roles: [%s]}", name, sha256.Sum256([]byte(secret)), strings.Join(roles, ", ")))
	if err != nil {
		panic(err)
	}
	return func() access.Tokens { return tokens }
}
