package pool

import (
	"errors"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// maxExtra bounds the conditions and the writes that a claim carries: they share a part of a transaction with its slots.
const maxExtra = 16

// ValidateExtra refuses more conditions and writes than a claim can carry.
func ValidateExtra(x store.Extra) error {
	if len(x.If) > maxExtra || len(x.Then)+len(x.Leased) > maxExtra {
		return problem.New(problem.Internal, "a claim can carry %d conditions and %d writes more", maxExtra, maxExtra)
	}
	return nil
}

// ErrNotCombined is the error of a combined release that is impossible: the claim is no
// longer held, or has more than 32 keys. Nothing was written.
var ErrNotCombined = errors.New("pool: the claim can't be released together with another write")

// ValidateReleased refuses what can't be written together with a release.
func ValidateReleased(x store.Extra) error {
	if err := ValidateExtra(x); err != nil {
		return err
	}
	if len(x.Leased) > 0 || x.Stamp != nil {
		return problem.New(problem.Internal, "a release has no lease to write on, and is never tried long after it was asked for")
	}
	return nil
}
