package sidecar_test

import (
	"strings"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/access/accesstest"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// The name of a pool is suggested only to a caller who may know it.
func TestTheNameOfAPoolThatWasProbablyMeantIsSuggested(t *testing.T) {
	var tokens access.Tokens
	for name, roles := range map[string][]string{"views": {"claim", "view"}, "claims": {"claim:db*"}, "narrow": {"claim:dbs"}} {
		if err := tokens.Add(accesstest.Tokens(name, name+"-secret", roles...)().List[0], time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r := single(t, func(c *sidecar.Config) {
		c.Policy, c.Tokens = access.Policy{}, func() access.Tokens { return tokens }
	})
	r.pool("db", 1)
	for name, suggested := range map[string]bool{"views": true, "claims": true, "narrow": false} {
		c, err := client.Dial(r.base, name+"-secret")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Claim(t.Context(), api.ClaimRequest{Pools: api.Slots{"dbs": 1}})
		if problem.CodeOf(err) != problem.PoolNotFound || strings.Contains(err.Error(), `there is no pool "dbs": did you mean "db"?`) != suggested {
			t.Errorf("%s claims: %v", name, err)
		}
		if _, err = c.Pool(t.Context(), "dbs"); name == "views" && !strings.HasPrefix(err.Error(), `there is no pool "dbs": did you mean "db"?`) {
			t.Errorf("%s reads: %v", name, err)
		}
	}
}
