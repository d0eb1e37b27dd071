package claims

import (
	"crypto/subtle"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Caller is who asks for something about a claim.
type Caller struct {
	// Name is its identity.
	Name string
	// ClientToken shows that it has made a claim, if it has no identity.
	ClientToken string
	// May returns why it may not ask for that about a claim of another with those slots.
	May func(slots map[string]int) error
}

// Owns reports whether the caller has made a claim.
func (c Caller) Owns(of pool.Holder) bool {
	if of.ClaimedBy == "" || of.ClaimedBy != c.Name {
		return false
	}
	if c.Name != string(access.Anonymous) {
		return true
	}
	bind, err := decodeBinding(of.Bind)
	return err == nil && bind.tokenHash != "" && subtle.ConstantTimeCompare([]byte(bind.tokenHash), []byte(hashOf(c.ClientToken))) == 1
}

// Check returns why the caller may not ask for something about a claim; nil if it may.
func (c Caller) Check(of pool.Holder, slots map[string]int) error {
	if c.Owns(of) {
		return nil
	}
	err := c.May(slots)
	if err == nil {
		return nil
	}
	own := "the claim is not your own"
	if c.Name == string(access.Anonymous) {
		own = "without its client token, in the header Berth-Client-Token, the claim is not your own"
	}
	e := problem.Of(err)
	return problem.New(e.Code, "%s, and %s", own, e.Message)
}
