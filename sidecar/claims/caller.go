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
	own, is := c.Owner(), OwnerOf(of)
	return own.known() && own.by == is.by && subtle.ConstantTimeCompare([]byte(own.tokenHash), []byte(is.tokenHash)) == 1
}

// Owner returns the owner of the claims that the caller makes.
func (c Caller) Owner() Owner {
	o := Owner{by: c.Name}
	if o.anonymous() {
		o.tokenHash = hashOf(c.ClientToken)
	}
	return o
}

// Owner identifies who made a claim.
type Owner struct {
	by string // its identity
	// tokenHash is the hash of the client token of an owner without an identity.
	tokenHash string
}

// OwnerOf returns the owner of a claim.
func OwnerOf(of pool.Holder) Owner {
	o := Owner{by: of.ClaimedBy}
	if o.anonymous() {
		o.tokenHash = tokenHashOf(of)
	}
	return o
}

func (o Owner) anonymous() bool { return o.by == string(access.Anonymous) }

// known reports whether the owner can be distinguished from all others.
func (o Owner) known() bool { return o.by != "" && (!o.anonymous() || o.tokenHash != "") }

// Key returns a text that only this owner has; empty if the owner is not known.
func (o Owner) Key() string {
	if !o.known() {
		return ""
	}
	return o.by + "\n" + o.tokenHash
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
func SameOwner(a, b pool.Holder) bool { return OwnerOf(a) == OwnerOf(b) }

// tokenHashOf returns the hash of the client token with which a claim was made, empty if there is none.
func tokenHashOf(of pool.Holder) string {
	bind, err := decodeBinding(of.Bind)
	if err != nil {
		return ""
	}
	return bind.tokenHash
}
