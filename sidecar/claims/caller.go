package claims

import (
	"crypto/subtle"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/pool"
)

// Caller is the sender of a request about a claim.
type Caller struct {
	// Name is its identity, empty if it has none.
	Name string
	// ClientToken proves that a caller without an identity made a claim.
	ClientToken string
	// May returns an error if the caller may not send this request about another caller's claim
	// with the given slots.
	May func(slots map[string]int) error
}

// Owns reports whether the caller made a claim.
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

// Check returns an error if the caller may not send its request about a claim.
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

// SameOwner reports whether two claims have the same owner.
func SameOwner(a, b pool.Holder) bool {
	return a.ClaimedBy == b.ClaimedBy && (a.ClaimedBy != string(access.Anonymous) || tokenHashOf(a) == tokenHashOf(b))
}

// tokenHashOf returns the hash of the client token with which a claim was made, empty if there is none.
func tokenHashOf(of pool.Holder) string {
	bind, err := decodeBinding(of.Bind)
	if err != nil {
		return ""
	}
	return bind.tokenHash
}
