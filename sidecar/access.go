package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/server"
)

// whoami answers GET /v1/whoami. It needs no session: who a caller is has nothing to do with
// etcd.
func (a *apiServer) whoami(ctx context.Context, _ *struct{}) (*output[api.Identity], error) {
	id := access.Of(ctx)
	kind := id.Kind
	if kind == "" {
		kind = access.Anonymous
	}
	return outputOf(api.Identity{
		Identity: id.String(), Kind: string(kind), Names: id.Names, Roles: id.Grants.Texts(), From: server.AddressOf(ctx),
	}, nil)
}

// registerAccess registers the endpoint of identities.
func (a *apiServer) registerAccess(h huma.API) {
	op := operation(h, "whoami", http.MethodGet, api.WhoamiPath, "access", "Report who the caller is, and its roles")
	op.Security = []map[string][]string{} // anonymous callers may ask, too
	huma.Register(h, op, a.whoami)
}

// exposure returns what is to be said about who may use a server; empty if that is as it
// should be.
func (c *Config) exposure() string {
	if web := c.http(); c.Listen == "" || web.Identifies() {
		return ""
	}
	if c.Policy.Open {
		return fmt.Sprintf("open: all users of this machine may do everything at %s, and run commands as the users of its workers", c.Listen)
	}
	policy := c.Policy
	policy.Local = true
	roles := policy.Grants(access.Identity{Kind: access.Anonymous}, nil)
	if !proc.ServesAll() || len(roles) == 0 {
		return ""
	}
	return fmt.Sprintf("access: this process serves all users of this machine and can't tell who calls %s, where all of them have the roles %s: set tokens_file or client_ca, or roles of anonymous, or set listen to \"\" and use the socket",
		c.Listen, strings.Join(roles.Texts(), ", "))
}
